"""Published models as folders in Hugging Face's format: what PDD needs to know, and which it can't serve.

PDD stores, for every token and layer, K and V of one shape. A model that keeps anything else is refused here, by name,
long before an engine has loaded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType
from pdd.engine.models.revision import derive_revision
from pdd.engine.models.sources import HuggingFaceFolder

Config = Mapping[str, Any]

_FULL_ATTENTION = "full_attention"
_PARTS_OF_OTHERS = ("text_config", "vision_config", "audio_config", "thinker_config", "llm_config")
_LAYERS_THAT_DIFFER = (
    *("layers_block_type", "hybrid_override_pattern", "block_configs", "attn_type_list", "attn_layer_period"),
    *("full_attention_interval", "attention_chunk_size", "num_kv_shared_layers", "full_attn_idxs", "ssm_cfg"),
    *("linear_attn_config", "mamba_d_state", "state_size", "mamba_d_ssm"),
)
_OTHER_NAMES_OF_KV_HEADS = ("multi_query", "num_kv_heads", "n_head_kv", "multi_query_group_num")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """What a folder says of itself."""

    architecture: str
    revision: str
    vocab_size: int
    max_model_tokens: int
    weights: HuggingFaceFolder


def read_published_model(folder: Path) -> PublishedModel:
    """Reads the configuration and samples the weights; nothing of the text side.

    Raises:
        ConfigError: it is not a folder in this format, or holds a model that PDD can't serve.
    """
    folder = folder.absolute()
    config = read_json(folder / "config.json")
    reader = _Reader(path=folder / "config.json", config=config)
    _refuse_what_is_not_served(folder, config, reader)
    num_heads = reader.count("num_attention_heads")
    return PublishedModel(
        architecture=reader.architecture(),
        vocab_size=reader.count("vocab_size"),
        max_model_tokens=reader.count("max_position_embeddings"),
        weights=HuggingFaceFolder(
            folder=folder,
            num_layers=reader.count("num_hidden_layers"),
            num_kv_heads=reader.kv_heads(num_heads),
            head_dim=reader.head_dim(num_heads),
            dtype=reader.dtype(),
        ),
        revision=derive_revision(folder, config),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        ConfigError: it is missing, or holds something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}; a Hugging Face folder has this file") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not a JSON object ({error})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads one configuration; each refusal names the file and the key."""

    path: Path
    config: Config

    def refuse(self, key: str, why: str) -> ConfigError:
        return ConfigError(f"{self.path}: {key} is {self.config.get(key)!r}: {why}")

    def count(self, key: str) -> int:
        value = self.config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refuse(key, "it must be a number above 0; PDD can't serve models that don't say it")
        return value

    def architecture(self) -> str:
        named = self.config.get("architectures")
        if not isinstance(named, list) or len(cast("list[object]", named)) != 1:
            raise self.refuse("architectures", "it must name one architecture")
        (architecture,) = cast("list[object]", named)
        if not isinstance(architecture, str) or not architecture.endswith("ForCausalLM"):
            raise self.refuse("architectures", "only decoders that generate text (...ForCausalLM) are served")
        return architecture

    def kv_heads(self, num_heads: int) -> int:
        if self.config.get("num_key_value_heads") is not None:
            return self.count("num_key_value_heads")
        for key in _OTHER_NAMES_OF_KV_HEADS:
            if key in self.config:
                raise self.refuse(key, "only models that say num_key_value_heads are served")
        return num_heads

    def head_dim(self, num_heads: int) -> int:
        if self.config.get("head_dim") is not None:
            return self.count("head_dim")
        hidden_size = self.count("hidden_size")
        if hidden_size % num_heads:
            raise self.refuse("hidden_size", f"it must be a multiple of num_attention_heads = {num_heads}")
        return hidden_size // num_heads

    def dtype(self) -> DType | None:
        key = "dtype" if self.config.get("dtype") is not None else "torch_dtype"
        value = self.config.get(key)
        if value is None:
            return None
        if value not in list(DType):
            raise self.refuse(key, f"it must be one of {', '.join(DType)}")
        return DType(value)


def _refuse_what_is_not_served(folder: Path, config: Config, reader: _Reader) -> None:
    if config.get("is_encoder_decoder"):
        raise reader.refuse("is_encoder_decoder", "models with an encoder are not served")
    for key in _PARTS_OF_OTHERS:
        if config.get(key) is not None:
            raise ConfigError(f"{reader.path}: {key} is there: multimodal models are not served")
    if config.get("kv_lora_rank") is not None:
        raise reader.refuse("kv_lora_rank", "multi-head latent attention (MLA) is not served yet")
    if config.get("sliding_window") is not None and config.get("use_sliding_window") is not False:
        raise reader.refuse("sliding_window", "sliding-window attention is not served: blocks leave its caches early")
    _refuse_layers_that_differ(config, reader)
    _refuse_quantized_kv(folder, config, reader)


def _refuse_layers_that_differ(config: Config, reader: _Reader) -> None:
    kinds = cast("list[object]", config.get("layer_types") or [])
    others = sorted({str(kind) for kind in kinds} - {_FULL_ATTENTION})
    if others:
        raise ConfigError(f"{reader.path}: layer_types has {', '.join(others)}: only {_FULL_ATTENTION} is served")
    for key in _LAYERS_THAT_DIFFER:
        if config.get(key):  # 0, [] and null say that there are none of them
            raise reader.refuse(key, "only models whose layers all cache K and V alike are served")
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        if isinstance(config.get(key), list):
            raise reader.refuse(key, "only models whose layers all cache K and V alike are served")
    if config.get("v_head_dim") not in {None, config.get("head_dim")}:
        raise reader.refuse("v_head_dim", "only models whose K and V have one size are served")


def _refuse_quantized_kv(folder: Path, config: Config, reader: _Reader) -> None:
    """Quantized weights are the engine's own business; quantized K and V would be another KV format."""
    described = cast("Config", config.get("quantization_config") or {})
    beside = folder / "hf_quant_config.json"
    found = cast("Config", (read_json(beside) if beside.is_file() else {}).get("quantization") or {})
    for path, table in ((reader.path, described), (beside, found)):
        for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
            if table.get(key) is not None:
                raise ConfigError(f"{path}: {key} is {table[key]!r}: quantized K and V are not served")
