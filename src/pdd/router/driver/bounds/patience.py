"""Bounded waiting: for an engine's tokens, and for something that should let go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from pdd.belief.health import Lifetime
from pdd.core.errors import WorkerFailed
from pdd.core.request import TokenSpan
from pdd.core.units import Seconds

_logger = logging.getLogger(__name__)
_Item = TypeVar("_Item")

_STOPPED_FOR = Seconds(1.0)
"""A timer that goes off so late was not looked at: the router's own process was stopped, and what engines
sent waits.
"""


def expire(scope: asyncio.Timeout) -> None:
    """Ends what is awaited in ``scope`` as if its time were up. Idempotent: call it as long as the scope is not left.

    What has expired may take a while to let go, and asyncio raises if it is rescheduled meanwhile.
    """
    if not scope.expired():
        scope.reschedule(asyncio.get_running_loop().time())


class Vigil:
    """Waits for an engine's next span, but no longer than it may be silent, nor past the end of its process.

    It may be silent for ``first`` before its first span, and for ``later`` before each other. Only the engine's time
    counts, not what the reader takes. There is one timer for all spans of a generation: it looks back when it goes off.
    """

    def __init__(self, spans: AsyncGenerator[TokenSpan], lifetime: Lifetime, *, first: Seconds, later: Seconds) -> None:
        self._spans = spans
        self._lifetime = lifetime
        self._limit = first
        self._later = later
        self._loop = asyncio.get_running_loop()
        self.waited = Seconds(0.0)
        """For all spans but the first, together."""
        self._is_first = True
        self._waits_since: float | None = None
        self._scope: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._why: str | None = None

    @contextmanager
    def kept(self) -> Generator[None]:
        """``next`` may be called within this context."""
        forget = self._lifetime.on_end(self._on_end)
        try:
            yield
        finally:
            forget()
            if self._timer is not None:
                self._timer.cancel()

    async def next(self) -> TokenSpan | None:
        """The next span; None after the last.

        Raises:
            WorkerFailed: the engine was silent for too long, or its process is gone.
        """
        if self._why is not None:
            raise WorkerFailed(self._why)
        begun = self._waits_since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(begun + self._limit, self._look_back)
        try:
            async with asyncio.timeout(None) as self._scope:
                span = await anext(self._spans, None)
        except TimeoutError as error:
            raise WorkerFailed(self._why or "the engine gave up waiting") from error
        finally:
            self._scope = self._waits_since = None
        self._note_span(begun)
        return span

    def _note_span(self, begun: float) -> None:
        self._lifetime.heard = True
        if not self._is_first:
            self.waited = Seconds(self.waited + self._loop.time() - begun)
        elif self._timer is not None:
            self._timer.cancel()  # it was set for the first span, which may take longer than any other
            self._is_first, self._timer, self._limit = False, None, self._later

    def _look_back(self) -> None:
        """Whether it is this span that has been waited for so long, and by a router that was awake all the time."""
        assert self._timer is not None
        now, late_by = self._loop.time(), self._loop.time() - self._timer.when()
        since = now if self._waits_since is None or late_by > _STOPPED_FOR else self._waits_since
        if since + self._limit > now:
            self._timer = self._loop.call_at(since + self._limit, self._look_back)
        else:
            self._break_off(f"the engine sent no token for {self._limit:g} s")

    def _on_end(self) -> None:
        self._break_off("the engine's process is gone, or answers no health checks")

    def _break_off(self, why: str) -> None:
        """The first reason is the one for which it broke off."""
        self._why = self._why or why
        if self._scope is not None:
            expire(self._scope)


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
