"""How fast a peer acknowledges, measured over the last seconds in which there was something to acknowledge."""

from __future__ import annotations

from collections import deque

from pdd.core.units import Bytes, BytesPerSecond, Seconds

RATE_WINDOW = Seconds(2.0)
"""Over so much busy time nodes measure the rate of a line."""
_SAMPLES_PER_WINDOW = 64


class RateMeter:
    """A sliding window over *busy* time: idle time neither ages samples nor lowers the rate.

    A sample covers the busy time since the one before it; short ones are merged, so that their number is bounded
    however small and fast the blocks are. The last sample is kept however old, so that a line slower than one block per
    window has a rate too, and a stalled line one that goes towards zero. Times are the caller's monotonic clock.
    """

    def __init__(self, window: Seconds) -> None:
        self._window = window
        self._busy_time = 0.0
        self._busy_since: float | None = None
        self._samples: deque[tuple[float, float, int]] = deque()
        self._num_bytes = 0
        self._last_end = 0.0

    def busy(self, now: Seconds) -> None:
        """From now on something is unacknowledged. Idempotent."""
        if self._busy_since is None:
            self._busy_since = now

    def idle(self, now: Seconds) -> None:
        """From now on nothing is. Idempotent."""
        self._busy_time = self._busy_at(now)
        self._busy_since = None

    def acknowledged(self, now: Seconds, num_bytes: Bytes) -> None:
        """The peer has confirmed ``num_bytes``."""
        end = self._busy_at(now)
        start, merged = self._last_end, int(num_bytes)
        if self._samples and end - self._samples[-1][0] < self._window / _SAMPLES_PER_WINDOW:
            start, _, before = self._samples.pop()
            merged += before
        self._samples.append((start, end, merged))
        self._num_bytes += num_bytes
        self._last_end = end
        self._expire(end)

    def rate(self, now: Seconds) -> BytesPerSecond | None:
        """None before anything was acknowledged."""
        if not self._samples:
            return None
        busy_time = self._busy_at(now)
        self._expire(busy_time)
        span = busy_time - self._samples[0][0]
        return BytesPerSecond(self._num_bytes / span) if span > 0 else None

    def _expire(self, busy_time: float) -> None:
        while len(self._samples) > 1 and self._samples[0][1] < busy_time - self._window:
            self._num_bytes -= self._samples.popleft()[2]

    def _busy_at(self, now: Seconds) -> float:
        return self._busy_time + (now - self._busy_since if self._busy_since is not None else 0.0)
