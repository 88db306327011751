"""Who waits for room at a full node: only the first in line asks, so that many who wait ask no more often than one.

While somebody waits, newcomers stand behind: a large reservation, which is met whole or not at all, would else be passed by
small ones for ever. The first asks again as soon as something was let go at the node, and after a while anyhow, since not
all that occupies a node is the router's.
"""

from __future__ import annotations

import asyncio

from pdd.core.units import Seconds


class RoomLine:
    """One node's. While nobody has been refused there is no line, and everybody asks at once."""

    def __init__(self, *, retry: Seconds) -> None:
        self._retry = retry
        self._turns: dict[Turn, None] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def turn(self) -> Turn:
        """For one who needs room. ``Turn.over`` must follow."""
        return Turn(self, self._retry)

    def let_go(self) -> None:
        """Something at the node was released."""
        if self._turns:
            next(iter(self._turns)).wake()

    def is_first(self, turn: Turn) -> bool:
        return bool(self._turns) and next(iter(self._turns)) is turn

    def stand(self, turn: Turn) -> None:
        """Takes the last position, unless it has one already."""
        self._turns.setdefault(turn)

    def leave(self, turn: Turn) -> None:
        """The next one may ask at once. Idempotent."""
        was_first = self.is_first(turn)
        self._turns.pop(turn, None)
        if was_first:
            self.let_go()


class Turn:
    """One's position, if it needs one. Call order: ``come``, ask, then ``over``, or ``refused`` and ``come`` again."""

    def __init__(self, line: RoomLine, retry: Seconds) -> None:
        self._line = line
        self._retry = retry
        self._woken = asyncio.Event()

    @property
    def must_wait(self) -> bool:
        """Somebody has been refused before it, or it has itself."""
        return len(self._line) > 0

    async def come(self) -> None:
        """Waits until it may ask."""
        if not self.must_wait:
            return
        if self._line.is_first(self):
            await self._pause()
        else:
            self._line.stand(self)
            await self._woken.wait()
        self._woken.clear()

    def refused(self) -> None:
        """There was no room: it stands in line from now on."""
        self._line.stand(self)

    def over(self) -> None:
        """It has room, or needs none any more. Idempotent."""
        self._line.leave(self)

    def wake(self) -> None:
        """It is the first, and there may be room."""
        self._woken.set()

    async def _pause(self) -> None:
        """What was let go while it asked counts, too."""
        try:
            async with asyncio.timeout(self._retry):
                await self._woken.wait()
        except TimeoutError:
            pass
