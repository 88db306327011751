"""OpenAI's (and vLLM's) request parameters that PDD knows but does not support, or has no use for.

An unsupported one passes with a value that changes nothing and is refused by name with any other: a client must never
believe that a setting worked which was ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from pdd.core.errors import InvalidRequest

_SHOWN_CHARACTERS = 80

Neutral = tuple[object, ...]

_SAMPLING: Mapping[str, Neutral] = {
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "response_format": ({"type": "text"},),
    "truncate_prompt_tokens": (),
    "priority": (0,),
    "store": (False,),
}

UNSUPPORTED_IN_CHAT: Mapping[str, Neutral] = {
    **_SAMPLING,
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "moderation": (),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
}

UNSUPPORTED_IN_COMPLETIONS: Mapping[str, Neutral] = {
    **_SAMPLING,
    "logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "add_special_tokens": (True,),
}

UNSUPPORTED_IN_MESSAGES: Mapping[str, Neutral] = {
    "name": (),
    "refusal": (),
    "audio": (),
    "annotations": ([],),
    "tool_calls": ([],),
    "tool_call_id": (),
    "function_call": (),
    "reasoning_content": (),
}
"""A client that sends back the message object which it got sends these along, empty."""

IGNORED = frozenset(
    {
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
    }
)
"""They name, bill or hint and never change an answer."""


def without_unsupported(
    fields: Mapping[str, object], unsupported: Mapping[str, Neutral], *, path: str = ""
) -> dict[str, object]:
    """The fields that are left to look at: those not in ``unsupported``, which all had neutral values.

    Raises:
        InvalidRequest: one had another value; it names the field, the value and what is possible.
    """
    for name, value in fields.items():
        if name in unsupported and not _is_neutral(value, unsupported[name]):
            raise _refusal(f"{path}{name}", value, unsupported[name])
    return {name: value for name, value in fields.items() if name not in unsupported}


def shown(value: object) -> str:
    """A value as JSON for an error message, cut to a length that a terminal bears."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _refusal(param: str, value: object, neutral: Neutral) -> InvalidRequest:
    possible = " or ".join(shown(choice) for choice in (None, *neutral))
    return InvalidRequest(
        f"{param}: {shown(value)} is not supported yet; leave it out or set it to {possible}",
        param=param,
        code="unsupported_parameter",
    )


def _is_neutral(value: object, neutral: Neutral) -> bool:
    return value is None or any(_equals(value, choice) for choice in neutral)


def _equals(value: object, choice: object) -> bool:
    """Equality of JSON values: true is not 1, but 1.0 is."""
    if isinstance(value, bool) or isinstance(choice, bool):
        return value is choice
    if isinstance(value, dict) and isinstance(choice, dict):
        return cast(dict[str, object], value) == cast(dict[str, object], choice)
    return value == choice
