"""How long answers have been lately."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

WINDOW = 512
"""Answers remembered."""
MIN_ANSWERS = 32
"""Fewer than these are no distribution."""
LIKELY_QUANTILE = 0.9


class OutputLengths:
    """The lengths of the last answers, in tokens. Not thread-safe."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._ordered: list[int] = []

    def add(self, num_tokens: int) -> None:
        """An answer has ended of its own accord."""
        self._recent.append(num_tokens)
        insort(self._ordered, num_tokens)
        if len(self._recent) > WINDOW:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]

    def likely(self, max_tokens: int) -> int:
        """What most answers stay below, and this one does in any case: ``max_tokens`` while too few are known."""
        if len(self._ordered) < MIN_ANSWERS:
            return max_tokens
        return min(max_tokens, self._ordered[int(LIKELY_QUANTILE * (len(self._ordered) - 1))])
