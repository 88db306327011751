"""The two queues of one request: events on their way in, spans on their way out. Both bounded, neither ever a deadlock.

Only token spans can come in numbers, so only they wait for room (``put``); of everything else each source has at most
one event at a time (``post``). A reader that is slow makes the request's loop wait in ``Outbox.room``, then its
decoders in ``Inbox.put``: nobody else's. A reader that is gone (``Outbox.discard``) never makes anybody wait again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from pdd.core.errors import PddError
from pdd.protocol import relay
from pdd.router.base import EmittedSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The request can't be served as it is, or not now: it ends with this error."""

    error: PddError


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDue:
    """A route that was asked for has to be chosen now: what it depends on is known, or was waited for long enough."""


InboxEvent = relay.Event | Refusal | RouteDue


class Inbox:
    """Events for one request's state machine, in order of arrival."""

    def __init__(self, *, max_spans: int) -> None:
        self._events: deque[tuple[InboxEvent, bool]] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Semaphore(max_spans)

    async def put(self, event: InboxEvent) -> None:
        """For spans: waits while too many of them have not been taken yet."""
        await self._room.acquire()
        self._events.append((event, True))
        self._arrived.set()

    def post(self, event: InboxEvent) -> None:
        """For everything of which a source has only one at a time. Never waits."""
        self._events.append((event, False))
        self._arrived.set()

    def post_first(self, event: InboxEvent) -> None:
        """For the client's last word: it overtakes what has not been taken yet."""
        self._events.appendleft((event, False))
        self._arrived.set()

    async def get(self) -> InboxEvent:
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        event, takes_room = self._events.popleft()
        if takes_room:
            self._room.release()
        return event


class Outbox:
    """Spans for the client. The loop that fills it calls ``room`` between two batches of commands."""

    def __init__(self, *, max_spans: int) -> None:
        self._max_spans = max_spans
        self._spans: deque[EmittedSpan] = deque()
        self._error: PddError | None = None
        self._closed = False
        self._discarded = False
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, span: EmittedSpan) -> None:
        if not self._discarded:
            self._spans.append(span)
            self._changed.set()

    def close(self, error: PddError | None) -> None:
        """Nothing follows; the reader gets ``error`` after the spans that are still here. The first close counts."""
        if not self._closed:
            self._closed, self._error = True, error
        self._changed.set()

    def discard(self) -> None:
        """Nobody reads any more."""
        self._discarded = True
        self._spans.clear()
        self._drained.set()

    async def room(self) -> None:
        """Waits until the reader has caught up, or is gone."""
        while len(self._spans) >= self._max_spans and not self._discarded:
            self._drained.clear()
            await self._drained.wait()

    async def receive(self) -> EmittedSpan | None:
        """The next span; None after the last one.

        Raises:
            PddError: the answer broke off; everything before it has been received.
        """
        while not self._spans and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._spans:
            self._drained.set()
            return self._spans.popleft()
        if self._error is not None:
            raise self._error
        return None
