"""Time as the shells see it: the real loop and the virtual loop both satisfy this, so the driver runs on either.

Whoever has a clock reads and sleeps on it, and on nothing else. ``asyncio.timeout`` may stand beside it where it bounds
one await (a call, an event): it runs on the time of the loop, which every clock here tells.
"""

from typing import Protocol

from pdd.core.units import Seconds


class Clock(Protocol):
    """Monotonic time."""

    def now(self) -> Seconds:
        """Seconds since some fixed moment; never goes back."""
        ...

    async def sleep(self, delay: Seconds) -> None:
        """Waits ``delay``; zero or less only yields."""
        ...
