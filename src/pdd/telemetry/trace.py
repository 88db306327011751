"""The event trace: one JSON object a line, the same live and simulated.

Every line has ``at`` (seconds on the recorder's clock), ``name``, ``request`` (null where it is about none) and the
fields of its event. A trace begins with ``trace_started``; live ones also say there which Unix time ``at`` was. No line
holds prompts or tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from pdd.core.clock import Clock
from pdd.core.units import Bytes, Seconds
from pdd.telemetry.events import Event, Field

_logger = logging.getLogger(__name__)

SCHEMA = 1
MAX_TRACE_BYTES = Bytes(256 * 1024 * 1024)
MAX_WAITING_EVENTS = 65_536
_FLUSH_EVERY = Seconds(0.25)


def event_line(event: Event) -> bytes:
    """One line, with its end."""
    line = {**event.fields, "at": round(event.at, 6), "name": event.name, "request": event.request}
    return msgspec.json.encode(line) + b"\n"


def trace_started(at: Seconds, **fields: Field) -> Event:
    """The first event of a trace."""
    return Event(at=at, name="trace_started", fields={"schema": SCHEMA, **fields})


class TraceFile:
    """Writes each event at once: for a simulation, whose clock does not notice."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.record(trace_started(Seconds(0.0)))

    def record(self, event: Event) -> None:
        """An ``EventSink``."""
        self._file.write(event_line(event))


class LiveTrace:
    """Writes to ``path`` from a thread of its own while ``writing`` lasts; whoever records never waits.

    Events that come faster than the disk takes them are dropped and counted. A file of more than ``max_bytes`` is put
    aside as ``<path>.old``, in place of the one before.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        unix_time: float,
        max_bytes: Bytes = MAX_TRACE_BYTES,
        max_waiting: int = MAX_WAITING_EVENTS,
    ) -> None:
        self._path = path
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._waiting: deque[Event] = deque()
        self._num_dropped = 0
        self._broken = False
        self.record(trace_started(clock.now(), unix_s=unix_time))

    def record(self, event: Event) -> None:
        """An ``EventSink``."""
        if self._broken or len(self._waiting) >= self._max_waiting:
            self._num_dropped += 1
        else:
            self._waiting.append(event)

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        """Writes what was recorded several times a second, and the rest at the end."""
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._keep_writing(), name="trace writer")
            try:
                yield
            finally:
                writer.cancel()
        await self._write_waiting()

    async def _keep_writing(self) -> None:
        while True:
            await self._write_waiting()
            await self._clock.sleep(_FLUSH_EVERY)

    async def _write_waiting(self) -> None:
        if not self._waiting:
            return
        batch, self._waiting = self._waiting, deque()
        if self._num_dropped:
            batch.append(Event(at=self._clock.now(), name="events_dropped", fields={"count": self._num_dropped}))
            self._num_dropped = 0
        try:
            await asyncio.to_thread(self._append, batch)
        except OSError as error:
            self._broken = True
            _logger.warning("trace_not_written path=%s reason=%s", self._path, error)

    def _append(self, batch: Iterable[Event]) -> None:
        with self._path.open("ab") as file:
            file.write(b"".join(map(event_line, batch)))
            size = file.tell()
        if size > self._max_bytes:
            self._path.replace(self._path.with_name(f"{self._path.name}.old"))
