"""The router's service: opens requests, runs each of them in a task tree of its own, and knows when it is full.

It waits for nothing but engines, nodes and its clock, reads no environment and starts no thread, so it runs unchanged
on a virtual clock, against scripted engines or real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from pdd.belief.beliefs import Beliefs
from pdd.belief.links import DeclaredRates, Links
from pdd.core.clock import Clock
from pdd.core.errors import LocalProtocolError, Unavailable
from pdd.core.kv_format import KvFormat
from pdd.core.units import Bytes, Seconds
from pdd.policy.admission import who_is_missing
from pdd.router.base import TokenRequest
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.bounds.waiting_room import Place, WaitingRoom
from pdd.router.driver.request.answer import RunningAnswer
from pdd.router.driver.request.report import Reporter
from pdd.router.driver.request.run import RequestRun
from pdd.router.driver.request.surroundings import CommandHook, Surroundings
from pdd.router.driver.transfers.desk import TransferDesk
from pdd.router.driver.workers.agreement import Agreement
from pdd.router.driver.workers.pins import PinBoard
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.prefill_turns import PrefillTurns
from pdd.router.driver.workers.worker import Worker
from pdd.telemetry.events import EventSink


class Driver:
    """Implements ``router.base.Service``. Requests can be opened while ``running`` is."""

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        kv_format: KvFormat,
        clock: Clock,
        rates: DeclaredRates | None = None,
        settings: DriverSettings | None = None,
        agreement: Agreement | None = None,
        on_command: CommandHook | None = None,
        sink: EventSink | None = None,
    ) -> None:
        """Engines and nodes that don't meet ``agreement`` are down. ``sink`` gets all events, at the clock's time."""
        self._settings = settings = settings or DriverSettings()
        self.pool = Pool(workers, settings, clock, agreement=agreement, sink=sink)
        self.room = WaitingRoom(settings, clock)
        self._pins = PinBoard(self.pool, settings, clock)
        links = Links(rates or {}, local_rate=settings.local_rate, block_bytes=kv_format.block_bytes)
        beliefs = self.beliefs = Beliefs[Worker].begin(
            self.pool.workers, self._pins, links, block_bytes=kv_format.block_bytes, settings=settings.policy
        )
        self._desk = TransferDesk(
            workers=beliefs.workers, links=links, prefixes=beliefs.prefixes, clock=clock, settings=settings
        )
        self._shared = Surroundings(
            beliefs=beliefs,
            pool=self.pool,
            desk=self._desk,
            prefill_turns=PrefillTurns(),
            clock=clock,
            kv_format=kv_format,
            settings=settings,
            room=self.room,
            on_command=on_command,
        )
        self._sink = sink
        self._tasks: asyncio.TaskGroup | None = None
        self._open: dict[RunningAnswer, Place] = {}

    @property
    def now(self) -> Seconds:
        """On the driver's clock."""
        return self._shared.clock.now()

    @property
    def num_open(self) -> int:
        """Requests whose context is open, those that wait for a place included."""
        return len(self._open)

    @property
    def num_transfers(self) -> int:
        """Transfers that hold something, those of ended requests included."""
        return self._desk.num_running

    @property
    def wan_kv_bytes(self) -> Bytes:
        """KV payload sent between clusters so far.

        Unlike the sum of the reports, it counts transfers that went on after their request had ended.
        """
        return self._desk.crossed

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Checks the workers, then serves until the context ends; open requests are aborted then, in order."""
        await self.pool.check_all()
        failure: BaseException | None = None
        async with asyncio.TaskGroup() as tasks:
            self._start(tasks)
            try:
                yield
            except BaseException as error:  # noqa: BLE001 - raised again below: a TaskGroup would wrap it
                failure = error
            self._stop()
        if failure is not None:
            raise failure

    @asynccontextmanager
    async def open(self, request: TokenRequest) -> AsyncGenerator[RunningAnswer]:
        """See ``router.base.Service``. Iterating the answer raises what keeps the request from being served."""
        answer = RunningAnswer(self._reporter(request))
        answer.reporter.note("opened", prompt_tokens=len(request.prompt), max_tokens=request.max_tokens)
        tasks = self._require_tasks()
        try:
            self._require_workers()
            place = self.room.enter(request)
        except Unavailable as error:
            answer.refuse(error)
            yield answer
            return
        task = tasks.create_task(self._serve(request, answer, place), name=f"request {request.request_id}")
        self._open[answer] = place
        try:
            yield answer
        finally:
            self._abandon(answer, place)
            try:
                await _wait_shielded(task)
            finally:
                del self._open[answer]

    async def _serve(self, request: TokenRequest, answer: RunningAnswer, place: Place) -> None:
        """One request's task: the line, then the run."""
        try:
            await self._stand_in_line(answer, place)
            if answer.left:  # a reader that still listens is one whom a router that stops has left
                raise Unavailable("the router is stopping", retry_after_s=self._settings.retry_after)
        except Unavailable as error:
            answer.refuse(error)
        else:
            run = RequestRun(request, self._shared, answer.reporter)
            answer.begin(run)
            await run.run()
        finally:
            self.room.leave(place)

    async def _stand_in_line(self, answer: RunningAnswer, place: Place) -> None:
        """Waits until the request may run, or its reader has left.

        Raises Unavailable when it has waited for too long.
        """
        if self.room.has_place(place):
            return
        answer.reporter.note("queued", waiting=self.room.num_waiting)
        try:
            await self.room.wait(place)
            await self._wait_for_workers(answer, place)
        finally:
            answer.report.queued_s = Seconds(self._shared.clock.now() - place.entered_at)
        answer.reporter.note("admitted", queued_s=round(answer.report.queued_s, 6))

    async def _wait_for_workers(self, answer: RunningAnswer, place: Place) -> None:
        """A request that stood in line does not fall to an engine that is just being restarted: it waits on, as long as
        it may wait at all.
        """
        until = place.entered_at + self._settings.admission.max_queue_s
        while not answer.left and who_is_missing(self.beliefs.roles()) is not None:
            if self._shared.clock.now() >= until:
                self._require_workers()
            await self._shared.clock.sleep(self._settings.node_retry)

    def _abandon(self, answer: RunningAnswer, place: Place) -> None:
        """Nobody waits for the answer any more: one that has its place ends by itself, one that stands in line leaves
        it.
        """
        answer.leave()
        if not self.room.has_place(place):
            self.room.leave(place)

    def _reporter(self, request: TokenRequest) -> Reporter:
        return Reporter(
            request.request_id, num_prompt_tokens=len(request.prompt), clock=self._shared.clock, sink=self._sink
        )

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._desk.start(tasks)
        self._pins.start(tasks)
        self.pool.start(tasks)

    def _stop(self) -> None:
        self._tasks = None
        for answer, place in self._open.items():
            self._abandon(answer, place)
        self._desk.stop()
        self._pins.stop()
        self.pool.stop()

    def _require_tasks(self) -> asyncio.TaskGroup:
        if self._tasks is None:
            raise LocalProtocolError("the driver is not running")
        return self._tasks

    def _require_workers(self) -> None:
        """Raises Unavailable when nobody could begin, or go on with, a request."""
        missing = who_is_missing(self.beliefs.roles())
        if missing is not None:
            raise self.room.nobody_is_up(missing)


async def _wait_shielded(task: asyncio.Task[None]) -> None:
    """Waits for a task of bounded duration; being cancelled meanwhile takes effect afterwards."""
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
