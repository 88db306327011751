"""KV nodes in one process: the books, orders, claims and faults of real ones, without sockets, processes or tasks.

For tests and the simulator. A ``MemoryNetwork`` joins ``MemoryNode``s by lines. A node is a ``NodeClient`` for the
router, and gives engines a ``MemoryStore``, the local door. Killed, it forgets everything; hung, it answers nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Protocol, TypeVar

from pdd.core.errors import LocalProtocolError, NodeFailed, PddError
from pdd.core.ids import NodeId, OrderId, PinId, WatchId, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.replication import NodeStats, Pin, Readiness, ReplicationOrder, ReplicationProgress, Watch
from pdd.core.request import SendClass
from pdd.core.units import Seconds
from pdd.index.blocks import Owner
from pdd.kvnode.failures import error_of
from pdd.kvnode.patience import ROUTER_PATIENCE
from pdd.protocol.orders import OrderKey
from pdd.protocol.peer import ErrorKind
from pdd.sim.memory.calls import OpenOrder, OpenWatch
from pdd.sim.memory.lane import MemoryLane
from pdd.sim.memory.life import NodeLife
from pdd.sim.memory.store import MemoryStore

_Answer = TypeVar("_Answer")


class Network(Protocol):
    """What a node tells the world around it; ``sim.memory.network``."""

    def lane(self, source: MemoryNode, target: NodeId) -> MemoryLane:
        """Raises NodeFailed: there is no such node."""
        ...

    def lanes_ended(self, node: MemoryNode) -> None:
        """The node died: connections to and from it are lost."""
        ...

    def node_hangs(self, node: MemoryNode) -> None: ...

    def node_attends(self, node: MemoryNode) -> None:
        """It is back, or runs again: what waited for it may go on."""
        ...


class MemoryNode:
    """One node. Made by ``MemoryNetwork.add``. ``control_delay`` is one way between it and the router."""

    def __init__(
        self,
        network: Network,
        node: NodeId,
        kv_format: KvFormat,
        *,
        capacity: int,
        payload_bytes: int,
        control_delay: Seconds,
    ) -> None:
        self.control_delay = control_delay
        self._network = network
        self._node = node
        self._kv_format = kv_format
        self._capacity = capacity
        self._payload_bytes = payload_bytes
        self._lag = Seconds(0.0)
        self._num_lives = 0
        self._life = self._new_life()
        self._orders: dict[OrderId, OpenOrder] = {}
        self._watches: dict[WatchId, OpenWatch] = {}
        self._pins: dict[PinId, None] = {}
        self._is_given_up = False
        """The router has lost its connection to a node that hangs."""

    # The router's door ------------------------------------------------------------------------------------------------

    @property
    def node(self) -> NodeId:
        return self._node

    async def replicate(self, order: ReplicationOrder) -> AsyncGenerator[ReplicationProgress]:
        """See ``NodeClient.replicate``."""
        opened = await self._ask(lambda _: self._place(order))
        last: ReplicationProgress | None = None
        while True:
            await opened.next()
            await asyncio.sleep(self.control_delay)
            if opened.failure is not None:
                raise error_of(opened.failure.error, opened.failure.reason)
            progress = opened.progress()
            if progress != last:
                last = progress
                yield progress
            if progress.done:
                return

    def _place(self, order: ReplicationOrder) -> OpenOrder:
        if order.order in self._orders:
            raise LocalProtocolError(f"order {order.order} is placed already")
        outflow = self._network.lane(self, order.target).orders
        forget = partial(self._orders.pop, order.order, None)
        opened = OpenOrder(order.order, OrderKey(order.order), outflow, on_end=forget)
        self._orders[order.order] = opened
        outflow.place(opened.key, order.hashes, order.send_class, opened)
        return opened

    async def reclassify(self, order: OrderId, send_class: SendClass) -> None:
        """See ``NodeClient.reclassify``."""

        def reclassify(_: NodeLife) -> None:
            opened = self._orders.get(order)
            if opened is not None:
                opened.outflow.reclassify(opened.key, send_class)

        await self._ask(reclassify)

    async def cancel(self, order: OrderId) -> None:
        """See ``NodeClient.cancel``."""
        await self._say(partial(self._cancel, order))

    def _cancel(self, order: OrderId) -> None:
        opened = self._orders.pop(order, None)
        if opened is not None:
            opened.outflow.cancel(opened.key)
            opened.fail(ErrorKind.NODE_FAILED, f"order {order} was cancelled")

    async def watch(self, watch: Watch) -> AsyncGenerator[Readiness]:
        """See ``NodeClient.watch``."""
        opened = OpenWatch(Owner(f"watch {watch.watch}"), len(watch.hashes))
        try:
            await self._ask(lambda life: self._open_watch(life, watch, opened))
            last: int | None = None
            while True:
                await opened.next()
                await asyncio.sleep(self.control_delay)
                if opened.failure is not None:
                    raise error_of(opened.failure.error, opened.failure.reason)
                if opened.num_ready is not None and opened.num_ready != last:
                    last = opened.num_ready
                    yield Readiness(watch=watch.watch, num_ready=last)
        finally:
            life = self._life
            if self._watches.get(watch.watch) is opened:
                del self._watches[watch.watch]
                life.attention.give_to(partial(life.do_if_alive, partial(life.store.end_watch, opened.owner)))

    def _open_watch(self, life: NodeLife, watch: Watch, opened: OpenWatch) -> None:
        if watch.watch in self._watches:
            raise LocalProtocolError(f"watch {watch.watch} is open already")
        life.store.start_watch(opened.owner, watch.hashes, watch.reserve_blocks, opened.report)
        self._watches[watch.watch] = opened

    async def pin(self, pin: Pin) -> None:
        """See ``NodeClient.pin``."""

        def keep(life: NodeLife) -> None:
            self._pins[pin.pin] = None
            life.store.pin(_pin_owner(pin.pin), pin.hashes)

        await self._ask(keep)

    async def unpin(self, pin: PinId) -> None:
        """See ``NodeClient.unpin``."""
        await self._say(partial(self._unpin, pin))

    def _unpin(self, pin: PinId) -> None:
        self._pins.pop(pin, None)
        self._life.store.unpin(_pin_owner(pin))

    async def stats(self) -> NodeStats:
        """See ``NodeClient.stats``."""
        stats = await self._ask(self._stats_of)
        await asyncio.sleep(self.control_delay)
        return stats

    def _stats_of(self, life: NodeLife) -> NodeStats:
        index, counters = life.index, life.store.counters
        return NodeStats(
            node=self._node,
            instance=life.store.instance,
            capacity_blocks=self._capacity,
            held_blocks=index.num_held,
            leased_blocks=index.num_leased,
            reserved_blocks=index.num_reserved,
            writing_blocks=index.num_writing,
            orders=sum(outlet.num_orders for outlet in life.store.outlets.values()),
            watches=life.store.num_watches,
            block_bytes=self._kv_format.block_bytes,
            sent_bytes=dict(counters.sent_bytes),
            received_bytes=dict(counters.received_bytes),
            evictions=index.evictions,
            digest_failures=0,
            pinned_blocks=index.num_pinned,
        )

    async def _ask(self, question: Callable[[NodeLife], _Answer]) -> _Answer:
        """What the node says once it attends to it. Raises NodeFailed, or what ``question`` raises."""
        life = self._life
        if not life.alive or self._is_given_up:
            raise NodeFailed(f"node {self._node} is not up")
        await asyncio.sleep(self.control_delay)
        self._require_same(life)
        if life.attention.is_idle:
            return question(life)
        answer = asyncio.get_running_loop().create_future()
        life.attention.give_to(partial(self._answer, life, question, answer))
        try:
            async with asyncio.timeout(ROUTER_PATIENCE):
                return await answer
        except TimeoutError as error:
            raise NodeFailed(f"node {self._node} does not answer") from error

    def _answer(self, life: NodeLife, question: Callable[[NodeLife], _Answer], answer: asyncio.Future[_Answer]) -> None:
        """Unless nobody waits for it any more."""
        if answer.done():
            return
        try:
            self._require_same(life)
            answer.set_result(question(life))
        except PddError as error:
            answer.set_exception(error)

    async def _say(self, call: Callable[[], None]) -> None:
        """Something that has no answer, and that nobody needs to hear who is gone."""
        life = self._life
        await asyncio.sleep(self.control_delay)
        life.attention.give_to(partial(life.do_if_alive, call))

    def _require_same(self, life: NodeLife) -> None:
        if not life.alive:
            raise NodeFailed(f"node {self._node} is gone")

    # Faults -----------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Like kill -9: blocks, leases, reservations, orders, pins and connections are gone."""
        if self._life.alive:
            self._life.alive = False
            self._end_calls(f"node {self._node} is gone")
            self._network.lanes_ended(self)

    def restart(self) -> None:
        """Comes back empty, as another instance."""
        if not self._life.alive:
            self._life = self._new_life()
            self._network.node_attends(self)

    def hang(self) -> None:
        """Like SIGSTOP: it answers nothing, and those who wait for it lose patience one by one."""
        if self._life.alive and not self._life.attention.is_hung:
            self._life.attention.hang()
            self._life.attention.after_hanging(ROUTER_PATIENCE, partial(self._give_up, self._life))
            self._network.node_hangs(self)

    def resume(self) -> None:
        """Like SIGCONT: what reached it meanwhile comes first."""
        if self._life.alive and self._life.attention.is_hung:
            self._life.attention.resume()
            self._is_given_up = False
            self._network.node_attends(self)

    def slow_down(self, lag: Seconds) -> None:
        """From now on, restarts included, it attends to what routers and other nodes say ``lag`` after that
        reached it.
        """
        self._lag = self._life.attention.lag = lag

    def _give_up(self, life: NodeLife) -> None:
        """The router's connection is lost; the node finds that out when it runs again."""
        if not life.alive:
            return
        self._is_given_up = True
        orders, watches, pins = tuple(self._orders.values()), tuple(self._watches.values()), tuple(self._pins)
        self._end_calls(f"node {self._node} does not answer")

        def end_all() -> None:
            for order in orders:
                order.outflow.cancel(order.key)
            for watch in watches:
                life.store.end_watch(watch.owner)
            for pin in pins:
                life.store.release_owner(_pin_owner(pin))

        life.attention.give_to(partial(life.do_if_alive, end_all))

    def _end_calls(self, reason: str) -> None:
        for opened in (*self._orders.values(), *self._watches.values()):
            opened.fail(ErrorKind.NODE_FAILED, reason)
        self._orders.clear()
        self._watches.clear()
        self._pins.clear()

    def _new_life(self) -> NodeLife:
        self._num_lives += 1
        self._is_given_up = False
        return NodeLife(
            self._node,
            self._num_lives,
            self._kv_format,
            capacity=self._capacity,
            payload_bytes=self._payload_bytes,
            lag=self._lag,
        )

    # The engines' door ------------------------------------------------------------------------------------------------

    @property
    def life(self) -> NodeLife:
        """The present lifetime, or the last one."""
        return self._life

    def open_store(self, owner: WorkerId) -> MemoryStore:
        """Raises NodeFailed when the node is not up, or hangs."""
        life = self._life
        if not life.alive or life.attention.is_hung:
            raise NodeFailed(f"node {self._node} is not up")
        life.num_engines += 1
        return MemoryStore(self._node, life, Owner(f"engine {owner} {life.num_engines}"))


def _pin_owner(pin: PinId) -> Owner:
    return Owner(f"pin {pin}")
