"""The hands of one delivery: they carry out what ``protocol.delivery`` commands, and tell it what came of that."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol, assert_never

from pdd.belief.links import Links
from pdd.belief.workers import Workers
from pdd.core.clock import Clock
from pdd.core.errors import PddError
from pdd.core.ids import OrderId
from pdd.core.replication import ReplicationOrder, Watch
from pdd.core.units import Seconds
from pdd.protocol import delivery_messages as m
from pdd.protocol.capacity_queue import CapacityQueue
from pdd.protocol.delivery import Delivery
from pdd.router.driver.bounds.patience import closing_within
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.transfers.spec import TransferSpec, delivery_limits
from pdd.router.driver.workers.worker import Worker

_logger = logging.getLogger(__name__)


class TransferListener(Protocol):
    """Whoever a transfer is made for. Nothing is told after ``release`` or ``detach``."""

    def on_change(self, transfer: Transfer) -> None:
        """The ``state`` of its delivery is another one."""
        ...

    def on_informed(self, transfer: Transfer) -> None:
        """Its target has said what it lacks: ``num_missing`` is known."""
        ...


class Transfer:
    """Made and run by a ``TransferDesk``."""

    def __init__(
        self,
        spec: TransferSpec,
        listener: TransferListener,
        *,
        workers: Workers[Worker],
        links: Links,
        queue: CapacityQueue[Transfer],
        free_capacity: Callable[[], None],
        clock: Clock,
        settings: DriverSettings,
    ) -> None:
        """``queue`` is the target's.

        ``free_capacity`` makes one that nobody waits for leave the target, if there is one.
        """
        self.spec = spec
        self.delivery = Delivery(spec.delivery, delivery_limits(settings))
        self._listener = listener
        self._workers = workers
        self._links = links
        self._queue = queue
        self._free_capacity = free_capacity
        self._clock = clock
        self._settings = settings
        self._commands = deque[m.Command]()
        self._tasks: asyncio.TaskGroup | None = None
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._waits: dict[str, asyncio.Task[None]] = {}
        self._over = asyncio.Event()
        self._ended = asyncio.Event()
        self._take(m.Begun(at=clock.now(), turn=queue.turn(self)))

    @property
    def settled(self) -> bool:
        """It is ready, or never will be."""
        return self.delivery.settled

    @property
    def idle(self) -> Seconds:
        """How long nothing has arrived."""
        return self.delivery.idle(self._clock.now())

    def prefill_done(self) -> None:
        """All blocks should be at the source by now: from here on a standstill counts."""
        self._take(m.PrefillDone(at=self._clock.now()))

    def demote(self) -> None:
        """Nobody waits for it any more: from now on it is sent while nothing else is, and cut when that is never."""
        self._take(m.Demoted(at=self._clock.now()))

    def detach(self) -> None:
        """The request is over, the transfer goes on; it releases itself when it is settled. Nobody is notified."""
        self._take(m.Detached(at=self._clock.now()))

    def release(self) -> None:
        """Ends the order, the reservation and the leases. Idempotent; ``ended`` tells when that is done."""
        self._take(m.Released(at=self._clock.now()))

    def call(self) -> None:
        """It is the first in its target's queue, and something was released there."""
        self._take(m.TurnChanged(at=self._clock.now()))

    async def ended(self) -> None:
        """Waits until nothing is held any more."""
        await self._ended.wait()

    async def run(self) -> None:
        """Runs until it is released or has failed. Called once, by the desk."""
        try:
            await self._carry()
        except Exception:
            _logger.exception("transfer_crashed transfer=%s", self.delivery)
            for command in self.delivery.receive(m.Crashed(at=self._clock.now())):
                if isinstance(command, m.TellChange):
                    self._listener.on_change(self)
        finally:
            self._ended.set()

    async def _carry(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                self._carry_out_all()
                await self._over.wait()
            finally:
                self._tasks = None  # nothing is begun any more
                for wait in self._waits.values():
                    wait.cancel()

    def _take(self, event: m.Event) -> None:
        had_failed = self.delivery.state is m.DeliveryState.FAILED
        self._commands += self.delivery.receive(event)
        if self.delivery.state is m.DeliveryState.FAILED and not had_failed:
            level = logging.DEBUG if self.delivery.demoted else logging.WARNING
            _logger.log(level, "transfer_failed transfer=%s reason=%s", self.spec.name, self.delivery.error)
        self._carry_out_all()

    # Commands ---------------------------------------------------------------------------------------------------------

    def _carry_out_all(self) -> None:
        """What is commanded before ``run`` waits for it."""
        while self._commands and self._tasks is not None:
            self._carry_out(self._commands.popleft(), self._tasks)

    def _carry_out(self, command: m.Command, tasks: asyncio.TaskGroup) -> None:
        match command:
            case m.AskTurn():
                self._take(m.TurnTold(at=self._clock.now(), turn=self._queue.turn(self)))
            case m.JoinQueue():
                self._queue.join(self)
            case m.LeaveQueue():
                self.leave_queue()
            case m.FreeCapacity():
                self._free_capacity()
            case m.OpenWatch() | m.PlaceOrder():
                self._open(command, tasks)
            case m.CloseWatch():
                self._streams[command.watch].cancel()
            case m.CancelOrder():
                self._streams[command.order].cancel()
            case m.Reclassify():
                change = self.spec.source.node.reclassify(command.order, command.send_class)
                tasks.create_task(self._tell_source(change, command.order), name=f"demotion {self.spec.name}")
            case m.CheckSource():
                self._waits["check"] = tasks.create_task(self._check_source(), name=f"check {self.spec.name}")
            case m.SetTimer():
                self._set_timer(command, tasks)
            case m.RecordProgress():
                self._record(command)
            case m.TellChange():
                self._listener.on_change(self)
            case m.TellInformed():
                self._listener.on_informed(self)
            case m.End():
                self._over.set()
            case _:
                assert_never(command)

    def leave_queue(self) -> None:
        """The next one may ask."""
        following = self._queue.leave(self)
        if following is not None:
            following.call()

    def _record(self, command: m.RecordProgress) -> None:
        self._links.record(
            *self.spec.ends,
            command.progress,
            now=self._clock.now(),
            all_there=command.all_there,
            send_class=command.send_class,
        )

    def _set_timer(self, command: m.SetTimer, tasks: asyncio.TaskGroup) -> None:
        if command.timer in self._waits:
            self._waits[command.timer].cancel()
        fire = self._fire(command.timer, command.delay)
        self._waits[command.timer] = tasks.create_task(fire, name=f"{command.timer} {self.spec.name}")

    async def _fire(self, timer: m.Timer, delay: Seconds) -> None:
        await self._clock.sleep(delay)
        del self._waits[timer]
        now = self._clock.now()
        self._take(self._standstill_due(now) if timer is m.Timer.STANDSTILL else m.TimerFired(at=now, timer=timer))

    def _standstill_due(self, now: Seconds) -> m.StandstillDue:
        return m.StandstillDue(
            at=now,
            link=self._links.view(*self.spec.ends, now),
            link_moved_at=self._links.moved_at(*self.spec.ends),
            source_is_late=self._workers.node_is_late(self.spec.source.node.node, now),
        )

    # Watches and orders -----------------------------------------------------------------------------------------------

    def _open(self, command: m.OpenWatch | m.PlaceOrder, tasks: asyncio.TaskGroup) -> None:
        if isinstance(command, m.OpenWatch):
            name, stream = command.watch.watch, self._keep_watch(command.watch)
            ended = partial(m.WatchEnded, watch=command.watch.watch)
        else:
            name, stream = command.order.order, self._keep_order(command.order)
            ended = partial(m.OrderEnded, order=command.order.order)
        task = self._streams[name] = tasks.create_task(stream, name=f"stream {name}")
        task.add_done_callback(partial(self._on_end, name, ended))

    def _on_end(self, name: str, ended: Callable[..., m.Event], task: asyncio.Task[None]) -> None:
        """However it ended: it may have been cancelled before it began. Only a crash ends the whole transfer."""
        del self._streams[name]
        if task.cancelled() or task.exception() is None:
            self._take(ended(at=self._clock.now()))

    async def _keep_watch(self, watch: Watch) -> None:
        readings = self.spec.target.node.watch(watch)
        try:
            async with closing_within(readings, self._settings.release_patience):
                async for readiness in readings:
                    self._take(m.WatchReported(at=self._clock.now(), readiness=readiness))
        except PddError as error:
            self._take(m.WatchFailed(at=self._clock.now(), watch=watch.watch, error=error))

    async def _keep_order(self, order: ReplicationOrder) -> None:
        source, done = self.spec.source.node, False
        self._take(m.OrderBegun(at=self._clock.now(), instance=self._workers.node_instance(source.node)))
        try:
            try:
                steps = source.replicate(order)
                async with closing_within(steps, self._settings.release_patience):
                    async for progress in steps:
                        done = progress.done
                        self._take(m.OrderProgressed(at=self._clock.now(), progress=progress))
            finally:
                self._links.ended(*self.spec.ends, order.order, self._clock.now())
        except PddError as error:
            self._take(m.OrderFailed(at=self._clock.now(), order=order.order, error=error))
        finally:
            if not done:
                await self._tell_source(source.cancel(order.order), order.order)

    async def _tell_source(self, saying: Coroutine[None, None, None], order: OrderId) -> None:
        """What the source doesn't hear it need not know: orders end with the node, or with our connection to it."""
        try:
            async with asyncio.timeout(self._settings.release_patience):
                await saying
        except (PddError, TimeoutError) as error:
            _logger.debug("source_not_told order=%s reason=%s", order, error)

    async def _check_source(self) -> None:
        instance = None
        try:
            async with asyncio.timeout(self._settings.health.timeout_s):
                instance = (await self.spec.source.node.stats()).instance
        except (PddError, TimeoutError) as error:
            _logger.debug("source_not_checked transfer=%s reason=%s", self.spec.name, error)
        self._take(m.SourceChecked(at=self._clock.now(), instance=instance))
