"""What a chip can do and what a model asks of it, read from TOML files; packaged ones go by name.

Public figures only, each with its source beside it; what is assumed (how much of a peak is reached) is a key of its
own.
"""

from __future__ import annotations

import tomllib
from enum import StrEnum
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import TypeVar

import msgspec

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType, KvFormat, TensorSpec
from pdd.core.units import BytesPerSecond, Seconds


class Precision(StrEnum):
    """In what a model is computed."""

    FP8 = "fp8"
    BF16 = "bf16"
    FP32 = "fp32"


class FlopsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak dense FLOP/s of one chip, by precision."""

    fp8: float
    bf16: float
    fp32: float

    def of(self, precision: Precision) -> float:
        return float(getattr(self, precision))


class HardwareProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One chip. ``host_bytes_per_s`` is between it and its KV node's memory, ``network_bytes_per_s`` its share of the
    node's network; the efficiencies are the shares of the peaks that are reached.
    """

    name: str = ""
    flops_per_s: FlopsTable
    memory_bytes: float
    memory_bytes_per_s: BytesPerSecond
    host_bytes_per_s: BytesPerSecond
    network_bytes_per_s: BytesPerSecond
    compute_efficiency: float
    memory_efficiency: float
    step_overhead_s: Seconds
    layer_overhead_s: Seconds


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. Attention FLOPs are per query token and context token, over all layers, and ``fixed_attention_flops``
    per query token whatever its context. Of the expert weights, only those that some token of a step chose are read.
    """

    name: str = ""
    num_layers: int
    dtype: Precision
    active_params: float
    dense_weight_bytes: float
    kv_bytes_per_token: int
    prefill_attention_flops: float
    decode_attention_flops: float
    fixed_attention_flops: float = 0.0
    expert_weight_bytes: float = 0.0
    num_experts: int = 1
    experts_per_token: int = 1

    def weight_bytes_read(self, num_tokens: int) -> float:
        """Expected bytes of weights that a step of so many tokens reads, each choosing its experts evenly."""
        untouched = (1.0 - self.experts_per_token / self.num_experts) ** num_tokens
        return self.dense_weight_bytes + self.expert_weight_bytes * (1.0 - untouched)

    def kv_format(self, block_tokens: int) -> KvFormat:
        """A format of the right size: one tensor stands for all that is cached of a token."""
        tensor = TensorSpec(name="kv", shape=(self.kv_bytes_per_token // 2,), dtype=DType.BFLOAT16)
        return KvFormat(model=self.name, block_tokens=block_tokens, layers=((tensor,),))


_ProfileT = TypeVar("_ProfileT", HardwareProfile, ModelProfile)


def load_hardware(name_or_path: str) -> HardwareProfile:
    """A packaged hardware profile or a TOML file.

    Raises:
        ConfigError: there is none, or something in it is wrong.
    """
    return _load(name_or_path, "hardware", HardwareProfile)


def load_model(name_or_path: str) -> ModelProfile:
    """A packaged model profile or a TOML file. Raises ConfigError."""
    return _load(name_or_path, "models", ModelProfile)


def packaged_profiles(folder: str) -> tuple[str, ...]:
    """The names of the packaged ones, of ``hardware`` or of ``models``."""
    entries = (files("pdd.sim.profiles") / folder).iterdir()
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml")))


def _load(name_or_path: str, folder: str, kind: type[_ProfileT]) -> _ProfileT:
    text = _read(name_or_path, folder)
    try:
        profile = msgspec.convert(tomllib.loads(text), kind)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{name_or_path}: {error}") from error
    _check(profile, name_or_path)
    return msgspec.structs.replace(profile, name=profile.name or Path(name_or_path).stem)


def _read(name_or_path: str, folder: str) -> str:
    if name_or_path in packaged_profiles(folder):
        return (files("pdd.sim.profiles") / folder / f"{name_or_path}.toml").read_text(encoding="utf-8")
    try:
        return Path(name_or_path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(packaged_profiles(folder))
        raise ConfigError(
            f"{name_or_path!r} is no packaged profile and no readable TOML file; packaged {folder}: {known}"
        ) from error


_MAY_BE_ZERO = ("step_overhead_s", "layer_overhead_s", "fixed_attention_flops", "expert_weight_bytes")


def _check(profile: HardwareProfile | ModelProfile, file: str) -> None:
    for key in profile.__struct_fields__:
        value = getattr(profile, key)
        if isinstance(value, int | float) and not (
            isfinite(value) and (value > 0 or (value == 0 and key in _MAY_BE_ZERO))
        ):
            raise ConfigError(f"{file}: {key} = {value!r}: it must be more than 0, and finite")
    match profile:
        case HardwareProfile():
            if max(profile.compute_efficiency, profile.memory_efficiency) > 1:
                raise ConfigError(f"{file}: an efficiency is the share of a peak: it must be at most 1")
        case ModelProfile():
            if profile.kv_bytes_per_token % 2 or profile.experts_per_token > profile.num_experts:
                raise ConfigError(f"{file}: kv_bytes_per_token must be even, experts_per_token at most num_experts")
