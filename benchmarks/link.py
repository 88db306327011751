"""How true the emulated line is: its rate, how it shares it, and what a small message waits beside bulk."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from time import perf_counter

from benchmarks.processes import Roles, running_roles
from benchmarks.report import Result, Row, row
from pdd.cli.deploy.state import RoleKind
from pdd.cli.topology.file import load_topology
from pdd.core.errors import Unavailable
from pdd.core.topology import LOOPBACK, Address
from pdd.core.units import BitsPerSecond, Seconds
from pdd.transport.emulate_control import Change, Show, ask_link

_LINK, _ENDPOINT = "wan", "node-md"
_RATES_MBIT = (20, 200)
_WARM_UP_S, _MEASURED_S = 1.0, 3.0
_CHUNK = b"\x00" * 65536
_BULK, _ECHO = b"B", b"E"
_NUM_PINGS = 15


@dataclass(slots=True)
class _Sink:
    """The endpoint behind the line: counts what bulk connections bring, echoes what others send."""

    received: dict[int, int] = field(default_factory=dict[int, int])
    writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])
    begun: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        kind = await reader.read(1)
        number = len(self.received)
        if kind == _BULK:
            self.received[number] = 0
            self.begun.release()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(len(_CHUNK)):
                if kind == _BULK:
                    self.received[number] += len(data)
                else:
                    writer.write(data)
                    await writer.drain()
        self.writers.discard(writer)
        writer.close()

    async def hang_up(self) -> None:
        """Ends what is still open, so that no handler is cancelled by the loop's end."""
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A running emulator with a sink at its far end."""

    sink: _Sink
    entrance: Address
    control: Address


def run(repetitions: int) -> Result:
    """Each repetition measures every rate, one after the other."""
    topology = load_topology("scripted")
    with running_roles(topology, (RoleKind.WAN, _LINK)) as roles:
        samples = asyncio.run(_measure(roles, repetitions))
    return Result(name="link", title="the emulated line, 15 ms one way, TCP over loopback", rows=tuple(_rows(samples)))


def _rows(samples: dict[str, list[float]]) -> list[Row]:
    rows: list[Row] = []
    for name, values in samples.items():
        unit, bound = ("ms", "30 + little") if "RTT" in name else ("ratio", "1")
        rows.append(row(name, unit, values, bound if "bulk" not in name else ""))
    return rows


async def _measure(roles: Roles, repetitions: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    async with _line(roles) as line:
        for _ in range(repetitions):
            for mbit in _RATES_MBIT:
                await ask_link(line.control, Change(rate_bits_per_s=BitsPerSecond(mbit * 1e6)))
                for name, value in (await _measure_rate(line, mbit)).items():
                    samples.setdefault(f"{mbit} Mbit/s: {name}", []).append(value)
    return samples


async def _measure_rate(line: _Line, mbit: int) -> dict[str, float]:
    idle = await _round_trip(line)
    (alone,) = await _bulk(line, 1)
    async with _flowing(line, 1):
        await asyncio.sleep(_WARM_UP_S)
        busy = await _round_trip(line)
    four = await _bulk(line, 4)
    nominal = mbit * 1e6 / 8
    return {
        "rate over nominal, one flow": alone / nominal,
        "rate over nominal, four flows": sum(four) / nominal,
        "Jain fairness, four flows": sum(four) ** 2 / (len(four) * sum(rate**2 for rate in four)),
        "RTT idle": idle * 1e3,
        "RTT beside one bulk flow": busy * 1e3,
    }


async def _bulk(line: _Line, num_flows: int) -> list[float]:
    """Each flow's bytes per second, after the line has filled."""
    async with _flowing(line, num_flows) as flows:
        await asyncio.sleep(_WARM_UP_S)
        before, began = dict(line.sink.received), perf_counter()
        await asyncio.sleep(_MEASURED_S)
        took = perf_counter() - began
        return [(line.sink.received[flow] - before[flow]) / took for flow in flows]


@contextlib.asynccontextmanager
async def _flowing(line: _Line, num_flows: int) -> AsyncGenerator[list[int]]:
    """Flows that send as fast as they may; yields their numbers at the sink."""
    first = len(line.sink.received)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_send(line.entrance)) for _ in range(num_flows)]
        for _ in tasks:
            await line.sink.begun.acquire()
        yield list(range(first, first + num_flows))
        for task in tasks:
            task.cancel()


async def _send(entrance: Address) -> None:
    _, writer = await asyncio.open_connection(entrance.host, entrance.port)
    try:
        writer.write(_BULK)
        while True:
            writer.write(_CHUNK)
            await writer.drain()
    finally:
        # A close alone would leave megabytes in the kernel, which would go on crossing the line in the next
        # measurement.
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


async def _round_trip(line: _Line) -> float:
    """Median of some pings of one byte, on a connection of their own."""
    reader, writer = await asyncio.open_connection(line.entrance.host, line.entrance.port)
    writer.write(_ECHO)
    times: list[float] = []
    for _ in range(_NUM_PINGS):
        began = perf_counter()
        writer.write(b"?")
        await reader.readexactly(1)
        times.append(perf_counter() - began)
    writer.close()
    return sorted(times)[len(times) // 2]


@contextlib.asynccontextmanager
async def _line(roles: Roles) -> AsyncGenerator[_Line]:
    link, node = roles.topology.link(_LINK), roles.topology.node(_ENDPOINT)
    control = Address(host=LOOPBACK, port=link.control_port)
    sink = _Sink()
    async with await asyncio.start_server(sink.serve, node.host, node.port):
        await _until_it_answers(control)
        yield _Line(sink=sink, entrance=Address(host=LOOPBACK, port=link.forwards[_ENDPOINT]), control=control)
        await sink.hang_up()


async def _until_it_answers(control: Address) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await ask_link(control, Show(), timeout=Seconds(1.0))
                return
            except Unavailable:
                await asyncio.sleep(0.05)
