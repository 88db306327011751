# pyright: basic
"""Causal attention over the paged cache that gives each query row the same bits, however its sequence is split.

Each sequence is computed by itself, over fixed tiles of its context: scores tile by tile, one softmax over the whole
padded row (masked slots weigh exactly 0, and trailing zeros change no bit of its sum), then the weighted values tile by
tile in order. Products always have at least ``MIN_QUERY_ROWS`` rows: below that MKL takes another path with other
rounding.

A sequence's blocks are copied together first, even where they are neighbours: reading them once in a row and
multiplying from the processor's cache is three times faster than multiplying where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pdd.engine.embedded.paged_cache import PagedCache

MIN_QUERY_ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive query rows of one sequence: rows ``first_row ... first_row + num_rows`` of the step, at positions
    from ``first_position``.

    ``blocks`` are its context's, padded to whole tiles with any block, as an index tensor. ``mask`` is
    ``[num_rows, num_tiles * tile_tokens]``, 0 or -inf, None for a single row (whose context just ends).
    """

    first_row: int
    num_rows: int
    first_position: int
    num_tiles: int
    blocks: Tensor
    mask: Tensor | None


def make_segment(
    cache: PagedCache, block_table: Sequence[int], *, first_row: int, num_rows: int, first_position: int
) -> Segment:
    """Prepares what all layers share."""
    end = first_position + num_rows
    num_tiles = -(-end // cache.tile_tokens)
    blocks = list(block_table[: num_tiles * cache.blocks_per_tile])
    padding = [blocks[0]] * (num_tiles * cache.blocks_per_tile - len(blocks))
    mask = None
    if num_rows > 1:
        hidden = torch.arange(num_tiles * cache.tile_tokens)[None, :] > torch.arange(first_position, end)[:, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    return Segment(
        first_row=first_row,
        num_rows=num_rows,
        first_position=first_position,
        num_tiles=num_tiles,
        blocks=torch.tensor(blocks + padding),
        mask=mask,
    )


def attend(cache: PagedCache, layer: int, query: Tensor, segments: Sequence[Segment]) -> Tensor:
    """``query [rows, heads * head_dim]``, scaled -> ``[rows, heads * head_dim]``; rows of no segment give zeros.

    The keys and values of all segments must be in the cache already.
    """
    shape = cache.shape
    group = shape.num_heads // shape.num_kv_heads
    grouped = query.view(query.shape[0], shape.num_kv_heads, group, shape.head_dim)
    output = torch.zeros_like(grouped)
    for segment in segments:
        rows = slice(segment.first_row, segment.first_row + segment.num_rows)
        # [kv_heads, group * rows, head_dim]: the query heads that share a key head are rows of one product
        packed = grouped[rows].permute(1, 2, 0, 3).reshape(shape.num_kv_heads, -1, shape.head_dim)
        mixed = _attend_segment(cache, layer, packed, segment)
        output[rows] = mixed.view(shape.num_kv_heads, group, segment.num_rows, shape.head_dim).permute(2, 0, 1, 3)
    return output.view(query.shape)


def _attend_segment(cache: PagedCache, layer: int, query: Tensor, segment: Segment) -> Tensor:
    num_rows = query.shape[1]
    if num_rows < MIN_QUERY_ROWS:
        query = functional.pad(query, (0, 0, 0, MIN_QUERY_ROWS - num_rows))
    keys, values = _keys_and_values(cache, layer, segment)
    scores = _concatenate([torch.bmm(query, tile) for tile in keys.unbind()])
    _hide_future(scores, segment)
    weights = torch.softmax(scores, -1)
    mixed = None
    for part, tile in zip(weights.split(cache.tile_tokens, -1), values.unbind(), strict=True):
        mixed = torch.bmm(part, tile) if mixed is None else mixed.baddbmm_(part, tile)
    assert mixed is not None
    return mixed[:, :num_rows]


def _hide_future(scores: Tensor, segment: Segment) -> None:
    if segment.mask is None:
        scores[:, :, segment.first_position + 1 :] = -torch.inf
        return
    kv_heads, num_rows, context = scores.shape
    group = num_rows // segment.num_rows
    visible = scores[:, : group * segment.num_rows].view(kv_heads, group, segment.num_rows, context)
    visible += segment.mask


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _keys_and_values(cache: PagedCache, layer: int, segment: Segment) -> tuple[Tensor, Tensor]:
    """Keys ``[tiles, kv_heads, head_dim, tile_tokens]`` and values ``[tiles, kv_heads, tile_tokens,
    head_dim]``, fresh.
    """
    gathered = cache.pool[layer].index_select(0, segment.blocks)
    tiles = gathered.view(segment.num_tiles, cache.tile_tokens, 2, cache.shape.num_kv_heads, cache.shape.head_dim)
    return tiles[:, :, 0].permute(0, 2, 3, 1), tiles[:, :, 1].permute(0, 2, 1, 3)
