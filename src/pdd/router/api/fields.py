"""Every field of OpenAI's and of vLLM's request bodies, and what becomes of it, at one glance.

A field is *read*; or *unsupported*: it passes with null or with a value that changes nothing, and is refused by name
with any other, so that no client believes in a setting that was ignored; or *ignored*, since it names, bills or hints
and never changes an answer. Whatever is none of these is unknown, and refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Neutral = tuple[object, ...]
"""The values, besides null, with which an unsupported field changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """What one kind of JSON object may hold."""

    read: frozenset[str]
    unsupported: Mapping[str, Neutral] = field(default_factory=dict[str, Neutral])
    ignored: frozenset[str] = frozenset()


_READ = frozenset(
    {
        *("model", "max_tokens", "temperature", "top_p", "top_k", "seed", "cache_salt", "pdd"),
        *("stop", "stop_token_ids", "ignore_eos", "stream", "stream_options"),
    }
)

_IGNORED = frozenset(
    {
        *("user", "metadata", "service_tier", "safety_identifier", "session_id"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    }
)

_UNSUPPORTED: Mapping[str, Neutral] = {
    # How tokens are chosen
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "repetition_detection": (),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "thinking_token_budget": (),
    "watermarking": (False,),
    "vllm_xargs": ({},),
    # How many answers are computed
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    # What the prompt is made of
    "truncate_prompt_tokens": (),
    "truncation_side": ("left", "right"),
    # What comes back
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_mm_kwargs": (False, True),
    "mm_payload": ("tensors", "none"),
    "routed_experts_prompt_start": (0,),
    # How it is run and kept
    "request_id": (),
    "priority": (0,),
    "store": (False,),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
}
"""vLLM says of ``truncation_side``, ``return_mm_kwargs`` and ``mm_payload`` that they do nothing by themselves, or
here.
"""

CHAT = Fields(
    read=_READ | {"messages", "max_completion_tokens"},
    ignored=_IGNORED,
    unsupported={
        **_UNSUPPORTED,
        "logprobs": (False,),
        "top_logprobs": (0,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "moderation": (),
        "prediction": (),
        "web_search_options": (),
        "reasoning_effort": ("none",),
        "include_reasoning": (True,),
        "verbosity": ("medium",),
        "echo": (False,),
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "continue_final_message": (False,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "documents": ([],),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
        "return_prompt_text": (False,),
    },
)

COMPLETION = Fields(
    read=_READ | {"prompt"},
    ignored=_IGNORED,
    unsupported={
        **_UNSUPPORTED,
        "logprobs": (),
        "echo": (False,),
        "suffix": ("",),
        "add_special_tokens": (True,),
        "prompt_embeds": (),
    },
)

MESSAGE = Fields(
    read=frozenset({"role", "content", "name", "refusal"}),
    unsupported={
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "tool_calls": ([],),
        "tool_call_id": (),
        "tools": ([],),
        "reasoning": ("",),
        "reasoning_content": ("",),
        "task": (),
    },
)
"""A client that sends back the message object which it got sends the unsupported ones along, empty."""

TEXT_PART = Fields(read=frozenset({"type", "text"}), ignored=frozenset({"prompt_cache_breakpoint"}))
REFUSAL_PART = Fields(read=frozenset({"type", "refusal"}))

STREAM_OPTIONS = Fields(
    read=frozenset({"include_usage", "continuous_usage_stats"}),
    unsupported={"include_obfuscation": (False,)},
)

PDD = Fields(read=frozenset({"route", "handoff", "handoff_after_tokens", "cache_salt", "trace"}))
