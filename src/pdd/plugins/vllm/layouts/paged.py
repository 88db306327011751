# pyright: basic
"""A range of a sequence's tokens in paged caches: which tokens of which blocks, layer by layer.

Nothing loops over tokens: a range is at most three *runs* of blocks (the end of one, whole ones, the beginning of one),
each of them one or two copies a layer. Blocks are the attention kernel's, of which several may make one of the blocks
that vLLM's scheduler counts in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The same tokens ``[first, end)`` of each of ``blocks``."""

    blocks: tuple[int, ...]
    first: int
    end: int

    @property
    def num_tokens(self) -> int:
        return len(self.blocks) * (self.end - self.first)

    @property
    def adjacent(self) -> slice | None:
        """The blocks as a slice if they are neighbours, usual in a cache that isn't full: spares a copy."""
        start = self.blocks[0]
        if all(block == start + index for index, block in enumerate(self.blocks)):
            return slice(start, start + len(self.blocks))
        return None


class LayerCache(Protocol):
    """One layer's memory.

    ``content`` is ``[run's blocks, run's tokens, K|V, heads, head_dim]`` on the cache's device.
    """

    def gather(self, run: Run, content: Tensor) -> None:
        """Copies from the cache into ``content``."""
        ...

    def scatter(self, run: Run, content: Tensor) -> None:
        """Copies from ``content`` into the cache."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What all layers of one rank's cache have in common. ``kernel_tokens`` divides ``block_tokens``."""

    block_tokens: int
    kernel_tokens: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class PagedLayout:
    """See ``CacheLayout``. May be used by several threads at once, as long as what they touch differs."""

    __slots__ = ("_layers", "_shape", "label")

    def __init__(self, layers: Sequence[LayerCache], shape: CacheShape, *, label: str) -> None:
        self._layers = tuple(layers)
        self._shape = shape
        self.label = label

    @property
    def block_tokens(self) -> int:
        return self._shape.block_tokens

    def read(self, cache_blocks: Sequence[int], first_token: int, num_tokens: int) -> Tensor:
        shape = self._shape
        size = (len(self._layers), num_tokens, 2, shape.num_kv_heads, shape.head_dim)
        content = torch.empty(size, dtype=shape.dtype, device=shape.device)
        for run, part in self._runs(cache_blocks, first_token, content):
            for layer, cache in enumerate(self._layers):
                cache.gather(run, part[layer])
        return content.cpu()

    def write(self, cache_blocks: Sequence[int], first_token: int, content: Tensor) -> None:
        content = content.to(self._shape.device)
        for run, part in self._runs(cache_blocks, first_token, content):
            for layer, cache in enumerate(self._layers):
                cache.scatter(run, part[layer])
        if content.device.type != "cpu":  # the forward pass reads it on another stream
            torch.accelerator.current_stream(content.device).synchronize()

    def _runs(self, cache_blocks: Sequence[int], first_token: int, content: Tensor) -> Iterator[tuple[Run, Tensor]]:
        """Each with its part of ``content``: ``[layers, blocks, tokens, K|V, heads, head_dim]``."""
        kernel_tokens = self._shape.kernel_tokens
        blocks = split_blocks(cache_blocks, self._shape.block_tokens // kernel_tokens)
        done = 0
        for run in split_runs(blocks, kernel_tokens, first_token, content.shape[1]):
            part = content[:, done : done + run.num_tokens]
            yield run, part.unflatten(1, (len(run.blocks), run.end - run.first))
            done += run.num_tokens


def split_blocks(cache_blocks: Sequence[int], num_parts: int) -> Sequence[int]:
    """The attention kernel's blocks that make up the scheduler's."""
    if num_parts == 1:
        return cache_blocks
    return [block * num_parts + part for block in cache_blocks for part in range(num_parts)]


def split_runs(blocks: Sequence[int], block_tokens: int, first_token: int, num_tokens: int) -> Iterator[Run]:
    """The range ``[first_token, first_token + num_tokens)`` of the sequence that ``blocks`` hold from its start."""
    end_token = first_token + num_tokens
    while first_token < end_token:
        index, first = divmod(first_token, block_tokens)
        end = min(block_tokens, first + end_token - first_token)
        is_whole = end - first == block_tokens
        num_blocks = (end_token - first_token) // block_tokens if is_whole else 1
        yield Run(blocks=tuple(blocks[index : index + num_blocks]), first=first, end=end)
        first_token += num_blocks * (end - first)
