"""The router's connections to engines and nodes, which hang, break off and are refused while both ends live on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import TypeVar

from pdd.core.errors import CapacityExhausted, NodeFailed, Unavailable, WorkerFailed
from pdd.core.ids import NodeId, OrderId, PinId, WorkerId
from pdd.core.replication import NodeStats, Pin, Readiness, ReplicationOrder, ReplicationProgress, Watch
from pdd.core.request import Generation, SendClass, TokenSpan
from pdd.core.units import Seconds
from pdd.engine.base import RETRY_AFTER, EngineInfo
from pdd.engine.scripted.engine import ScriptedEngine
from pdd.kvnode.base import NodeClient
from pdd.kvnode.patience import ROUTER_PATIENCE
from pdd.router.driver.bounds.patience import expire

_Item = TypeVar("_Item")


class NotReached(Exception):
    """Base of what can happen to a connection."""


class Refused(NotReached):
    """There is nothing to connect to."""


class BrokenOff(NotReached):
    """The connection was reset."""


class Upstream:
    """All connections of the router to one process. Holds and refusals are counted: several faults may overlap.

    The router gives up a connection on which nothing has passed for ``patience``; without one it waits.
    """

    def __init__(self, patience: Seconds | None = None) -> None:
        self.slowdown = 1.0
        self._patience = patience
        self._num_held = 0
        self._num_holds = 0
        self._num_refusals = 0
        self._flows = asyncio.Event()
        self._flows.set()
        self._epoch = 0
        self._numbers = count()
        self._waits: dict[int, asyncio.Timeout] = {}

    def hold(self) -> None:
        """Nothing passes any more; what comes meanwhile comes later."""
        self._num_holds += 1
        self._flows.clear()
        if self._num_holds == 1 and self._patience is not None:
            self._num_held += 1
            asyncio.get_running_loop().call_later(self._patience, self._lose_patience, self._num_held)

    def let_go(self) -> None:
        """Ends one ``hold``."""
        self._num_holds -= 1
        if not self._num_holds:
            self._flows.set()

    def refuse(self) -> None:
        """No new connection is accepted any more."""
        self._num_refusals += 1

    def accept(self) -> None:
        """Ends one ``refuse``."""
        self._num_refusals -= 1

    def break_off(self) -> None:
        """Resets every connection that stands."""
        self._epoch += 1
        for wait in self._waits.values():
            expire(wait)

    def _lose_patience(self, hold: int) -> None:
        if self._num_holds and self._num_held == hold:
            self.break_off()

    async def _pass(self) -> None:
        """Waits while connections are held, but not for ever."""
        try:
            async with asyncio.timeout(self._patience):
                await self._flows.wait()
        except TimeoutError as error:
            raise BrokenOff from error

    async def ask(self, question: Callable[[], Awaitable[_Item]]) -> _Item:
        """A question and its answer.

        Raises:
            NotReached: it was refused, or the connection broke off.
        """
        async with self._connected(self._connect()):
            await self._pass()
            item = await question()
            await self._pass()
            return item

    async def carry(self, stream: AsyncGenerator[_Item]) -> AsyncGenerator[_Item]:
        """The stream's items, as they come through. Closes it.

        Raises:
            NotReached: it was refused, or the connection broke off.
        """
        loop = asyncio.get_running_loop()
        async with aclosing(stream):
            connection = self._connect()
            while True:
                asked_at = loop.time()
                async with self._connected(connection):
                    await self._pass()
                    try:
                        item = await anext(stream)
                    except StopAsyncIteration:
                        return
                    if self.slowdown > 1.0:
                        await asyncio.sleep((self.slowdown - 1.0) * (loop.time() - asked_at))
                    await self._pass()
                yield item

    def _connect(self) -> int:
        if self._num_refusals:
            raise Refused
        return self._epoch

    @asynccontextmanager
    async def _connected(self, connection: int) -> AsyncGenerator[None]:
        if connection != self._epoch:
            raise BrokenOff
        number, wait = next(self._numbers), asyncio.timeout(None)
        try:
            async with wait:
                self._waits[number] = wait
                try:
                    yield
                finally:
                    del self._waits[number]
        except TimeoutError as error:
            if wait.expired():
                raise BrokenOff from error
            raise


class FaultyEngine:
    """An ``EngineClient`` between the router and a scripted engine. ``is_full``: it takes no generation any more."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.upstream = Upstream()
        self.is_full = False

    @property
    def worker(self) -> WorkerId:
        return self.engine.worker

    async def info(self) -> EngineInfo:
        """See ``EngineClient.info``."""
        try:
            return await self.upstream.ask(self.engine.info)
        except NotReached as error:
            raise self._unavailable() from error

    async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        """See ``EngineClient.generate``."""
        if self.is_full:
            raise CapacityExhausted(f"engine {self.worker} is full", retry_after_s=RETRY_AFTER)
        try:
            async with aclosing(self.upstream.carry(self.engine.generate(generation))) as spans:
                async for span in spans:
                    yield span
        except Refused as error:
            raise self._unavailable() from error
        except BrokenOff as error:
            raise WorkerFailed(f"the connection to engine {self.worker} broke off") from error

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"engine {self.worker} can't be reached", retry_after_s=RETRY_AFTER)


class FaultyNode:
    """A ``NodeClient`` between the router and a node, which forgets orders, watches and pins when the
    connection ends.
    """

    def __init__(self, node: NodeClient) -> None:
        self.upstream = Upstream(ROUTER_PATIENCE)
        self._node = node
        self._pins: dict[PinId, None] = {}

    @property
    def node(self) -> NodeId:
        return self._node.node

    async def break_off(self) -> None:
        """Resets the connection."""
        self.upstream.break_off()
        pins, self._pins = self._pins, {}
        for pin in pins:
            with suppress(NodeFailed):
                await self._node.unpin(pin)

    async def replicate(self, order: ReplicationOrder) -> AsyncGenerator[ReplicationProgress]:
        """See ``NodeClient.replicate``."""
        try:
            async with aclosing(self.upstream.carry(self._node.replicate(order))) as steps:
                async for step in steps:
                    yield step
        except NotReached as error:
            with suppress(NodeFailed):
                await self._node.cancel(order.order)
            raise self._failure() from error

    async def watch(self, watch: Watch) -> AsyncGenerator[Readiness]:
        """See ``NodeClient.watch``."""
        try:
            async with aclosing(self.upstream.carry(self._node.watch(watch))) as readings:
                async for readiness in readings:
                    yield readiness
        except NotReached as error:
            raise self._failure() from error

    async def cancel(self, order: OrderId) -> None:
        """See ``NodeClient.cancel``."""
        await self._ask(partial(self._node.cancel, order))

    async def reclassify(self, order: OrderId, send_class: SendClass) -> None:
        """See ``NodeClient.reclassify``."""
        await self._ask(partial(self._node.reclassify, order, send_class))

    async def pin(self, pin: Pin) -> None:
        """See ``NodeClient.pin``."""
        self._pins[pin.pin] = None  # even if the answer is lost, the node may have heard
        await self._ask(partial(self._node.pin, pin))

    async def unpin(self, pin: PinId) -> None:
        """See ``NodeClient.unpin``."""
        self._pins.pop(pin, None)
        await self._ask(partial(self._node.unpin, pin))

    async def stats(self) -> NodeStats:
        """See ``NodeClient.stats``."""
        return await self._ask(self._node.stats)

    async def _ask(self, question: Callable[[], Awaitable[_Item]]) -> _Item:
        try:
            return await self.upstream.ask(question)
        except NotReached as error:
            raise self._failure() from error

    def _failure(self) -> NodeFailed:
        return NodeFailed(f"node {self.node} can't be reached")
