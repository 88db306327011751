# pyright: basic
"""The bytes of the paged KV cache: one pool for all layers, whose blocks are canonical slabs.

``[layers, blocks, block_tokens, K|V, kv_heads, head_dim]`` in float32: a block's slice of one layer is exactly that
layer's part of the block on the wire, so import and export are plain copies. Owned by the compute thread.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pdd.core.kv_format import KvFormat
from pdd.engine.models.sources import LlamaShape

_MIN_TILE_TOKENS = 256


class PagedCache:
    """``num_blocks`` blocks.

    Masked slots are read too (and weigh exactly 0), so everything in the pool must stay finite: it starts as zeros.
    """

    __slots__ = ("block_tokens", "blocks_per_tile", "num_blocks", "pool", "shape", "tile_tokens")

    def __init__(self, shape: LlamaShape, kv_format: KvFormat, num_blocks: int) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_tokens = kv_format.block_tokens
        self.blocks_per_tile = -(-_MIN_TILE_TOKENS // self.block_tokens)
        self.tile_tokens = self.blocks_per_tile * self.block_tokens
        size = (shape.num_layers, num_blocks, self.block_tokens, 2, shape.num_kv_heads, shape.head_dim)
        self.pool = torch.empty(size).zero_()  # touches every page now: no later surprise when memory is short

    def read_block(self, block: int, target: memoryview) -> None:
        """Copies a block out into ``target``, ``block_bytes`` long."""
        _as_tensor(target).view(self.pool[:, block].shape).copy_(self.pool[:, block])

    def write_block(self, block: int, source: memoryview) -> None:
        """Copies a block in from ``source``, ``block_bytes`` long."""
        self.pool[:, block].copy_(_as_tensor(source).view(self.pool[:, block].shape))

    def layer_slots(self, layer: int) -> Tensor:
        """``[slots, K|V, kv_heads, head_dim]``, a view; slot = block * block_tokens + offset."""
        return self.pool[layer].flatten(0, 1)


def _as_tensor(buffer: memoryview) -> Tensor:
    return torch.frombuffer(buffer, dtype=torch.float32)
