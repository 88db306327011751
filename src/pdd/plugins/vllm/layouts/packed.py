# pyright: basic
"""Caches whose order within a block is no matter of strides (the CPU's AMX tiles, for one): a table says where each
element lies.

``positions`` is ``[tokens, K|V, heads, head_dim]``: the element's index in the block's ``[heads, tokens, content]``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pdd.core.errors import ConfigError
from pdd.plugins.vllm.layouts.paged import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """See ``LayerCache``. ``cells`` is the cache as ``[blocks, heads * tokens * content]``, a view."""

    cells: Tensor
    positions: Tensor

    def gather(self, run: Run, content: Tensor) -> None:
        positions = self.positions[run.first : run.end]
        for block, found in zip(run.blocks, content, strict=True):
            found.copy_(self.cells[block].index_select(0, positions.flatten()).view(found.shape))

    def scatter(self, run: Run, content: Tensor) -> None:
        positions = self.positions[run.first : run.end]
        for block, new in zip(run.blocks, content, strict=True):
            self.cells[block].scatter_(0, positions.flatten(), new.flatten())


def view_packed(cache: Tensor, positions: Tensor) -> PackedLayer:
    """Raises ConfigError: a block's ``[heads, tokens, content]`` are not dense in memory."""
    if not cache[0].is_contiguous():
        raise ConfigError(
            f"vLLM keeps KV on {cache.device} packed and blocks not dense (strides {cache.stride()}), which can't be exchanged; "
            "try another VLLM_KV_CACHE_LAYOUT, LBHNC for one"
        )
    return PackedLayer(cells=cache.flatten(1), positions=positions)
