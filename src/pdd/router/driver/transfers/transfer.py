"""One request's KV on its way from prefill's node to a decoder's node: a standing order there, a watch here.

A transfer is placed before prefill begins and outlives whatever can be outlived: a target without room is asked again, a
node that restarted gets its watch or order anew, each with a patience of its own. Order and watch go out together; while the
target has no room no order stands, since blocks that can't be kept would cross for nothing. It ends READY (every block is at
the target, checked and leased until the transfer is released) or FAILED (it never will be; nothing is held any more).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from pdd.belief.links import Links
from pdd.belief.workers import Workers
from pdd.core.clock import Clock
from pdd.core.errors import BlocksLost, CapacityExhausted, ContextTooLong, Incompatible, NodeFailed, PddError
from pdd.core.ids import NodeInstance, OrderId, WatchId
from pdd.core.replication import ReplicationOrder, ReplicationProgress, Watch
from pdd.core.request import SendClass
from pdd.core.units import Bytes, Seconds
from pdd.router.driver.patience import Patience, closing_within
from pdd.router.driver.settings import DriverSettings
from pdd.router.driver.transfers.room_line import RoomLine
from pdd.router.driver.transfers.spec import TransferListener, TransferSpec, TransferState
from pdd.router.driver.transfers.standstill import Standstill
from pdd.router.driver.workers.worker import Worker

_logger = logging.getLogger(__name__)


class Transfer:
    """Made and run by a ``TransferDesk``."""

    def __init__(
        self,
        spec: TransferSpec,
        listener: TransferListener,
        *,
        workers: Workers[Worker],
        links: Links,
        room: RoomLine,
        make_room: Callable[[], None],
        clock: Clock,
        settings: DriverSettings,
    ) -> None:
        """``make_room`` is called whenever the target had none for a transfer that somebody may wait for."""
        self.spec = spec
        self._turn = room.turn()
        self.state = TransferState.REFUSED if self._turn.must_wait else TransferState.PLACED
        self.error: PddError | None = None
        self.progress: ReplicationProgress | None = None
        self._listener = listener
        self._workers = workers
        self._links = links
        self._make_room = make_room
        self._clock = clock
        self._settings = settings
        self._detached = False
        self._send_class = spec.send_class
        self._tasks: asyncio.TaskGroup | None = None
        self._prefilled = asyncio.Event()
        self._prefilled_at: Seconds | None = None
        self._refused_at = clock.now() if self.refused else None
        self._released = asyncio.Event()
        self._ended = asyncio.Event()
        self._evicted = asyncio.Event()
        self._order_done = False
        self.is_targets_fault = False
        """It has failed because the target was away, or not what it should be."""
        self._num_placed = 0
        self._order: asyncio.Task[None] | None = None
        self._standing: OrderId | None = None
        self._sent_before = 0
        self._standstill = Standstill(
            spec.source, spec.target, workers=workers, links=links, clock=clock, settings=settings
        )

    @property
    def settled(self) -> bool:
        return self.state in (TransferState.READY, TransferState.FAILED)

    @property
    def released(self) -> bool:
        """It holds nothing any more, or is about to."""
        return self._released.is_set()

    @property
    def refused(self) -> bool:
        return self.state is TransferState.REFUSED

    @property
    def informed(self) -> bool:
        """Its target has said what it lacks."""
        return self.progress is not None and self.progress.num_missing is not None

    @property
    def num_missing(self) -> int | None:
        """How many blocks the target still lacks; None while it has not said so."""
        if self.state is TransferState.READY or self.spec.is_local:
            return 0
        if self.progress is None or self.progress.num_missing is None:
            return None
        return self.progress.num_missing - self.progress.num_acknowledged

    @property
    def num_lacking(self) -> int | None:
        """How many blocks the target lacked when it was asked; None while it has not said so."""
        if self.spec.is_local:
            return 0
        return None if self.progress is None else self.progress.num_missing

    @property
    def idle(self) -> Seconds:
        """How long nothing has arrived."""
        return self._standstill.idle

    @property
    def sent(self) -> Bytes:
        """Block payload that the source sent for this transfer, over all of its orders."""
        return Bytes(self._sent_before + (0 if self.progress is None else self.progress.sent_bytes))

    def prefill_done(self) -> None:
        """All blocks should be at the source by now: from here on a standstill counts."""
        if not self._prefilled.is_set():
            self._prefilled_at = self._clock.now()
            self._standstill.moved()
            self._prefilled.set()
            self._tell_line()

    @property
    def demoted(self) -> bool:
        """It gets only what the line has to spare."""
        return self._send_class is SendClass.BACKGROUND

    def demote(self) -> None:
        """Nobody waits for it any more: from now on it is sent while nothing else is, and cut when that is never."""
        self._send_class = SendClass.BACKGROUND
        self._standstill.moved()
        self._tell_line()
        if self._tasks is not None and self._standing is not None:
            demotion = self.spec.source.node.reclassify(self._standing, self._send_class)
            self._tasks.create_task(self._tell_source(demotion, self._standing), name=f"demotion {self.spec.name}")

    def detach(self) -> None:
        """The request is over, the transfer goes on; it releases itself when it is settled. Nobody is notified."""
        self._detached = True
        if self.settled:
            self.release()

    def release(self) -> None:
        """Ends the order, the reservation and the leases. Idempotent; ``ended`` tells when that is done."""
        self._released.set()

    async def ended(self) -> None:
        """Waits until nothing is held any more."""
        await self._ended.wait()

    async def run(self) -> None:
        """Runs until it is released or has failed. Called once, by the desk."""
        try:
            await self._carry()
        except Exception:
            _logger.exception("transfer_crashed transfer=%s", self.spec.name)
            self._settle(TransferState.FAILED, None)
        finally:
            self._ended.set()

    async def _carry(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            watch = tasks.create_task(self._keep_watch(), name=f"watch {self.spec.name}")
            self._begin_order()
            standstill = tasks.create_task(self._notice_standstill(), name=f"standstill {self.spec.name}")
            await self._released.wait()
            if self._detached and self.state is TransferState.READY and self._order and self._standing is not None:
                # What was sent is told with the last acknowledgement, which comes after the block.
                await asyncio.wait([self._order], timeout=self._settings.room_patience)
            # Nothing is sent any more by the time that the room for it is given up.
            for part in filter(None, (standstill, self._order, watch)):
                part.cancel()
                await asyncio.wait([part])

    # The target -------------------------------------------------------------------------------------------------------

    async def _keep_watch(self) -> None:
        patience = self._patience()
        try:
            while not self.settled:
                await self._watch_in_turn(patience)
        finally:
            self._turn.over()

    async def _watch_in_turn(self, patience: Patience) -> None:
        """Asks for room when it is this transfer's turn, then listens to the watch for as long as it lasts."""
        if self._turn.must_wait and not await self._come():
            limit = self._settings.retry_after
            self._settle(TransferState.FAILED, CapacityExhausted(f"no room at {self._target}", retry_after_s=limit))
            return
        try:
            await self._watch_once(patience)
        except CapacityExhausted:
            self._turn.refused()
            if not self.demoted:
                self._make_room()
        except PddError as error:
            self._turn.over()
            await self._bear(error, patience, is_targets=True)

    async def _come(self) -> bool:
        """Waits in line; False when it has waited for too long."""
        self._end_order()
        self._change(TransferState.REFUSED)
        self._refused_at = self._clock.now() if self._refused_at is None else self._refused_at
        while not self._has_waited_too_long(self._refused_at):
            try:
                async with asyncio.timeout(self._settings.room_patience):
                    await self._turn.come()
                return True
            except TimeoutError:
                pass
        return False

    def _has_waited_too_long(self, since: Seconds) -> bool:
        """Before the first token a client waits in line, as it does for its place; after it, for the next token."""
        now, settings = self._clock.now(), self._settings
        if self._prefilled_at is not None and now - self._prefilled_at >= settings.room_patience:
            return True
        return self.demoted or now - since >= settings.admission.max_queue_s

    async def _watch_once(self, patience: Patience) -> None:
        watch = Watch(
            watch=WatchId(self._next_name()), hashes=self.spec.hashes, reserve_blocks=self.spec.reserve_blocks
        )
        readings = self.spec.target.node.watch(watch)
        async with closing_within(readings, self._settings.release_patience):
            num_ready: int | None = None
            async for readiness in readings:
                patience.forget()
                self._turn.over()
                self._refused_at = None
                self._take_readiness(readiness.num_ready, num_ready)
                num_ready = readiness.num_ready
        raise NodeFailed(f"{self._target} ended a watch")

    def _take_readiness(self, num_ready: int, before: int | None) -> None:
        admitted = self.state is TransferState.REFUSED
        if admitted or (before is not None and num_ready > before):
            self._standstill.moved()
        if num_ready >= len(self.spec.hashes):
            self._settle(TransferState.READY, None)
            return
        if before is None and self._order_done:
            self._evicted.set()  # they came before there was room to keep them
        self._begin_order()
        self._change(TransferState.MOVING)

    # The source -------------------------------------------------------------------------------------------------------

    def _begin_order(self) -> None:
        """Unless it stands already, or there is nothing to send."""
        if self._order is None and self._tasks is not None and not self.spec.is_local:
            self._order = self._tasks.create_task(self._keep_order(), name=f"order {self.spec.name}")

    def _end_order(self) -> None:
        """The target has no room for what it would send."""
        if self._order is not None:
            self._order.cancel()
            self._order = None

    async def _keep_order(self) -> None:
        patience = self._patience()
        instance = None
        while not self.settled:
            # The lifetime in which prefill wrote its blocks is the first one seen, not the one after a restart.
            instance = instance or self._workers.node_instance(self.spec.source.node.node)
            try:
                self._order_done = await self._order_once(patience)
                if self._order_done and not self.settled:
                    await self._evicted.wait()
                    self._evicted.clear()
            except PddError as error:
                await self._bear(error, patience)
                await self._check_source(instance)

    async def _order_once(self, patience: Patience) -> bool:
        """True when every block has arrived."""
        self._sent_before, self.progress = self.sent, None
        order = ReplicationOrder(
            order=OrderId(self._next_name()),
            target=self.spec.target.node.node,
            hashes=self.spec.hashes,
            send_class=self._send_class,
        )
        done, self._standing = False, order.order
        try:
            steps = self.spec.source.node.replicate(order)
            async with closing_within(steps, self._settings.release_patience):
                async for progress in steps:
                    self._take_progress(progress, patience)
                    done = progress.done
        finally:
            self._standing = None
            self._links.ended(*self.spec.ends, order.order, self._clock.now())
            if not done:
                await self._tell_source(self.spec.source.node.cancel(order.order), order.order)
        return done

    def _take_progress(self, progress: ReplicationProgress, patience: Patience) -> None:
        """Being placed is no progress: a node may accept an order again and again and never get through to its peer."""
        before = self.progress
        if progress.num_missing is not None:
            patience.forget()
        if before is not None and progress.num_acknowledged > before.num_acknowledged:
            self._standstill.moved()
        self.progress = progress
        self._tell_line()
        was_informed = before is not None and before.num_missing is not None
        if progress.num_missing is not None and not was_informed and self._is_heard:
            self._listener.on_informed(self)

    def _tell_line(self) -> None:
        """What the source said last, and whether only the line is waited for now."""
        if self.progress is not None and self.progress.order == self._standing:
            self._links.record(
                *self.spec.ends,
                self.progress,
                now=self._clock.now(),
                all_there=self._prefilled.is_set() and self.state is TransferState.MOVING,
                send_class=self._send_class,
            )

    async def _tell_source(self, saying: Coroutine[None, None, None], order: OrderId) -> None:
        """What the source doesn't hear it need not know: orders end with the node, or with our connection to it."""
        try:
            async with asyncio.timeout(self._settings.release_patience):
                await saying
        except (PddError, TimeoutError) as error:
            _logger.debug("source_not_told order=%s reason=%s", order, error)

    async def _check_source(self, instance: NodeInstance | None) -> None:
        """Blocks are written once: what a restarted source forgot it will never send."""
        try:
            async with asyncio.timeout(self._settings.health.timeout_s):
                stats = await self.spec.source.node.stats()
        except (PddError, TimeoutError):
            return  # still away: the next try finds out
        if instance is not None and stats.instance != instance:
            self._settle(TransferState.FAILED, NodeFailed(f"node {stats.node} restarted and lost the prompt's blocks"))

    async def _notice_standstill(self) -> None:
        """A block that prefill's node never got, or lost before it was sent, never arrives."""
        await self._prefilled.wait()
        if await self._standstill.come(self):
            why = "the line had nothing to spare for it" if self.demoted else "the transfer has come to a standstill"
            self._settle(TransferState.FAILED, NodeFailed(why))

    # State ------------------------------------------------------------------------------------------------------------

    def _patience(self) -> Patience:
        return Patience(self._clock, limit=self._settings.node_patience, retry=self._settings.node_retry)

    async def _bear(self, error: PddError, patience: Patience, *, is_targets: bool = False) -> None:
        """Waits a little if waiting can help; else the transfer has failed."""
        if isinstance(error, ContextTooLong | Incompatible | BlocksLost) or not await patience.bear():
            self.is_targets_fault = is_targets
            self._settle(TransferState.FAILED, error)

    def _settle(self, state: TransferState, error: PddError | None) -> None:
        if self.settled:
            return
        self.error = error
        if state is TransferState.FAILED:
            level = logging.DEBUG if self.demoted else logging.WARNING
            _logger.log(level, "transfer_failed transfer=%s reason=%s", self.spec.name, error)
        self._change(state)
        if state is TransferState.FAILED or self._detached:
            self.release()

    def _change(self, state: TransferState) -> None:
        if self.state is state or self.settled:
            return
        self.state = state
        self._tell_line()
        if self._is_heard:
            self._listener.on_change(self)

    @property
    def _is_heard(self) -> bool:
        return not self._detached and not self._released.is_set()

    @property
    def _target(self) -> str:
        return f"node {self.spec.nodes[1]}"

    def _next_name(self) -> str:
        self._num_placed += 1
        return f"{self.spec.name}.{self._num_placed}"
