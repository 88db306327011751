"""What one KV block looks like, byte for byte: the contract between all engines and nodes of a deployment.

A format is a list of named per-token tensors in each layer, not "K and V", so that latent attention (one tensor
per layer) and layers that differ fit without a special case. A block is *canonical*: for each layer, for each
tensor in order, a C-contiguous array ``[block_tokens, *shape]``, little-endian, nothing between them. Adapters of
engines convert; nodes and wires never look inside.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from math import prod

from pdd.core.errors import ConfigError
from pdd.core.units import Bytes


class DType(StrEnum):
    """Element type of a cached tensor."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def num_bytes(self) -> int:
        return 4 if self is DType.FLOAT32 else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor that a layer caches: ``shape`` is per token, e.g. ``(2, kv_heads, head_dim)`` for K and V together."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def bytes_per_token(self) -> int:
        return prod(self.shape) * self.dtype.num_bytes


@dataclass(frozen=True, kw_only=True)
class KvFormat:
    """The layout and meaning of one KV block.

    ``model`` names the weights that computed it, revision included: KV of other weights is another thing of the
    same size. ``layers`` holds, for each layer, its cached tensors in order.
    """

    model: str
    block_tokens: int
    layers: tuple[tuple[TensorSpec, ...], ...]

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ConfigError(f"KV format: block_tokens is {self.block_tokens}; it must be at least 1")
        if not self.layers:
            raise ConfigError("KV format: a model has at least one layer")

    @cached_property
    def bytes_per_token(self) -> Bytes:
        return Bytes(sum(tensor.bytes_per_token for layer in self.layers for tensor in layer))

    @cached_property
    def block_bytes(self) -> Bytes:
        return Bytes(self.bytes_per_token * self.block_tokens)

    @cached_property
    def description(self) -> str:
        """One line that two formats share exactly if their blocks are interchangeable; shown in refusals."""
        layers = ";".join(
            ",".join(f"{t.name}:{t.dtype}[{'x'.join(map(str, t.shape))}]" for t in layer) for layer in self.layers
        )
        return f"{self.model}|block={self.block_tokens}|{layers}"

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that differ whenever two formats' blocks are not interchangeable."""
        return hashlib.sha256(b"pdd-kv-format-v1\0" + self.description.encode()).digest()

    def num_full_blocks(self, num_tokens: int) -> int:
        """Only full blocks exist on the wire; the tail is always recomputed."""
        return num_tokens // self.block_tokens


def uniform_attention_format(
    *, model: str, num_layers: int, num_kv_heads: int, head_dim: int, dtype: DType, block_tokens: int
) -> KvFormat:
    """The format of a model whose every layer caches K and V of the same shape: per token ``[K|V, kv_heads,
    head_dim]``.
    """
    tensor = TensorSpec(name="kv", shape=(2, num_kv_heads, head_dim), dtype=dtype)
    return KvFormat(model=model, block_tokens=block_tokens, layers=((tensor,),) * num_layers)


def abbreviate(description: str) -> str:
    """A format's description for people: layers that follow each other and are alike are told once."""
    head, bar, layers = description.rpartition("|")
    runs = ((layer, len(list(run))) for layer, run in groupby(layers.split(";")))
    return head + bar + ";".join(layer if length == 1 else f"{length} x {layer}" for layer, length in runs)
