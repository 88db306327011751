"""The running event loop's time, real or virtual, as a ``core.clock.Clock``."""

from __future__ import annotations

import asyncio

from pdd.core.units import Seconds


class LoopClock:
    """Reads whichever loop runs the caller, so one object serves the real loop and the virtual one."""

    __slots__ = ()

    def now(self) -> Seconds:
        return Seconds(asyncio.get_running_loop().time())

    async def sleep(self, delay: Seconds) -> None:
        await asyncio.sleep(max(0.0, delay))
