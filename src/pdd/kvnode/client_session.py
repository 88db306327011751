"""What a router has asked of a node over one connection, and who waits for which answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Generic, TypeVar, assert_never

from pdd.core.errors import PddError
from pdd.core.units import Bytes
from pdd.kvnode.failures import error_of
from pdd.kvnode.outbox import Outbox
from pdd.protocol.peer import (
    ErrorKind,
    FromNode,
    OrderFailed,
    OrderProgress,
    Pong,
    StatsAnswer,
    WatchReady,
    WatchRefused,
)

MessageT = TypeVar("MessageT")

MAX_WAITING_BYTES = Bytes(256 * 1024 * 1024)
"""Orders and watches, of which each may have megabytes, for a node that does not read: it is taken for dead at last."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What running calls and later ones raise."""

    kind: ErrorKind
    reason: str

    def error(self) -> PddError:
        return error_of(self.kind, self.reason)


@dataclass(slots=True)
class Stream(Generic[MessageT]):
    """The latest message for one caller who waits: states, not events, so a slow caller skips some."""

    latest: MessageT | None = None
    failure: Failure | None = None
    filled: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: MessageT) -> None:
        self.latest = message
        self.filled.set()

    def fail(self, failure: Failure) -> None:
        self.failure = self.failure or failure
        self.filled.set()

    async def next(self) -> MessageT:
        """Raises what it failed with, after a message that came before."""
        await self.filled.wait()
        message, self.latest = self.latest, None
        if message is not None:
            if self.failure is None:
                self.filled.clear()
            return message
        assert self.failure is not None
        raise self.failure.error()


@dataclass(slots=True)
class Session:
    """One connection's calls."""

    outbox: Outbox = field(default_factory=lambda: Outbox(max_bytes=MAX_WAITING_BYTES))
    orders: dict[str, Stream[OrderProgress]] = field(default_factory=dict[str, "Stream[OrderProgress]"])
    watches: dict[str, Stream[WatchReady]] = field(default_factory=dict[str, "Stream[WatchReady]"])
    stats: dict[int, Stream[StatsAnswer]] = field(default_factory=dict[int, "Stream[StatsAnswer]"])

    def fail(self, failure: Failure) -> None:
        """Every running call raises."""
        for streams in (self.orders, self.watches, self.stats):
            for stream in streams.values():
                stream.fail(failure)

    def dispatch(self, message: FromNode) -> None:
        """Hands a message to whoever waits for it. Those for calls that have ended are dropped."""
        match message:
            case OrderProgress(order=order):
                if order in self.orders:
                    self.orders[order].put(message)
            case OrderFailed(order=order):
                if order in self.orders:
                    self.orders[order].fail(Failure(message.error, message.reason))
            case WatchReady(watch=watch):
                if watch in self.watches:
                    self.watches[watch].put(message)
            case WatchRefused(watch=watch):
                if watch in self.watches:
                    self.watches[watch].fail(Failure(message.error, message.reason))
            case StatsAnswer(request=request):
                if request in self.stats:
                    self.stats[request].put(message)
            case Pong():
                pass
            case _:
                assert_never(message)
