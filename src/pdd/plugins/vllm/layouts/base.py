"""The seam between the workers' side and a backend's memory: one layer's paged cache, read and written by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class CacheLayout(Protocol):
    """One rank's cache of every layer. ``paged`` implements it; ``choose`` makes one.

    A *canonical* tensor is ``[layers, tokens, 2, kv_heads, head_dim]`` on the CPU in the cache's dtype: K and V of
    whole tokens, the heads those that this rank holds. ``cache_blocks`` are a sequence's blocks from its start;
    ``first_token`` is counted from there too, and need not be the first of a block.
    """

    @property
    def block_tokens(self) -> int:
        """Tokens per cache block."""
        ...

    @property
    def label(self) -> str:
        """For the log: which layout, and whether it was ever run on such a device."""
        ...

    def read(self, cache_blocks: Sequence[int], first_token: int, num_tokens: int) -> Tensor:
        """A canonical copy of the tokens ``[first_token, first_token + num_tokens)``."""
        ...

    def write(self, cache_blocks: Sequence[int], first_token: int, content: Tensor) -> None:
        """Writes a canonical tensor's tokens from ``first_token`` on.

        Touches no other token's KV, in the same block neither.
        """
        ...
