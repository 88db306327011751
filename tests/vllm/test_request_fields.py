"""The list of vLLM's request fields that the front door is tested with is vLLM's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support import vllm_request_fields as listed


def defaults(model: Any) -> Mapping[str, object]:
    """What each field is where a client says nothing; those that must be there have no default."""
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in model.model_fields.items()
        if name not in listed.DRAWN | listed.REQUIRED
    }


def test_the_listed_fields_and_defaults_are_vllms():
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    assert set(ChatCompletionRequest.model_fields) == {*listed.CHAT, *listed.DRAWN, "messages"}
    assert defaults(ChatCompletionRequest) == listed.CHAT
    assert set(CompletionRequest.model_fields) == {*listed.COMPLETION, *listed.DRAWN, "prompt"}
    assert defaults(CompletionRequest) == listed.COMPLETION


def test_the_listed_stream_options_and_message_fields_are_vllms():
    from vllm.entrypoints.generate.base.protocol import StreamOptions
    from vllm.renderers.chat_utils import CustomChatCompletionMessageParam

    assert defaults(StreamOptions) == listed.STREAM_OPTIONS
    assert set(CustomChatCompletionMessageParam.__annotations__) == listed.MESSAGE
