# pyright: basic
"""Canonical blocks, as the node has them, as tensors: whole ones on the wire, a rank's heads and the cache's dtype in
an engine.

A wire block is, in this order and without gaps, ``[layers, block_tokens, K|V, kv_heads, head_dim]``
(``core.kv_format``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType, KvFormat

_TORCH_DTYPES = {DType.FLOAT32: torch.float32, DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHeads:
    """Which KV heads a tensor parallel rank holds: ``[first, first + count)`` of ``num_kv_heads``, as vLLM deals them
    out.

    With more ranks than heads, consecutive ranks hold copies of one head.
    """

    num_kv_heads: int
    num_ranks: int
    rank: int

    def __post_init__(self) -> None:
        more, fewer = max(self.num_kv_heads, self.num_ranks), min(self.num_kv_heads, self.num_ranks)
        if more % fewer != 0:
            raise ConfigError(
                f"--tensor-parallel-size is {self.num_ranks}, the model has {self.num_kv_heads} KV heads; "
                "one must be a multiple of the other"
            )

    @property
    def count(self) -> int:
        return max(1, self.num_kv_heads // self.num_ranks)

    @property
    def first(self) -> int:
        return self.rank * self.num_kv_heads // self.num_ranks

    @property
    def num_copies(self) -> int:
        """How many ranks hold the same heads."""
        return max(1, self.num_ranks // self.num_kv_heads)

    def merge(self, parts: Sequence[Tensor]) -> Tensor:
        """All heads, from what each rank holds, ``[..., heads of a rank, head_dim]``, in order of rank."""
        return torch.cat(tuple(parts[:: self.num_copies]), dim=-2)


class WireBlocks:
    """A deployment's blocks as one rank sees them; ``dtype`` is its cache's."""

    __slots__ = ("_shape", "_wire_dtype", "block_tokens", "dtype", "heads")

    def __init__(self, kv_format: KvFormat, heads: RankHeads, dtype: torch.dtype, *, convert_dtype: bool) -> None:
        """Raises ConfigError: the format is not K and V of equal layers, or of another dtype without leave
        to convert.
        """
        spec = kv_format.layers[0][0]
        if any(layer != (spec,) for layer in kv_format.layers) or len(spec.shape) != 3 or spec.shape[0] != 2:
            raise ConfigError(
                f"KV format {kv_format.description}: expected K and V of the same shape, 2 x kv_heads x head_dim, in each layer"
            )
        if spec.shape[1] != heads.num_kv_heads:
            raise ConfigError(f"KV format: {spec.shape[1]} KV heads, the engine's model has {heads.num_kv_heads}")
        self._wire_dtype = _TORCH_DTYPES[spec.dtype]
        if self._wire_dtype != dtype and not convert_dtype:
            raise ConfigError(
                f"the deployment exchanges KV in {spec.dtype}, this engine keeps it in {str(dtype).removeprefix('torch.')}; "
                f"start it with --dtype {spec.dtype}, or let it convert, which may change answers, "
                'with "convert_dtype": true in kv_connector_extra_config'
            )
        self._shape = (len(kv_format.layers), kv_format.block_tokens, *spec.shape)
        self.block_tokens = kv_format.block_tokens
        self.heads = heads
        self.dtype = dtype

    def decode(self, content: memoryview) -> Tensor:
        """The rank's part, ``[layers, block_tokens, K|V, heads of the rank, head_dim]``; a view of ``content`` if it
        can be.
        """
        whole = torch.frombuffer(content, dtype=self._wire_dtype).view(self._shape)
        return whole[..., self.heads.first : self.heads.first + self.heads.count, :].to(self.dtype)

    def encode(self, block: Tensor, target: memoryview) -> None:
        """Writes ``block``, which has all heads (see ``RankHeads.merge``), into ``target``."""
        torch.frombuffer(target, dtype=self._wire_dtype).view(self._shape).copy_(block)
