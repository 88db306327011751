# pyright: basic
"""Finds out where an engine keeps each element of K and V by having it write numbers and looking where they went.

The engine's own write is what its forward pass uses, so what it says holds for this very build, device and instruction
set. Everything happens in the last block of a cache that is not in use yet; what was there is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pdd.core.errors import ConfigError

WriteKv = Callable[[Tensor, Tensor, Tensor], None]
"""``(keys, values, slots)``: stores K and V, ``[tokens, heads, head_dim]``, in one layer's slots (block * length +
offset).
"""

_BASE = 256  # an element's number goes in digits that even bfloat16 holds exactly
_EMPTY = -1


def learn_positions(cache: Tensor, num_heads: int, head_dim: int, write: WriteKv) -> Tensor:
    """``[tokens, K|V, heads, head_dim]``: the index of each element in a block's ``[heads, tokens, content]``, as
    large.

    Raises:
        ConfigError: the engine stores something else than the values as they are, each in a place of its own.
    """
    num_tokens = cache.shape[2]
    shape = (num_tokens, 2, num_heads, head_dim)
    numbers = torch.arange(num_tokens * 2 * num_heads * head_dim, device=cache.device)
    found = torch.zeros_like(numbers)
    weight = 1
    with _last_block(cache) as block:
        while weight < len(numbers):
            block.fill_(_EMPTY)
            _write_block(cache, (numbers // weight % _BASE).view(shape).to(cache.dtype), write)
            cells = block.flatten()
            if not torch.equal(cells, cells.round().clamp(_EMPTY, _BASE - 1)):
                raise _not_learnable(cache, "it changes the values that it stores")
            found += cells.to(torch.int64) * weight
            weight *= _BASE
    if not torch.equal(found.sort().values, numbers):
        raise _not_learnable(cache, "not every value has one place of its own in its block")
    return found.argsort().view(shape)


def check_positions(
    cache: Tensor, num_heads: int, head_dim: int, write: WriteKv, read: Callable[[int], Tensor]
) -> None:
    """Has the engine write its tokens one half at a time, as it does when decoding; ``read(block)`` must find them all.

    ``read`` gives ``[tokens, K|V, heads, head_dim]``.

    Raises:
        ConfigError: it doesn't.
    """
    size = (cache.shape[2], 2, num_heads, head_dim)
    content = torch.rand(size, generator=torch.Generator().manual_seed(0)).to(cache.dtype).to(cache.device)
    with _last_block(cache):
        for start in (1, 0):
            _write_block(cache, content, write, slice(start, None, 2))
        found = read(cache.shape[0] - 1)
    if not torch.equal(found.to(cache.device), content):
        raise _not_learnable(cache, "where a value lies depends on what is written with it")


@contextmanager
def _last_block(cache: Tensor) -> Iterator[Tensor]:
    block = cache[-1]
    before = block.clone()
    try:
        yield block
    finally:
        block.copy_(before)


def _write_block(cache: Tensor, content: Tensor, write: WriteKv, tokens: slice = slice(None)) -> None:
    first_slot = (cache.shape[0] - 1) * cache.shape[2]
    slots = torch.arange(first_slot, first_slot + cache.shape[2], device=cache.device)[tokens].contiguous()
    write(content[tokens, 0].contiguous(), content[tokens, 1].contiguous(), slots)


def _not_learnable(cache: Tensor, why: str) -> ConfigError:
    return ConfigError(
        f"vLLM keeps KV on {cache.device} in a way that can't be exchanged: {why} "
        f"(a layer's cache is {cache.dtype} {list(cache.shape)})"
    )
