# pyright: basic
# ruff: noqa: ANN401 (vLLM's objects: their types would have to be imported)
"""What the connector is told on vLLM's command line, and what of vLLM's own configuration it can't work with.

Reads vLLM's objects but imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pdd.core.errors import ConfigError
from pdd.core.ids import NodeId, WorkerId
from pdd.core.kv_format import DType, KvFormat
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.engine.node_link import Knock, NodeLink, knock_here, knock_in_thread
from pdd.kvnode.local import LocalNode

SAMPLING_PROCESSOR = "pdd.plugins.vllm.sampling:PositionKeyedSampling"
_WHERE = "kv_connector_extra_config"
_NODE_TIMEOUT = Seconds(0.5)
"""A node answers within a millisecond. One that hangs makes all streams of its engine wait for so long, once."""
_LOADER_NODE_TIMEOUT = Seconds(1.0)
"""For a loader only its own request waits; on a machine short of cores, computing anew costs more than patience. Longer
than this, and the link would leave a node alone that hung only once.
"""


@dataclass(frozen=True, kw_only=True)
class ConnectorSettings:
    """The keys of ``kv_connector_extra_config``.

    Attributes:
        node_socket: the KV node's Unix socket.
        model: a name of PDD's catalog or a Hugging Face folder; it names the KV format.
        kv_dtype: what the node's K and V are kept in, where that isn't what the model says.
        block_tokens: the node's tokens per block.
        engine: this engine's name in the node's log.
        node: the node's name, which the router compares with its topology's, where it is given.
        convert_dtype: the cache's element type may be another than the format's; KV is rounded then.
        loader_threads: how many requests load at once.
    """

    node_socket: Path
    model: str
    kv_dtype: DType | None = None
    block_tokens: int = 16
    engine: str = "vllm"
    node: NodeId | None = None
    convert_dtype: bool = False
    loader_threads: int = 4

    @cached_property
    def kv_format(self) -> KvFormat:
        """Raises ConfigError: there is no such model. Reads some of a folder's weights."""
        return find_model(self.model, kv_dtype=self.kv_dtype).kv_format(self.block_tokens)

    def make_link(self) -> NodeLink:
        """For a thread that the engine waits for; each thread needs one of its own."""
        return self._link(_NODE_TIMEOUT, knock_in_thread)

    def make_loader_link(self) -> NodeLink:
        """For a thread that only loads: after a hang it had better wait than find no node, which has a prompt computed
        anew.
        """
        return self._link(_LOADER_NODE_TIMEOUT, knock_here)

    def _link(self, timeout: Seconds, knock: Knock) -> NodeLink:
        kv_format, owner = self.kv_format, WorkerId(self.engine)
        return NodeLink(
            lambda: LocalNode.connect(self.node_socket, kv_format, owner=owner, timeout=timeout), knock=knock
        )


def read_settings(vllm_config: Any) -> ConnectorSettings:
    """Raises ConfigError: a key is unknown, missing or wrong."""
    given: Mapping[str, Any] = vllm_config.kv_transfer_config.kv_connector_extra_config
    known = {field.name for field in fields(ConnectorSettings)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ConfigError(f"{_WHERE}: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
    return ConnectorSettings(
        node_socket=Path(_text(given, "node_socket")),
        model=_text(given, "model", default=vllm_config.model_config.model),
        kv_dtype=_dtype(given, "kv_dtype"),
        block_tokens=_count(given, "block_tokens", default=16),
        engine=_text(given, "engine", default="vllm"),
        node=NodeId(_text(given, "node")) if "node" in given else None,
        convert_dtype=_choice(given, "convert_dtype", default=False),
        loader_threads=_count(given, "loader_threads", default=4),
    )


def check_supported(vllm_config: Any, kv_cache_config: Any, settings: ConnectorSettings) -> None:
    """Raises ConfigError: vLLM is configured for something that the connector would get wrong; says what to change."""
    refusals = (
        *_refused_caches(vllm_config, kv_cache_config),
        *_refused_features(vllm_config),
        *_mismatches(vllm_config, settings),
    )
    if refusals:
        raise ConfigError(f"PDD's connector can't work with this configuration of vLLM: {'; '.join(refusals)}")


def _text(given: Mapping[str, Any], key: str, *, default: str | None = None) -> str:
    value = given.get(key, default)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{_WHERE}.{key} is {value!r}; it must be a text, and there must be one")
    return value


def _count(given: Mapping[str, Any], key: str, *, default: int) -> int:
    value = given.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{_WHERE}.{key} is {value!r}; it must be a whole number, at least 1")
    return value


def _dtype(given: Mapping[str, Any], key: str) -> DType | None:
    value = given.get(key)
    if value is not None and value not in list(DType):
        raise ConfigError(f"{_WHERE}.{key} is {value!r}; it must be one of {', '.join(DType)}")
    return None if value is None else DType(value)


def _choice(given: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = given.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{_WHERE}.{key} is {value!r}; it must be true or false")
    return value


def _refused_caches(config: Any, kv_cache_config: Any) -> Iterator[str]:
    cache, parallel = config.cache_config, config.parallel_config
    groups = kv_cache_config.kv_cache_groups
    kinds = [type(group.kv_cache_spec).__name__ for group in groups]
    if kinds != ["FullAttentionSpec"]:
        yield f"the model's KV is of the kinds {', '.join(kinds)}; only one group of full attention can be exchanged"
    elif groups[0].kv_cache_spec.sliding_window or groups[0].kv_cache_spec.attention_chunk_size:
        yield "the model attends to a sliding window or to chunks; only full attention can be exchanged"
    if cache.cache_dtype not in ("auto", str(config.model_config.dtype).removeprefix("torch.")):
        yield f"--kv-cache-dtype is {cache.cache_dtype}; use auto: quantized KV can't be exchanged"
    if not cache.enable_prefix_caching:
        yield "prefix caching is off; remove --no-enable-prefix-caching"
    sizes = ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size")
    for size in sizes:
        if getattr(parallel, size) > 1:
            yield f"--{size.replace('_', '-')} is {getattr(parallel, size)}; it must be 1"


def _refused_features(config: Any) -> Iterator[str]:
    model, transfer = config.model_config, config.kv_transfer_config
    if config.speculative_config is not None:
        yield "speculative decoding is on; remove --speculative-config"
    if config.lora_config is not None:
        yield "LoRA is on; remove --enable-lora: adapters are no part of a block's name"
    if model.is_encoder_decoder:
        yield "the model has an encoder and a decoder; only decoders are supported"
    if model.is_multimodal_model:
        yield "the model is multimodal; images are no part of a block's name: use --language-model-only"
    if model.enable_prompt_embeds:
        yield "prompt embeddings are on; remove --enable-prompt-embeds: they are no part of a block's name"
    if transfer.kv_load_failure_policy != "recompute":
        yield f"kv_load_failure_policy is {transfer.kv_load_failure_policy}; it must be recompute"
    if transfer.kv_role != "kv_both":
        yield f"kv_role is {transfer.kv_role}; it must be kv_both: every engine loads and saves"
    if SAMPLING_PROCESSOR not in [str(name) for name in model.logits_processors or ()]:
        yield f"seeded answers would change at a hand-off; add --logits-processors {SAMPLING_PROCESSOR}"


def _mismatches(config: Any, settings: ConnectorSettings) -> Iterator[str]:
    """Between the model that vLLM runs and the one whose KV format this is."""
    kv_format, model = settings.kv_format, config.model_config
    tensors = kv_format.layers[0]
    if len(tensors) != 1 or len(tensors[0].shape) != 3:
        yield f"model {settings.model!r} has no KV of the kind [2, heads, head size]"
        return
    pairs = (
        ("layers", len(kv_format.layers), model.get_num_layers(config.parallel_config)),
        ("KV heads", tensors[0].shape[1], model.get_total_num_kv_heads()),
        ("numbers per head", tensors[0].shape[2], model.get_head_size()),
    )
    for what, expected, actual in pairs:
        if expected != actual:
            yield f"model {settings.model!r} has {expected} {what}, the one that vLLM runs {actual}"
