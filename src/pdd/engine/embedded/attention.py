# pyright: basic
"""Causal attention over the paged cache that gives each query row the same bits, however its sequence is split.

Each sequence is computed by itself, over fixed tiles of the cache: scores tile by tile, one softmax over the whole
padded row (masked slots weigh exactly 0, and trailing zeros change no bit of its sum), then the weighted values tile by
tile in order. Products always have at least ``MIN_QUERY_ROWS`` rows: below that MKL takes another path with other rounding.
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
class ContiguousTile:
    """A tile whose blocks are neighbours in the pool: read in place, from slot ``start`` on."""

    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatteredTile:
    """A tile that is gathered first. ``blocks`` is an index tensor of one tile's length; masked ones may be any."""

    blocks: Tensor


Tile = ContiguousTile | ScatteredTile


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive query rows of one sequence: rows ``first_row ... first_row + num_rows`` of the step, at positions from ``first_position``.

    ``mask`` is ``[num_rows, tiles * tile_tokens]``, 0 or -inf, None for a single row (whose context just ends).
    """

    first_row: int
    num_rows: int
    first_position: int
    tiles: tuple[Tile, ...]
    mask: Tensor | None


def make_segment(
    cache: PagedCache, block_table: Sequence[int], *, first_row: int, num_rows: int, first_position: int
) -> Segment:
    """Prepares what all layers share."""
    end = first_position + num_rows
    tiles = tuple(_tile(cache, block_table, start) for start in range(0, end, cache.tile_tokens))
    mask = None
    if num_rows > 1:
        positions = torch.arange(len(tiles) * cache.tile_tokens)
        hidden = positions[None, :] > torch.arange(first_position, end)[:, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    return Segment(first_row=first_row, num_rows=num_rows, first_position=first_position, tiles=tiles, mask=mask)


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
    keys_and_values = [_keys_and_values(cache, layer, tile) for tile in segment.tiles]
    scores = _concatenate([torch.bmm(query, keys) for keys, _ in keys_and_values])
    _hide_future(scores, segment)
    weights = torch.softmax(scores, -1)
    mixed = None
    for index, (_, values) in enumerate(keys_and_values):
        part = weights[:, :, index * cache.tile_tokens : (index + 1) * cache.tile_tokens]
        mixed = torch.bmm(part, values) if mixed is None else mixed.baddbmm_(part, values)
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


def _tile(cache: PagedCache, block_table: Sequence[int], start_token: int) -> Tile:
    first = start_token // cache.block_tokens
    blocks = list(block_table[first : first + cache.blocks_per_tile])
    if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
        return ContiguousTile(start=blocks[0] * cache.block_tokens)
    padding = [blocks[0]] * (cache.blocks_per_tile - len(blocks))
    return ScatteredTile(blocks=torch.tensor(blocks + padding))


def _keys_and_values(cache: PagedCache, layer: int, tile: Tile) -> tuple[Tensor, Tensor]:
    """Views: keys ``[kv_heads, head_dim, tile]`` and values ``[kv_heads, tile, head_dim]``."""
    match tile:
        case ContiguousTile(start=start):
            slots, first = cache.pool[layer], start
        case ScatteredTile(blocks=blocks):
            slots, first = cache.pool[layer].index_select(0, blocks), 0
    heads, size, length = cache.shape.num_kv_heads, cache.shape.head_dim, cache.tile_tokens
    per_token = 2 * heads * size
    offset = slots.storage_offset() + first * per_token
    keys = slots.as_strided((heads, size, length), (size, 1, per_token), offset)
    values = slots.as_strided((heads, length, size), (size, per_token, 1), offset + heads * size)
    return keys, values
