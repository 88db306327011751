# pyright: basic
"""Packs one step's rows: which tokens, at which positions, into which slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pdd.core.ids import TokenId
from pdd.engine.embedded.attention import Segment, make_segment
from pdd.engine.embedded.linear import bucket_of
from pdd.engine.embedded.model import StepInput
from pdd.engine.embedded.paged_cache import PagedCache


class StepBuilder:
    """``add`` each sequence's part, then ``build`` once."""

    __slots__ = ("_cache", "_positions", "_sampled", "_segments", "_slots", "_token_ids")

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache
        self._token_ids: list[TokenId] = []
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._segments: list[Segment] = []
        self._sampled: list[int] = []

    def add(self, tokens: Sequence[TokenId], *, first_position: int, block_table: Sequence[int], sampled: bool) -> None:
        """Appends ``tokens`` of one sequence; ``sampled`` if the last one's logits are wanted."""
        size = self._cache.block_tokens
        first_row = len(self._token_ids)
        positions = range(first_position, first_position + len(tokens))
        self._segments.append(
            make_segment(
                self._cache, block_table, first_row=first_row, num_rows=len(tokens), first_position=first_position
            )
        )
        self._token_ids.extend(tokens)
        self._positions.extend(positions)
        self._slots.extend(block_table[position // size] * size + position % size for position in positions)
        if sampled:
            self._sampled.append(first_row + len(tokens) - 1)

    def build(self, buckets: Sequence[int]) -> StepInput:
        """Pads the rows to the next of ``buckets``."""
        num_rows = len(self._token_ids)
        padding = [0] * (bucket_of(buckets, num_rows) - num_rows)
        return StepInput(
            token_ids=torch.tensor(self._token_ids + padding),
            positions=torch.tensor(self._positions + padding),
            slots=torch.tensor(self._slots),
            segments=tuple(self._segments),
            sampled_rows=torch.tensor(self._sampled, dtype=torch.int64),
        )
