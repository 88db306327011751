"""Bounded waiting: for something that may come back, and for something that should let go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

from pdd.core.clock import Clock
from pdd.core.errors import WorkerFailed
from pdd.core.units import Seconds

_logger = logging.getLogger(__name__)
_Item = TypeVar("_Item")


class Patience:
    """Bears one trouble after another for at most ``limit``, counted from the first since the last ``forget``."""

    def __init__(self, clock: Clock, *, limit: Seconds, retry: Seconds) -> None:
        self._clock = clock
        self._limit = limit
        self._retry = retry
        self._since: Seconds | None = None

    def forget(self) -> None:
        """All is well."""
        self._since = None

    async def bear(self) -> bool:
        """After a failure: waits a little, then True; False at once when it has lasted too long."""
        now = self._clock.now()
        if self._since is None:
            self._since = now
        if now - self._since >= self._limit:
            return False
        await self._clock.sleep(self._retry)
        return True


async def never_silent(generator: AsyncGenerator[_Item], *, first: Seconds, later: Seconds) -> AsyncGenerator[_Item]:
    """The same items; an engine may think for ``first`` before its first one, and for ``later`` before each other.

    Only the engine's time counts, not what the reader takes. After a silence the generator is closed.

    Raises:
        WorkerFailed: it was silent for longer.
    """
    limit = first
    while True:
        try:
            async with asyncio.timeout(limit):
                item = await anext(generator)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise WorkerFailed(f"the engine sent no token for {limit:g} s") from error
        yield item
        limit = later


@asynccontextmanager
async def closing_within(generator: AsyncGenerator[_Item], limit: Seconds) -> AsyncGenerator[AsyncGenerator[_Item]]:
    """Like ``contextlib.aclosing``, but a stream that doesn't let go within ``limit`` is left behind."""
    try:
        yield generator
    finally:
        try:
            async with asyncio.timeout(limit):
                await generator.aclose()
        except TimeoutError:
            _logger.warning("stream_not_closed stream=%s limit_s=%.1f", generator.__class__.__name__, limit)
