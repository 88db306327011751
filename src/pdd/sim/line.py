"""Lines as fluids: all transfers on a line share its rate evenly at every moment.

``FairShare`` is the arithmetic: each sharer has received the same since it began, so one number stands for all of them,
and a heap says who has all that it wanted. ``carry`` runs a list of transfers over one line with a pool of connections,
without any event loop: 200,000 of them in seconds. ``FluidLine`` puts the same under in-memory nodes.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pdd.core.units import Bytes, BytesPerSecond, Seconds

_WhatT = TypeVar("_WhatT")


class FairShare(Generic[_WhatT]):
    """Things of some size, served at once, each at an equal share of ``rate``. Times never go back."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._received = 0.0  # by each one that has been here since the last time that nobody was
        self._at = 0.0
        self._wanted: list[tuple[float, int, _WhatT]] = []
        self._num_begun = 0

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def rate(self) -> float:
        return self._rate

    def begin(self, now: float, size: float, what: _WhatT) -> None:
        """Something of ``size`` is served from now on."""
        self._pass_time(now)
        self._num_begun += 1
        heapq.heappush(self._wanted, (self._received + size, self._num_begun, what))

    def next_end(self) -> float | None:
        """When the next one has all of it, if nobody comes before; None if nobody will."""
        if not self._wanted or self._rate <= 0.0:
            return None
        return self._at + max(0.0, self._wanted[0][0] - self._received) * len(self._wanted) / self._rate

    def end(self, at: float) -> _WhatT:
        """The time of ``next_end`` has come: takes out the one whose end it is."""
        self._pass_time(at)
        wanted, _, what = heapq.heappop(self._wanted)
        # By rounding it may lack, or have, the last part of a byte: whoever else ends now must not have to wait for it.
        self._received = wanted if self._wanted else 0.0
        return what

    def set_rate(self, now: float, rate: float) -> None:
        """From now on the line has another rate; 0: it stands still."""
        self._pass_time(now)
        self._rate = rate

    def clear(self) -> None:
        """Nobody is served any more."""
        self._wanted.clear()
        self._received = 0.0

    def _pass_time(self, now: float) -> None:
        if self._wanted:
            self._received += max(0.0, now - self._at) * self._rate / len(self._wanted)
        self._at = max(self._at, now)


@dataclass(frozen=True, slots=True)
class Carried:
    """What became of one transfer: how long it waited for a connection, and how long it took from its arrival on."""

    waited_s: Seconds
    took_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryResult:
    """``transfers`` in order of arrival.

    ``busy_connection_s`` is connections times seconds; ``duration_s`` ends with the last.
    """

    transfers: tuple[Carried, ...]
    duration_s: Seconds
    busy_connection_s: float
    full_s: Seconds
    """How long all connections were in use."""


def carry(
    transfers: Iterable[tuple[float, float]], *, rate: BytesPerSecond, delay: Seconds, connections: int | None = None
) -> CarryResult:
    """Carries (arrival, bytes) over one line, in order of arrival, each on a connection of its own while it lasts.

    With all ``connections`` in use, the next one waits until the first of them is free; None: there is always one. A
    transfer ends one ``delay`` after its last byte was sent.
    """
    arrivals = deque(enumerate(transfers))
    share: FairShare[tuple[int, float, float]] = FairShare(rate)
    waiting: deque[tuple[int, float, float]] = deque()
    carried: dict[int, Carried] = {}
    busy = full = now = 0.0
    while arrivals or waiting or len(share):
        ends = share.next_end()
        before = now
        if arrivals and (ends is None or arrivals[0][1][0] <= ends):
            number, (at, size) = arrivals.popleft()
            now = max(now, at)
            busy, full = _tally(busy, full, now - before, len(share), connections)
            waiting.append((number, now, size))
        else:
            assert ends is not None
            now = ends
            busy, full = _tally(busy, full, now - before, len(share), connections)
            number, arrived, waited = share.end(now)
            carried[number] = Carried(Seconds(waited), Seconds(now + delay - arrived))
        while waiting and (connections is None or len(share) < connections):
            number, arrived, size = waiting.popleft()
            share.begin(now, size, (number, arrived, now - arrived))
    ordered = tuple(carried[number] for number in range(len(carried)))
    return CarryResult(transfers=ordered, duration_s=Seconds(now), busy_connection_s=busy, full_s=Seconds(full))


def _tally(busy: float, full: float, passed: float, in_use: int, connections: int | None) -> tuple[float, float]:
    return busy + passed * in_use, full + passed * (connections is not None and in_use >= connections)


_Call = Callable[[], None]


class FluidLine:
    """One direction of a line between in-memory nodes: ``sim.memory.line.Line``, shared evenly by those who send.

    ``rate`` may be changed at any time; it takes effect with the next block that comes or is through. At most
    ``connections`` blocks are on their way at once; more wait in order. Stalled, it takes what is sent and lets nothing
    arrive. ``jitter`` draws what each block's delay is longer by; none overtakes another. ``carried_bytes`` counts what
    was sent whole.
    """

    def __init__(
        self,
        *,
        rate: BytesPerSecond,
        delay: Seconds,
        connections: int | None = None,
        jitter: Callable[[], Seconds] | None = None,
    ) -> None:
        self.rate = rate
        self.delay = delay
        self.is_cut = False
        self.is_stalled = False
        self.carried_bytes = 0
        self._connections = connections
        self._jitter = jitter
        self._last_arrival = 0.0
        self._share: FairShare[tuple[Bytes, _Call, _Call]] = FairShare(rate)
        self._waiting: deque[tuple[Bytes, _Call, _Call]] = deque()
        self._held_up: list[_Call] = []
        self._epoch = 0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, num_bytes: Bytes, sent: _Call, arrived: _Call) -> None:
        """See ``sim.memory.line.Line``."""
        if self.is_cut:
            return
        self._waiting.append((num_bytes, sent, arrived))
        self._begin_waiting()
        self._set_timer()

    def after_delay(self, call: _Call) -> None:
        """See ``sim.memory.line.Line``."""
        asyncio.get_running_loop().call_later(self.delay, self._unless_stalled, call)

    def cut(self) -> None:
        """Loses everything that is on it or waits for it."""
        self.is_cut = True
        self._epoch += 1
        self._share.clear()
        self._waiting.clear()
        self._held_up.clear()
        self._set_timer()

    def restore(self) -> None:
        """See ``sim.memory.line.Line``."""
        self.is_cut = False

    def stall(self) -> None:
        """From now on nothing moves; nothing is lost."""
        self.is_stalled = True
        self._set_timer()

    def resume(self) -> None:
        """Everything goes on where it stood."""
        self.is_stalled = False
        self._set_timer()
        held_up, self._held_up = self._held_up, []
        for call in held_up:
            call()

    def _begin_waiting(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._waiting and (self._connections is None or len(self._share) < self._connections):
            block = self._waiting.popleft()
            self._share.begin(now, block[0], block)

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._share.set_rate(loop.time(), 0.0 if self.is_stalled else self.rate)
        ends = self._share.next_end()
        if self._timer is not None:
            if self._timer.when() == ends:
                return
            self._timer.cancel()
        self._timer = None if ends is None else loop.call_at(ends, self._end, ends)

    def _end(self, at: float) -> None:
        self._timer = None
        num_bytes, sent, arrived = self._share.end(at)
        self.carried_bytes += num_bytes
        self._last_arrival = max(
            self._last_arrival, at + self.delay + (0.0 if self._jitter is None else self._jitter())
        )
        asyncio.get_running_loop().call_at(self._last_arrival, self._unless_stalled, self._unless_cut(arrived))
        self._begin_waiting()
        sent()
        self._set_timer()

    def _unless_cut(self, arrived: _Call) -> _Call:
        epoch = self._epoch

        def arrive() -> None:
            if epoch == self._epoch:
                arrived()

        return arrive

    def _unless_stalled(self, call: _Call) -> None:
        """What became due while nothing moved happens in the same order afterwards."""
        if self.is_stalled:
            self._held_up.append(call)
        else:
            call()
