"""One policy for all fields of OpenAI's and of vLLM's request bodies: whatever changes nothing passes, the rest is
refused by name.
"""

import json
from collections.abc import Callable, Mapping
from typing import get_args

import pytest
from openai.types import completion_create_params
from openai.types.chat import (
    ChatCompletionContentPartRefusalParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionMessageParam,
    ChatCompletionStreamOptionsParam,
)
from openai.types.chat import (
    completion_create_params as chat_create_params,
)

from pdd.core.errors import InvalidRequest
from pdd.router.api.fields import CHAT, COMPLETION, MESSAGE, PDD, REFUSAL_PART, STREAM_OPTIONS, TEXT_PART, Fields
from pdd.router.api.schema import parse_chat, parse_completion
from tests.support import vllm_request_fields as vllm

REQUIRED = {"messages", "prompt"}
NOTHING_OF_ITS_KIND = {"garbage": [1]}

OPENAI_CHAT = set(chat_create_params.CompletionCreateParamsNonStreaming.__annotations__)
OPENAI_COMPLETION = set(completion_create_params.CompletionCreateParamsNonStreaming.__annotations__)

OPENAI_DEFAULTS: Mapping[str, object] = {
    "temperature": 1,
    "top_p": 1,
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "stop": None,
    "stream": False,
    "stream_options": None,
    "logit_bias": None,
    "user": "",
    "seed": None,
}
OPENAI_CHAT_DEFAULTS: Mapping[str, object] = {
    **OPENAI_DEFAULTS,
    "logprobs": False,
    "store": False,
    "parallel_tool_calls": True,
    "service_tier": "auto",
    "verbosity": "medium",
    "tool_choice": "none",
    "function_call": "none",
    "modalities": ["text"],
    "response_format": {"type": "text"},
}
OPENAI_COMPLETION_DEFAULTS: Mapping[str, object] = {
    **OPENAI_DEFAULTS,
    "best_of": 1,
    "echo": False,
    "logprobs": None,
    "max_tokens": 16,
    "suffix": None,
}
"""As OpenAI's description has them. ``reasoning_effort`` is not among them: "medium" is something that we can't do."""


def chat(**fields):
    return parse_chat(json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode())


def completion(**fields):
    return parse_completion(json.dumps({"prompt": "hi", **fields}).encode())


def message(**fields):
    return chat(messages=[{"role": "assistant", **fields}])


def text_part(**fields):
    return chat(messages=[{"role": "user", "content": [{"type": "text", "text": "hi", **fields}]}])


def refusal_part(**fields):
    return chat(messages=[{"role": "assistant", "content": [{"type": "refusal", "refusal": "hi", **fields}]}])


def stream_options(**fields):
    return chat(stream=True, stream_options=fields)


def pdd(**fields):
    return chat(pdd=fields)


OBJECTS: dict[str, tuple[Callable, Fields, str, set[str]]] = {
    "chat": (chat, CHAT, "", {"messages"}),
    "completion": (completion, COMPLETION, "", {"prompt"}),
    "message": (message, MESSAGE, "messages[0].", {"role"}),
    "text part": (text_part, TEXT_PART, "messages[0].content[0].", {"type", "text"}),
    "refusal part": (refusal_part, REFUSAL_PART, "messages[0].content[0].", {"type", "refusal"}),
    "stream_options": (stream_options, STREAM_OPTIONS, "stream_options.", set()),
    "pdd": (pdd, PDD, "pdd.", set()),
}
"""How each is sent, its fields, the path to them, and those that must be there."""


EVERY_FIELD = [
    (kind, name)
    for kind, (_, fields, _, _) in OBJECTS.items()
    for name in sorted({*fields.read, *fields.unsupported, *fields.ignored})
]


def test_openais_fields_are_all_known_and_only_vllms_and_ours_besides():
    for kind, openais, vllms in (
        ("chat", OPENAI_CHAT, {*vllm.CHAT, *vllm.DRAWN}),
        ("completion", OPENAI_COMPLETION, {*vllm.COMPLETION, *vllm.DRAWN}),
    ):
        _, fields, _, _ = OBJECTS[kind]
        known = {*fields.read, *fields.unsupported, *fields.ignored}
        assert openais <= known
        assert vllms <= known


def test_the_fields_of_openais_messages_parts_and_stream_options_are_all_known():
    of_messages = {name for kind in get_args(ChatCompletionMessageParam) for name in kind.__annotations__}
    assert of_messages | vllm.MESSAGE <= {*MESSAGE.read, *MESSAGE.unsupported}
    assert {*ChatCompletionContentPartTextParam.__annotations__} == TEXT_PART.read | TEXT_PART.ignored
    assert {*ChatCompletionContentPartRefusalParam.__annotations__} == REFUSAL_PART.read
    of_streams = {*ChatCompletionStreamOptionsParam.__annotations__, *vllm.STREAM_OPTIONS}
    assert of_streams == {*STREAM_OPTIONS.read, *STREAM_OPTIONS.unsupported}


def test_no_field_has_two_fates():
    for _, fields, _, _ in OBJECTS.values():
        assert not fields.read & fields.ignored
        assert not {*fields.unsupported} & (fields.read | fields.ignored)


@pytest.mark.parametrize(("kind", "name"), EVERY_FIELD)
def test_every_field_passes_with_null_unless_it_is_required(kind, name):
    send, _, path, required = OBJECTS[kind]
    if name not in required:
        assert send(**{name: None}) == send()
        return
    with pytest.raises(InvalidRequest) as refused:
        send(**{name: None})
    assert (refused.value.param, refused.value.code) == (path + name, "missing_required_parameter")


@pytest.mark.parametrize(("kind", "name"), EVERY_FIELD)
def test_every_field_but_the_ignored_is_refused_by_name_with_what_it_can_not_be(kind, name):
    send, fields, path, _ = OBJECTS[kind]
    if name in fields.ignored:
        assert send(**{name: NOTHING_OF_ITS_KIND}) == send()
        return
    with pytest.raises(InvalidRequest) as refused:
        send(**{name: NOTHING_OF_ITS_KIND})
    if name in {"pdd", "stream_options"}:
        assert refused.value.param == f"{name}.garbage"
        return
    assert refused.value.param == path + name
    assert refused.value.message.startswith(f"{path}{name}: ")
    assert '{"garbage": [1]}' in refused.value.message
    assert (refused.value.code == "unsupported_parameter") is (name in fields.unsupported)


@pytest.mark.parametrize(("kind", "name"), EVERY_FIELD)
def test_every_unsupported_field_passes_with_what_changes_nothing(kind, name):
    send, fields, _, _ = OBJECTS[kind]
    for value in fields.unsupported.get(name, ()):
        assert send(**{name: value}) == send()


@pytest.mark.parametrize(
    ("send", "defaults", "fields"),
    [(chat, OPENAI_CHAT_DEFAULTS, OPENAI_CHAT), (completion, OPENAI_COMPLETION_DEFAULTS, OPENAI_COMPLETION)],
)
def test_openais_defaults_pass_one_by_one_and_together(send, defaults, fields):
    assert set(defaults) <= fields
    for name, value in defaults.items():
        if name != "max_tokens":
            assert send(**{name: value}) == send()
    assert send(**defaults).options == send(max_tokens=defaults.get("max_tokens")).options


@pytest.mark.parametrize(("send", "defaults"), [(chat, vllm.CHAT), (completion, vllm.COMPLETION)])
def test_vllms_defaults_pass_one_by_one_and_together(send, defaults):
    for name, value in defaults.items():
        if name != "max_tokens":
            assert send(**{name: value}) == send()
    assert send(**defaults).options == send(max_tokens=defaults["max_tokens"]).options


def test_a_field_that_nobody_knows_is_refused_even_if_it_is_null():
    for kind, (send, _, path, _) in OBJECTS.items():
        with pytest.raises(InvalidRequest) as refused:
            send(colour=None)
        assert (refused.value.param, refused.value.code) == (f"{path}colour", "unknown_parameter"), kind
