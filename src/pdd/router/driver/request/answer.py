"""An answer as its reader holds it, from before the request has its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pdd.core.errors import PddError
from pdd.protocol import relay
from pdd.router.base import EmittedSpan, RequestReport
from pdd.router.driver.request.report import Reporter
from pdd.router.driver.request.run import RequestRun


class RunningAnswer:
    """A ``router.base.Answer`` whose request stands in line first, then runs as a task of the driver."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.left = False
        """The reader is gone."""
        self._run: RequestRun | None = None
        self._refusal: PddError | None = None
        self._decided = asyncio.Event()
        self._completed = False

    @property
    def report(self) -> RequestReport:
        return self.reporter.report

    def __aiter__(self) -> AsyncIterator[EmittedSpan]:
        return self

    async def __anext__(self) -> EmittedSpan:
        await self._decided.wait()
        if self._refusal is not None:
            raise self._refusal
        assert self._run is not None
        span = await self._run.outbox.receive()
        if span is None:
            raise StopAsyncIteration
        return span

    def begin(self, run: RequestRun) -> None:
        """The request has its place. Not after the reader has left."""
        self._run = run
        self._decided.set()

    def refuse(self, error: PddError) -> None:
        """The request will not run."""
        self.reporter.close("client_left" if self.left else "refused")
        self._refusal = error
        self._decided.set()

    def complete(self) -> None:
        """See ``router.base.Answer``. Idempotent."""
        if self._run is not None and not self._completed:
            self._completed = True
            self._run.inbox.post_first(relay.AnswerComplete())

    def leave(self) -> None:
        """The reader is gone: whatever it did not take is dropped, and unless the answer is complete it is aborted."""
        self.left = True
        if self._run is not None:
            self._run.outbox.discard()
            if not self._completed:
                self._run.inbox.post_first(relay.ClientLeft())
