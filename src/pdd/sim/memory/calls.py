"""What a router has open at an in-memory node: orders and watches, told of as real nodes tell of them.

News are told at once: what the target lacks, that all is there, the end. Else one word every ``REPORT_INTERVAL`` is
enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pdd.core.ids import OrderId
from pdd.core.replication import ReplicationProgress
from pdd.index.blocks import Owner
from pdd.kvnode.outflow import REPORT_INTERVAL, Outflow
from pdd.protocol.orders import OrderFailure, OrderKey, Standing
from pdd.protocol.peer import ErrorKind


class _Teller:
    """Wakes whoever reads a call's reports."""

    def __init__(self) -> None:
        self.failure: OrderFailure | None = None
        self._told = asyncio.Event()
        self._is_due = False

    async def next(self) -> None:
        """Waits for news."""
        await self._told.wait()
        self._told.clear()

    def fail(self, error: ErrorKind, reason: str) -> None:
        """The node does not have this any more."""
        self.failure = self.failure or OrderFailure(error=error, reason=reason)
        self._told.set()

    def tell(self) -> None:
        self._told.set()

    def tell_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(REPORT_INTERVAL, self._tell_now)

    def _tell_now(self) -> None:
        self._is_due = False
        self._told.set()


class OpenOrder(_Teller):
    """Satisfies ``outflow.OrderListener``."""

    def __init__(self, order: OrderId, key: OrderKey, outflow: Outflow, on_end: Callable[[], object]) -> None:
        super().__init__()
        self._on_end = on_end
        self.key = key
        self.outflow = outflow
        self._order = order
        self._standing: Standing | None = None
        self._is_done = False

    def changed(self, standing: Standing) -> None:
        before, self._standing = self._standing, standing
        if before is None or before.num_missing != standing.num_missing:
            self.tell()
        else:
            self.tell_soon()

    def ended(self, standing: Standing, failure: OrderFailure | None) -> None:
        self._standing, self._is_done = standing, failure is None
        self._on_end()
        if failure is None:
            self.tell()
        else:
            self.fail(failure.error, failure.reason)

    def progress(self) -> ReplicationProgress:
        standing = self._standing
        assert standing is not None, "asked before it was placed"
        return ReplicationProgress(
            order=self._order,
            num_missing=standing.num_missing,
            num_acknowledged=standing.num_acknowledged,
            sent_bytes=standing.sent_bytes,
            rate=self.outflow.rate(),
            backlog=self.outflow.backlog,
            background_backlog=self.outflow.background_backlog,
            done=self._is_done,
        )


class OpenWatch(_Teller):
    """``report`` is for ``NodeStore.start_watch``."""

    def __init__(self, owner: Owner, num_hashes: int) -> None:
        super().__init__()
        self.owner = owner
        self.num_ready: int | None = None
        self._num_hashes = num_hashes

    def report(self, num_ready: int) -> None:
        before, self.num_ready = self.num_ready, num_ready
        if before is None or num_ready == self._num_hashes:
            self.tell()
        elif num_ready > before:
            self.tell_soon()
