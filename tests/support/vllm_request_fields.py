"""Every field of vLLM's (0.32) request bodies with the value that it has where a client says nothing.

``tests/vllm/test_request_fields.py`` holds this list to vLLM's own models.
"""

from __future__ import annotations

COMMON: dict[str, object] = {
    "model": None,
    "frequency_penalty": None,
    "logit_bias": None,
    "n": 1,
    "presence_penalty": None,
    "response_format": None,
    "seed": None,
    "stop": [],
    "stream": False,
    "stream_options": None,
    "temperature": None,
    "top_p": None,
    "thinking_token_budget": None,
    "user": None,
    "use_beam_search": False,
    "top_k": None,
    "min_p": None,
    "repetition_penalty": None,
    "watermarking": None,
    "length_penalty": 1.0,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
    "truncation_side": None,
    "prompt_logprobs": None,
    "logprob_token_ids": None,
    "allowed_token_ids": None,
    "bad_words": [],
    "echo": False,
    "structured_outputs": None,
    "priority": 0,
    "session_id": None,
    "return_tokens_as_token_ids": None,
    "return_token_ids": None,
    "routed_experts_prompt_start": 0,
    "return_token_offsets": False,
    "mm_payload": "tensors",
    "return_mm_kwargs": None,
    "cache_salt": None,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "vllm_xargs": None,
    "repetition_detection": None,
    "stream_interval": None,
}

CHAT: dict[str, object] = {
    **COMMON,
    "logprobs": False,
    "top_logprobs": 0,
    "max_tokens": None,
    "max_completion_tokens": None,
    "tools": None,
    "tool_choice": "none",
    "reasoning_effort": None,
    "include_reasoning": True,
    "parallel_tool_calls": True,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "add_special_tokens": False,
    "documents": None,
    "chat_template": None,
    "chat_template_kwargs": None,
    "media_io_kwargs": None,
    "mm_processor_kwargs": None,
    "return_prompt_text": None,
}

COMPLETION: dict[str, object] = {
    **COMMON,
    "logprobs": None,
    "max_tokens": 16,
    "suffix": None,
    "prompt_embeds": None,
    "add_special_tokens": True,
}

STREAM_OPTIONS: dict[str, object] = {"include_usage": False, "continuous_usage_stats": False}

DRAWN = frozenset({"request_id"})
"""vLLM draws one for each request."""
REQUIRED = frozenset({"messages", "prompt"})
"""``prompt`` may be null to vLLM where ``prompt_embeds`` stands in for it."""
MESSAGE = frozenset({"role", "content", "name", "tool_call_id", "tool_calls", "reasoning", "tools", "task"})
