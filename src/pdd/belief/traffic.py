"""What the requests before have taught: how long answers are, and how many requests may still be filtered."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

WINDOW = 512
"""Answers remembered."""
MIN_ANSWERS = 32
"""Fewer than these are no distribution."""
LIKELY_QUANTILE = 0.9
MAX_SAVED_UP = 4.0
"""So many filtered requests in a row at most, however few there were before."""


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


class FilterShare:
    """Keeps the filtered part of all requests at or below ``max_share``, from the first request on. Not thread-safe."""

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._saved_up = 0.0

    @property
    def allows_one(self) -> bool:
        return self._saved_up >= 1.0

    def saw_request(self) -> None:
        """Every request, filtered or not, adds its share."""
        self._saved_up = min(MAX_SAVED_UP, self._saved_up + self._max_share)

    def filtered_one(self) -> None:
        """Call only while ``allows_one``."""
        self._saved_up -= 1.0
