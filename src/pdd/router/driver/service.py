"""The router's service: opens requests, runs each of them in a task tree of its own, and knows when it is full.

It waits for nothing but engines, nodes and its clock, reads no environment and starts no thread, so it runs unchanged on
a virtual clock, against scripted engines or real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pdd.core.clock import Clock
from pdd.core.errors import CapacityExhausted, LocalProtocolError, Unavailable
from pdd.core.kv_format import KvFormat
from pdd.core.request import Role
from pdd.core.units import Bytes
from pdd.protocol import relay
from pdd.router.base import EmittedSpan, RequestReport, TokenRequest
from pdd.router.driver.lines import LineBook
from pdd.router.driver.pool import Pool, Worker
from pdd.router.driver.run import CommandHook, RequestRun, Surroundings
from pdd.router.driver.settings import DriverSettings, NominalRates
from pdd.router.driver.transfer_desk import TransferDesk


class RunningAnswer:
    """A ``router.base.Answer`` whose request runs elsewhere, as a task of the driver."""

    def __init__(self, run: RequestRun) -> None:
        self._run = run
        self._completed = False

    @property
    def report(self) -> RequestReport:
        return self._run.report

    def __aiter__(self) -> AsyncIterator[EmittedSpan]:
        return self

    async def __anext__(self) -> EmittedSpan:
        span = await self._run.outbox.receive()
        if span is None:
            raise StopAsyncIteration
        return span

    def complete(self) -> None:
        """See ``router.base.Answer``. Idempotent."""
        if not self._completed:
            self._completed = True
            self._run.inbox.post_first(relay.AnswerComplete())

    def leave(self) -> None:
        """The reader is gone: whatever it did not take is dropped, and unless the answer is complete it is aborted."""
        self._run.outbox.discard()
        if not self._completed:
            self._run.inbox.post_first(relay.ClientLeft())


class Driver:
    """Implements ``router.base.Service``. Requests can be opened while ``running`` is."""

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        kv_format: KvFormat,
        clock: Clock,
        rates: NominalRates | None = None,
        settings: DriverSettings | None = None,
        on_command: CommandHook | None = None,
    ) -> None:
        settings = settings or DriverSettings()
        self.pool = Pool(workers, settings, clock)
        self._settings = settings
        lines = LineBook(rates or {}, local_rate=settings.local_rate, block_bytes=kv_format.block_bytes, clock=clock)
        self._desk = TransferDesk(pool=self.pool, lines=lines, clock=clock, settings=settings)
        self._shared = Surroundings(
            pool=self.pool,
            desk=self._desk,
            lines=lines,
            clock=clock,
            kv_format=kv_format,
            settings=settings,
            on_command=on_command,
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._open: list[RunningAnswer] = []

    @property
    def num_open(self) -> int:
        """Requests whose context is open."""
        return len(self._open)

    @property
    def num_transfers(self) -> int:
        """Transfers that hold something, those of ended requests included."""
        return self._desk.num_running

    @property
    def wan_kv_bytes(self) -> Bytes:
        """KV payload sent between clusters so far. Unlike the sum of the reports, it counts transfers that went on
        after their request had ended.
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
        run = RequestRun(request, self._shared)
        answer = RunningAnswer(run)
        refusal = self._refusal()
        if refusal is not None:
            run.refuse(refusal)
            yield answer
            return
        task = self._require_tasks().create_task(run.run(), name=f"request {request.request_id}")
        self._open.append(answer)
        try:
            yield answer
        finally:
            answer.leave()
            try:
                await _wait_shielded(task)
            finally:
                self._open.remove(answer)

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._desk.start(tasks)
        self.pool.start(tasks)

    def _stop(self) -> None:
        self._tasks = None
        for answer in self._open:
            answer.leave()
        self._desk.stop()
        self.pool.stop()

    def _require_tasks(self) -> asyncio.TaskGroup:
        if self._tasks is None:
            raise LocalProtocolError("the driver is not running")
        return self._tasks

    def _refusal(self) -> Unavailable | None:
        """Why nothing can be started now, if so."""
        retry_after = self._settings.retry_after
        if len(self._open) >= self._settings.max_open_requests:
            return CapacityExhausted(f"{len(self._open)} requests are open, the limit", retry_after_s=retry_after)
        for role, name in ((Role.PREFILL, "prefill"), (Role.MAIN_DECODE, "main decode")):
            if not self.pool.has(role):
                return Unavailable(f"no {name} worker is up", retry_after_s=retry_after)
        return None


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
