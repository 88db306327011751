"""Finds stop strings in a text that arrives in pieces. Pure: text in, releasable text out.

Text that may still become a stop string is withheld; everything else is released at once. What is released in total
depends only on the text, never on how it was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """One answer's scanner. The stop string whose *end* comes first wins; of those ending together the longest does."""

    __slots__ = ("_matched", "_stops", "_withheld")

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops`` are non-empty strings; none at all releases everything at once."""
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._withheld = ""
        self._matched = False

    @property
    def matched(self) -> bool:
        """A stop string was found: the text ended before it, and nothing more is released."""
        return self._matched

    def feed(self, text: str) -> str:
        """Adds ``text``; returns what the client may now see."""
        if self._matched or not self._stops:
            return "" if self._matched else text
        window = self._withheld + text
        start = self._first_match(window)
        if start is not None:
            self._matched = True
            self._withheld = ""
            return window[:start]
        keep = self._num_possible_beginning(window)
        self._withheld = window[len(window) - keep :]
        return window[: len(window) - keep]

    def flush(self) -> str:
        """The text has ended: what was withheld turned out not to be a stop string."""
        withheld, self._withheld = self._withheld, ""
        return withheld

    def _first_match(self, window: str) -> int | None:
        """Where the winning stop string starts. It can't have begun before the window: that text would be withheld."""
        found = [(at + len(stop), at) for stop in self._stops if (at := window.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _num_possible_beginning(self, window: str) -> int:
        """Length of the longest end of ``window`` with which some stop string begins; no whole one is in there."""
        longest = min(len(window), len(self._stops[0]) - 1)
        for size in range(longest, 0, -1):
            tail = window[len(window) - size :]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
