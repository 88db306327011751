"""Transfers that share a line fairly, in closed form: no loop, no blocks, hundreds of thousands in seconds.

All active transfers progress alike, so each is done when the *service per transfer* has grown by its size since it began.
Only arrivals and completions are events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from pdd.core.units import BytesPerSecond, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Asked for at ``at``."""

    at: Seconds
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """Both from when it was asked for: until a connection was free, and until all had arrived."""

    waited_s: Seconds
    took_s: Seconds


def share_line(
    transfers: Sequence[Transfer], *, rate: BytesPerSecond, num_connections: int, latency: Seconds
) -> list[Transferred]:
    """Transfers in order of asking; each needs one of ``num_connections``, first come, first served.

    ``latency`` is added to each: what it takes however small it is.
    """
    line = _Line(rate, num_connections)
    for number, transfer in enumerate(transfers):
        line.advance(transfer.at)
        line.ask(number, transfer.num_bytes)
    line.advance(inf)
    return [
        Transferred(
            waited_s=Seconds(line.began[number] - transfer.at),
            took_s=Seconds(line.ended[number] - transfer.at + latency),
        )
        for number, transfer in enumerate(transfers)
    ]


class _Line:
    def __init__(self, rate: float, num_connections: int) -> None:
        self._rate = rate
        self._num_connections = num_connections
        self._now = 0.0
        self._service = 0.0
        """Bytes that a transfer has got that was active since the beginning."""
        self._active: list[tuple[float, int]] = []
        """Heap of (service at which it is done, transfer)."""
        self._waiting: deque[tuple[int, float]] = deque()
        self.began: dict[int, float] = {}
        self.ended: dict[int, float] = {}

    def ask(self, number: int, num_bytes: float) -> None:
        if len(self._active) < self._num_connections:
            self._begin(number, num_bytes)
        else:
            self._waiting.append((number, num_bytes))

    def advance(self, moment: float) -> None:
        """Lets time pass, completing what is done before ``moment``."""
        while self._active:
            done_at, number = self._active[0]
            end = self._now + (done_at - self._service) * len(self._active) / self._rate
            if end > moment:
                self._service += (moment - self._now) * self._rate / len(self._active)
                break
            heappop(self._active)
            self._now, self._service = end, done_at
            self.ended[number] = end
            if self._waiting:
                self._begin(*self._waiting.popleft())
        self._now = moment

    def _begin(self, number: int, num_bytes: float) -> None:
        self.began[number] = self._now
        heappush(self._active, (self._service + num_bytes, number))
