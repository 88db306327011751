"""Lines between in-memory nodes, timed by the running loop, without tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pdd.core.units import Bytes, BytesPerSecond, Seconds


class Line(Protocol):
    """One direction of a line that joins nodes, perhaps many pairs of them. Faults go through the ``MemoryNetwork``."""

    rate: BytesPerSecond
    """May be changed at any time."""

    @property
    def is_cut(self) -> bool: ...

    @property
    def is_stalled(self) -> bool: ...

    def send(self, num_bytes: Bytes, sent: Callable[[], None], arrived: Callable[[], None]) -> None:
        """Carries a block. Calls ``sent`` when the same sender may bring its next one, and later ``arrived``.

        Neither is called if the line is cut before, nor before ``send`` has returned. A sender brings one block at a
        time.
        """
        ...

    def after_delay(self, call: Callable[[], None]) -> None:
        """Carries something tiny, which takes only the delay. It arrives even if the line is cut meanwhile: the
        receiver knows by its connection that it came too late.
        """
        ...

    def cut(self) -> None:
        """Loses everything that is on it or waits for it. Idempotent, like all four."""
        ...

    def restore(self) -> None: ...

    def stall(self) -> None:
        """From now on nothing moves; nothing is lost."""
        ...

    def resume(self) -> None:
        """Everything goes on where it stood."""
        ...


class MemoryLine:
    """Serves one block at a time in the order of asking, so senders share it in turn.

    ``rate`` and ``delay`` may be changed at any time; what is on its way keeps its own. Stalled, it takes what is sent
    and told, and lets nothing arrive.
    """

    def __init__(self, *, rate: BytesPerSecond, delay: Seconds) -> None:
        self.rate = rate
        self.delay = delay
        self.is_cut = False
        self.is_stalled = False
        self._held_up: list[Callable[[], None]] = []
        self._queue: deque[tuple[Bytes, Callable[[], None], Callable[[], None]]] = deque()
        self._busy = False
        self._epoch = 0

    def send(self, num_bytes: Bytes, sent: Callable[[], None], arrived: Callable[[], None]) -> None:
        """Calls ``sent`` when the last bit is on the line, ``arrived`` one delay later; neither if it is cut before."""
        if self.is_cut:
            return
        self._queue.append((num_bytes, sent, arrived))
        if not self._busy:
            self._serve()

    def cut(self) -> None:
        """Loses everything that is on it or waits for it."""
        self.is_cut = True
        self._busy = False
        self._epoch += 1
        self._queue.clear()
        self._held_up.clear()

    def restore(self) -> None:
        self.is_cut = False

    def stall(self) -> None:
        self.is_stalled = True

    def resume(self) -> None:
        self.is_stalled = False
        held_up, self._held_up = self._held_up, []
        for call in held_up:
            call()

    def after_delay(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self.delay, self._unless_stalled, call)

    def _unless_stalled(self, call: Callable[[], None]) -> None:
        """What became due while nothing moved happens in the same order afterwards."""
        if self.is_stalled:
            self._held_up.append(call)
        else:
            call()

    def _serve(self) -> None:
        num_bytes, sent, arrived = self._queue[0]
        epoch = self._epoch
        asyncio.get_running_loop().call_later(
            num_bytes / self.rate, self._unless_stalled, lambda: self._sent(epoch, sent, arrived)
        )
        self._busy = True

    def _sent(self, epoch: int, sent: Callable[[], None], arrived: Callable[[], None]) -> None:
        if epoch != self._epoch:
            return
        self._busy = False
        self._queue.popleft()
        asyncio.get_running_loop().call_later(self.delay, self._unless_stalled, lambda: self._arrived(epoch, arrived))
        sent()
        if self._queue and not self._busy:
            self._serve()

    def _arrived(self, epoch: int, arrived: Callable[[], None]) -> None:
        if epoch == self._epoch:
            arrived()
