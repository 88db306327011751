"""What the connector refuses to start with, and how it says so."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdd.core.errors import ConfigError
from pdd.plugins.vllm.settings import SAMPLING_PROCESSOR, check_supported, read_settings

GOOD = {"node_socket": "/run/n.sock", "model": "tiny-random-32"}


class FullAttentionSpec(SimpleNamespace):
    """Named as vLLM's."""


class SlidingWindowSpec(SimpleNamespace):
    """Named as vLLM's."""


FULL = FullAttentionSpec(sliding_window=None, attention_chunk_size=None)


def config_of(**changes: Any) -> SimpleNamespace:
    """vLLM's, as far as it is read; ``changes`` are ``part__field``."""
    parts = {
        "model_config": SimpleNamespace(
            model="tiny-random-32",
            dtype="torch.float32",
            is_encoder_decoder=False,
            is_multimodal_model=False,
            enable_prompt_embeds=False,
            logits_processors=[SAMPLING_PROCESSOR],
            get_num_layers=lambda parallel: 2,
            get_total_num_kv_heads=lambda: 2,
            get_head_size=lambda: 32,
        ),
        "cache_config": SimpleNamespace(cache_dtype="auto", enable_prefix_caching=True),
        "parallel_config": SimpleNamespace(
            pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        "kv_transfer_config": SimpleNamespace(
            kv_connector_extra_config=GOOD, kv_load_failure_policy="recompute", kv_role="kv_both"
        ),
        "speculative_config": None,
        "lora_config": None,
    }
    for change, value in changes.items():
        part, _, name = change.partition("__")
        if name:
            setattr(parts[part], name, value)
        else:
            parts[part] = value
    return SimpleNamespace(**parts)


def caches_of(*specs: Any) -> SimpleNamespace:
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def test_what_is_needed_is_enough():
    settings = read_settings(config_of())
    assert settings.node_socket == Path("/run/n.sock")
    assert settings.kv_format.block_tokens == 16
    check_supported(config_of(), caches_of(FULL), settings)


def test_the_model_is_vllms_unless_another_name_is_given():
    config = config_of(
        kv_transfer_config__kv_connector_extra_config={"node_socket": "/n"}, model_config__model="tiny-random"
    )
    assert read_settings(config).model == "tiny-random"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"block_token": 16}, "unknown key 'block_token'; known keys: block_tokens"),
        ({"node_socket": ""}, "node_socket is ''"),
        ({"block_tokens": 0}, "block_tokens is 0; it must be a whole number, at least 1"),
        ({"block_tokens": True}, "block_tokens is True"),
        ({"loader_threads": "4"}, "loader_threads is '4'"),
        ({"convert_dtype": "yes"}, "convert_dtype is 'yes'; it must be true or false"),
    ],
)
def test_a_wrong_key_is_named(extra: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        read_settings(config_of(kv_transfer_config__kv_connector_extra_config={**GOOD, **extra}))


def test_a_missing_socket_is_named():
    with pytest.raises(ConfigError, match=r"kv_connector_extra_config\.node_socket"):
        read_settings(config_of(kv_transfer_config__kv_connector_extra_config={"model": "tiny-random-32"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache_config__cache_dtype": "fp8"}, "--kv-cache-dtype is fp8; use auto"),
        ({"cache_config__enable_prefix_caching": False}, "remove --no-enable-prefix-caching"),
        ({"parallel_config__pipeline_parallel_size": 2}, "--pipeline-parallel-size is 2; it must be 1"),
        ({"parallel_config__decode_context_parallel_size": 2}, "--decode-context-parallel-size is 2"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "--prefill-context-parallel-size is 2"),
        ({"speculative_config": object()}, "remove --speculative-config"),
        ({"lora_config": object()}, "remove --enable-lora"),
        ({"model_config__is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"model_config__is_multimodal_model": True}, "use --language-model-only"),
        ({"model_config__enable_prompt_embeds": True}, "remove --enable-prompt-embeds"),
        (
            {"kv_transfer_config__kv_load_failure_policy": "fail"},
            "kv_load_failure_policy is fail; it must be recompute",
        ),
        ({"kv_transfer_config__kv_role": "kv_producer"}, "kv_role is kv_producer; it must be kv_both"),
        ({"model_config__logits_processors": None}, f"add --logits-processors {SAMPLING_PROCESSOR}"),
        ({"model_config__get_total_num_kv_heads": lambda: 8}, "has 2 KV heads, the one that vLLM runs 8"),
        ({"model_config__get_head_size": lambda: 64}, "has 32 numbers per head, the one that vLLM runs 64"),
        ({"model_config__get_num_layers": lambda parallel: 3}, "has 2 layers, the one that vLLM runs 3"),
    ],
)
def test_what_could_not_be_exchanged_is_refused_by_name(changes: dict[str, Any], message: str):
    config = config_of(**changes)
    with pytest.raises(ConfigError, match=message):
        check_supported(config, caches_of(FULL), read_settings(config))


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ((FULL, SlidingWindowSpec()), "of the kinds FullAttentionSpec, SlidingWindowSpec"),
        ((SlidingWindowSpec(),), "only one group of full attention"),
        ((FullAttentionSpec(sliding_window=128, attention_chunk_size=None),), "sliding window"),
    ],
)
def test_other_attention_is_refused(specs: tuple[Any, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        check_supported(config_of(), caches_of(*specs), read_settings(config_of()))


def test_a_model_without_keys_and_values_is_refused():
    config = config_of(kv_transfer_config__kv_connector_extra_config={**GOOD, "model": "scripted"})
    with pytest.raises(ConfigError, match="has no KV of the kind"):
        check_supported(config, caches_of(FULL), read_settings(config))


def test_everything_wrong_is_said_at_once():
    config = config_of(lora_config=object(), cache_config__enable_prefix_caching=False)
    with pytest.raises(ConfigError, match=r"remove --no-enable-prefix-caching; .*remove --enable-lora"):
        check_supported(config, caches_of(FULL), read_settings(config))
