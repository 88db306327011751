"""The arithmetic of an emulated line: a rate, a fair queue, a delay. Told the time, it never reads a clock or waits.

A line carries *quanta*, small pieces of a flow's byte stream. One direction of a link is one ``Line``: quanta are taken
from backlogged flows in fair order, each occupies the line for its size divided by the rate, and arrives one delay
later. Within a flow nothing is ever reordered. All times are seconds on the line's own clock (``LineClock``), which
stands still while the line is stalled or frozen, so that afterwards everything goes on where it was.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pdd.core.units import BitsPerSecond, Bytes, Seconds, bytes_per_second

Flow = TypeVar("Flow", bound=Hashable)
Item = TypeVar("Item")

QUANTUM_S = Seconds(0.0015)
"""Line time of one quantum: shorter and Python's cost per quantum shows, longer and small messages wait for bulk."""
BURST_S = Seconds(0.005)
"""Line time that may be caught up on after waking late; timers of an event loop are only good to a millisecond."""
_MIN_QUANTUM = Bytes(1448)
_MAX_QUANTUM = Bytes(64 * 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSettings:
    """What can be changed on a live line. ``delay_s`` is one way; each quantum waits up to ``jitter_s`` more."""

    rate_bits_per_s: BitsPerSecond
    delay_s: Seconds = Seconds(0.0)
    jitter_s: Seconds = Seconds(0.0)

    @property
    def quantum(self) -> Bytes:
        """How much a flow may send before the next flow has its turn."""
        return Bytes(min(_MAX_QUANTUM, max(_MIN_QUANTUM, int(bytes_per_second(self.rate_bits_per_s) * QUANTUM_S))))

    @property
    def window(self) -> Bytes:
        """How much of one flow may be on the line or waiting at its end: the bandwidth-delay product and a little."""
        in_flight_s = self.delay_s + self.jitter_s + 2 * BURST_S
        return Bytes(int(bytes_per_second(self.rate_bits_per_s) * in_flight_s) + 2 * self.quantum)


class LineClock:
    """Time that can stand still. Starts running at 0 when real time is ``now``."""

    __slots__ = ("_offset", "_paused_at")

    def __init__(self, now: Seconds) -> None:
        self._offset = float(now)
        self._paused_at: float | None = None

    def now(self, real: Seconds) -> Seconds:
        """The line's time at real time ``real``."""
        return Seconds((real if self._paused_at is None else self._paused_at) - self._offset)

    @property
    def paused(self) -> bool:
        return self._paused_at is not None

    def pause(self, real: Seconds) -> None:
        """Stands still from now on; pausing twice changes nothing."""
        if self._paused_at is None:
            self._paused_at = real

    def resume(self, real: Seconds) -> None:
        """Goes on from where it stood."""
        if self._paused_at is not None:
            self._offset += real - self._paused_at
            self._paused_at = None

    def real_time_of(self, at: Seconds) -> Seconds | None:
        """When it will be ``at``; None while nobody can know."""
        return None if self._paused_at is not None else Seconds(at + self._offset)


class RateLimit:
    """When the next quantum may start. Up to ``BURST_S`` of line time that nobody used may be used late."""

    __slots__ = ("_free_at", "_rate")

    def __init__(self, rate: BitsPerSecond) -> None:
        self._rate = bytes_per_second(rate)
        self._free_at = 0.0

    @property
    def free_at(self) -> Seconds:
        return Seconds(self._free_at)

    def take(self, size: Bytes, now: Seconds) -> Seconds:
        """Occupies the line with ``size``; returns when its last bit leaves.

        Call it when ``free_at`` is not after ``now``.
        """
        self._free_at = max(self._free_at, now - BURST_S) + size / self._rate
        return Seconds(max(self._free_at, now))

    def change(self, rate: BitsPerSecond, now: Seconds) -> None:
        """The rest of what is leaving right now leaves at the new rate."""
        new_rate = bytes_per_second(rate)
        if self._free_at > now:
            self._free_at = now + (self._free_at - now) * self._rate / new_rate
        self._rate = new_rate


class FairQueue(Generic[Flow, Item]):
    """Start-time fair queueing: backlogged flows share bytes equally, and a flow that was idle is next but one.

    Each flow has at most one item here: whoever feeds it pushes the next one when this one was popped.
    """

    __slots__ = ("_finish_tags", "_heap", "_sequence", "_virtual_time")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Flow, Bytes, Item]] = []
        self._finish_tags: dict[Flow, int] = {}
        self._sequence = 0
        self._virtual_time = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, flow: Flow, size: Bytes, item: Item) -> None:
        start = max(self._finish_tags.get(flow, 0), self._virtual_time)
        self._finish_tags[flow] = start + size
        self._sequence += 1
        heapq.heappush(self._heap, (start, self._sequence, flow, size, item))

    def pop(self) -> tuple[Flow, Bytes, Item]:
        start, _, flow, size, item = heapq.heappop(self._heap)
        self._virtual_time = max(self._virtual_time, start)
        return flow, size, item

    def forget(self, flow: Flow) -> None:
        """Drops a flow that ended, with what it still had here."""
        self._finish_tags.pop(flow, None)
        kept = [entry for entry in self._heap if entry[2] != flow]
        if len(kept) != len(self._heap):
            heapq.heapify(kept)
            self._heap = kept


class Line(Generic[Flow, Item]):
    """One direction of a link.

    ``send`` queues a quantum; ``serve`` puts the next one on the line if the line is free; ``deliver`` takes the next
    one off at its far end; ``next_event`` says when to call these again. ``draw`` returns uniform chance in [0, 1).
    """

    __slots__ = ("_arrivals", "_draw", "_last_arrival", "_limit", "_queue", "_sequence", "_settings", "sent_bytes")

    def __init__(self, settings: LineSettings, draw: Callable[[], float]) -> None:
        self._settings = settings
        self._draw = draw
        self._limit = RateLimit(settings.rate_bits_per_s)
        self._queue: FairQueue[Flow, Item] = FairQueue()
        self._arrivals: list[tuple[float, int, Flow, Item]] = []
        self._last_arrival: dict[Flow, float] = {}
        self._sequence = 0
        self.sent_bytes = 0
        """What went onto the line so far."""

    @property
    def settings(self) -> LineSettings:
        return self._settings

    def change(self, settings: LineSettings, now: Seconds) -> None:
        """Applies to everything that is not on the line yet."""
        self._limit.change(settings.rate_bits_per_s, now)
        self._settings = settings

    def send(self, flow: Flow, size: Bytes, item: Item) -> None:
        """Queues one quantum; the flow's next one may follow once ``serve`` has returned this one."""
        self._queue.push(flow, size, item)

    def signal(self, flow: Flow, item: Item, now: Seconds) -> None:
        """Sends something too small to count (a handshake, a reset): it only takes the delay.

        It never overtakes what the flow already has on the line, only what it has queued.
        """
        self._depart(flow, item, now)

    def serve(self, now: Seconds) -> Item | None:
        """Puts the next quantum on the line and returns it; None if there is none or the line is still busy."""
        if not self._queue or self._limit.free_at > now:
            return None
        flow, size, item = self._queue.pop()
        self._depart(flow, item, self._limit.take(size, now))
        self.sent_bytes += size
        return item

    def deliver(self, now: Seconds) -> tuple[Flow, Item] | None:
        """Takes the next quantum that has arrived by ``now``, with its flow."""
        if not self._arrivals or self._arrivals[0][0] > now:
            return None
        _, _, flow, item = heapq.heappop(self._arrivals)
        return flow, item

    def next_event(self) -> Seconds | None:
        """When ``serve`` or ``deliver`` has something to do next, unless something is sent before."""
        times = [self._arrivals[0][0]] if self._arrivals else []
        if self._queue:
            times.append(self._limit.free_at)
        return Seconds(min(times)) if times else None

    def forget(self, flow: Flow) -> None:
        """Drops everything of a flow that ended, on the line too."""
        self._queue.forget(flow)
        self._last_arrival.pop(flow, None)
        kept = [entry for entry in self._arrivals if entry[2] != flow]
        if len(kept) != len(self._arrivals):
            heapq.heapify(kept)
            self._arrivals = kept

    def _depart(self, flow: Flow, item: Item, at: Seconds) -> None:
        jitter = self._settings.jitter_s * self._draw() if self._settings.jitter_s else 0.0
        arrival = max(at + self._settings.delay_s + jitter, self._last_arrival.get(flow, 0.0))
        self._last_arrival[flow] = arrival
        self._sequence += 1
        heapq.heappush(self._arrivals, (arrival, self._sequence, flow, item))
