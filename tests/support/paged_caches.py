"""Made-up attention layers of an engine like vLLM: they keep K and V where a table says and write them as such layers
do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Keep = Callable[[Tensor], Tensor]


@dataclass
class MadeUpLayer:
    """An attention layer and its implementation in one.

    ``positions`` is ``[tokens, K|V, heads, head_dim]``: where an element lies in the ``[heads, tokens, content]`` of
    its block. ``keep`` makes of a value what is kept.
    """

    kv_cache: Tensor
    positions: Tensor
    keep: Keep = field(default=lambda values: values)

    @property
    def impl(self) -> MadeUpLayer:
        return self

    def do_kv_cache_update(self, layer: object, keys: Tensor, values: Tensor, cache: Tensor, slots: Tensor) -> None:
        assert layer is self
        assert slots.is_contiguous(), "vLLM's operations believe that they are"
        num_tokens = cache.shape[2]
        content = self.keep(torch.stack((keys, values), dim=1))
        for token, slot in enumerate(slots.tolist()):
            block, offset = divmod(slot, num_tokens)
            places = torch.unravel_index(self.positions[offset], cache.shape[1:])
            cache[block].index_put_(places, content[token].to(cache.dtype))


def standard_positions(num_tokens: int, num_heads: int, head_dim: int) -> Tensor:
    """Content is K, then V."""
    cells = torch.arange(num_heads * num_tokens * 2 * head_dim).view(num_heads, num_tokens, 2, head_dim)
    return cells.permute(1, 2, 0, 3).contiguous()


def vec_positions(num_tokens: int, num_heads: int, head_dim: int) -> Tensor:
    """Per head K transposed, then V."""
    cells = torch.arange(num_heads * num_tokens * 2 * head_dim).view(num_heads, 2, -1)
    keys = cells[:, 0].view(num_heads, head_dim, num_tokens).permute(2, 0, 1)
    values = cells[:, 1].view(num_heads, num_tokens, head_dim).permute(1, 0, 2)
    return torch.stack((keys, values), dim=1)


def shuffled_positions(num_tokens: int, num_heads: int, head_dim: int, *, seed: int) -> Tensor:
    """Anywhere in the block."""
    size = (num_tokens, 2, num_heads, head_dim)
    return torch.randperm(num_heads * num_tokens * 2 * head_dim, generator=torch.Generator().manual_seed(seed)).view(
        size
    )


PHYSICAL_ORDERS = {  # of the axes layer, block, head, token, content: all that vLLM 0.32 knows
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}


def allocate(shape: tuple[int, int, int, int, int], order: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Each layer's cache as ``[blocks, heads, tokens, content]`` out of one allocation; ``shape`` is LBHNC, content
    random.
    """
    axes = PHYSICAL_ORDERS[order]
    memory = torch.rand([shape[axis] for axis in axes], generator=torch.Generator().manual_seed(1)).to(dtype)
    return list(memory.permute([axes.index(axis) for axis in range(5)]))
