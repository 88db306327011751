"""One measurement of a router: ``python -m benchmarks.router_measurement NAME``, one JSON object to stdout.

A process of its own, since ``benchmarks.router`` runs it on the source of two commits in turn, by PYTHONPATH. So it
uses only what commits from eead09e on have at the same place. All costs are processor time, whoever shares the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

import aiohttp
import msgspec

import pdd
from pdd.cli.deploy.deployment import Deployment, run_deployment
from pdd.cli.deploy.state import RoleKind
from pdd.cli.topology.file import load_simulated_topology, load_topology
from pdd.core.ids import RequestId, Salt, TenantId
from pdd.core.kv_format import KvFormat
from pdd.core.request import GREEDY, Route
from pdd.core.topology import EngineTable, Topology
from pdd.core.units import BitsPerSecond, Bytes, Seconds
from pdd.engine.catalog import model_of
from pdd.engine.http.sse import DONE, EventReader
from pdd.engine.scripted.engine import Script, ScriptedEngine
from pdd.router.base import RequestReport, TokenRequest
from pdd.sim.loop import run as run_on_virtual_time
from pdd.sim.run import simulate
from pdd.sim.workload.load import Changes, load_workload
from pdd.sim.workload.traces import fitting
from pdd.sim.world import World, build_world, running

if TYPE_CHECKING:  # older trees have it elsewhere
    from pdd.sim.memory.node import MemoryNode

_TOKEN_INTERVAL = Seconds(0.001)
_STREAM_PROMPT_TOKENS, _WAITING_PROMPT_TOKENS = 32, 512
_ENOUGH_CACHE_TOKENS = 1_000_000
_ENOUGH_ARENA = Bytes(256 * 1024 * 1024)
_PREFILL_TOKENS_PER_S = 1e6
_BLOCK_TAKES = Seconds(2.0)
"""On the line that everybody waits for. At most a few blocks of any prompt get across it."""
_NOBODY_RELAYS = Seconds(1e9)
_ASKED_EVERY = Seconds(0.25)
_SEED = 1
_FEW_TOKENS = 2
"""One of prefill and one of main decode."""
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=120.0)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Figures by name. ``package`` is the folder of the ``pdd`` that was measured."""

    package: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured."""

    num_streams: int = 256
    num_tokens: int = 80
    """Of each stream, beyond the first few."""
    num_waiting: int = 256
    num_decisions: int = 20_480
    num_requests: Mapping[str, int]
    """For each simulated topology."""


_FULL = Size(num_requests={"crossing": 300, "paper": 60})
_SMALLEST = Size(num_streams=4, num_tokens=8, num_waiting=4, num_decisions=40, num_requests={"crossing": 2, "paper": 2})

# Streams through the front door ---------------------------------------------------------------------------------------


def _measure_streams(size: Size) -> dict[str, float]:
    """Long answers less short ones, all at once: what is left is tokens alone, without requests that begin and end."""
    return asyncio.run(_stream(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """Answers that were streamed at once, and what the router computed for them."""

    took: float
    num_events: int


async def _stream(size: Size) -> dict[str, float]:
    """Nobody's first requests are measured: they find nothing imported."""
    with tempfile.TemporaryDirectory(prefix="pdd-") as root:
        async with (
            run_deployment(_fast_topology(size), state_root=Path(root)) as deployment,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=_TIMEOUT) as http,
        ):
            ask = partial(_ask_all, http, deployment)
            await ask(range(-max(1, size.num_streams // 8), 0), _FEW_TOKENS)
            few = await ask(range(size.num_streams), _FEW_TOKENS)
            many = await ask(range(size.num_streams, 2 * size.num_streams), _FEW_TOKENS + size.num_tokens)
    took = max(many.took - few.took, _TICK)  # the smallest size may take no tick at all
    return {
        "tokens/s": size.num_streams * size.num_tokens / took,
        "events/s": (many.num_events - few.num_events) / took,
        "requests/s": size.num_streams / max(few.took, _TICK),
    }


async def _ask_all(http: aiohttp.ClientSession, deployment: Deployment, numbers: range, num_tokens: int) -> _Round:
    (pid,) = (role.pid for role in deployment.roles if role.kind is RoleKind.ROUTER)
    assert pid is not None
    began = _processor_time(pid)
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(_read_stream(http, deployment, number, num_tokens)) for number in numbers]
    return _Round(took=_processor_time(pid) - began, num_events=sum(stream.result() for stream in streams))


def _fast_topology(size: Size) -> Topology:
    """Scripted, with room for all streams at once, and no emulated line: its process would be the bottleneck."""
    packaged = load_topology("scripted")
    return msgspec.structs.replace(
        packaged,
        nodes=tuple(msgspec.structs.replace(node, arena_bytes=_ENOUGH_ARENA) for node in packaged.nodes),
        engines=tuple(_fast_engine(engine, size) for engine in packaged.engines),
        router=msgspec.structs.replace(packaged.router, port=0, max_open_requests=size.num_streams),
        links=(),
    )


def _fast_engine(table: EngineTable, size: Size) -> EngineTable:
    return msgspec.structs.replace(
        table,
        token_interval_s=_TOKEN_INTERVAL,
        prefill_tokens_per_s=_PREFILL_TOKENS_PER_S,
        max_batch=size.num_streams,
        cache_tokens=_ENOUGH_CACHE_TOKENS,
    )


async def _read_stream(http: aiohttp.ClientSession, deployment: Deployment, number: int, num_tokens: int) -> int:
    """How many events with a part of the answer came; one more, which says how many tokens it had, is not counted."""
    body = {
        "model": deployment.topology.served_model_name,
        "prompt": list(_prompt(number, _STREAM_PROMPT_TOKENS)),
        "max_tokens": num_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "pdd": {"route": Route.DIRECT.value},
    }
    reader, num_events, usage = EventReader(), 0, b""
    async with http.post(f"{deployment.router_url}/v1/completions", json=body) as reply:
        reply.raise_for_status()
        async for piece in reply.content.iter_any():
            for event in reader.feed(piece):
                if event != DONE:
                    num_events, usage = num_events + 1, event
    num_received = msgspec.json.decode(usage)["usage"]["completion_tokens"]
    if num_received != num_tokens:
        raise RuntimeError(f"an answer of {num_received} tokens instead of {num_tokens}")
    return num_events - 1


def _processor_time(pid: int) -> float:
    """Seconds that the process has computed so far, in itself and in the kernel, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


# Decisions on the virtual clock ---------------------------------------------------------------------------------------


def _measure_decisions(size: Size) -> dict[str, float]:
    """All that the router does while requests wait for a line; they do nothing but be asked again."""
    return {"us": run_on_virtual_time(_decide(size))}


async def _decide(size: Size) -> float:
    topology = _slow_topology(size)
    kv_format = model_of(topology).kv_format(topology.block_tokens)
    counts: Counter[str] = Counter()

    def count(_: RequestId, command: object) -> None:
        counts[type(command).__name__] += 1

    world = build_world(topology, kv_format, partial(_make_engine, kv_format), on_command=count)
    reports: list[RequestReport] = []
    async with running(world), asyncio.TaskGroup() as group:
        waiting = [group.create_task(_wait(world, number, reports)) for number in range(size.num_waiting)]
        while counts["AskRoute"] < 2 * size.num_waiting:  # noqa: ASYNC110 - on virtual time asking again costs nothing
            await asyncio.sleep(_ASKED_EVERY)
        num_before, began = counts["AskRoute"], process_time()
        await asyncio.sleep(_ASKED_EVERY * size.num_decisions / size.num_waiting)
        took, num_decisions = process_time() - began, counts["AskRoute"] - num_before
        _check_that_all_wait(reports, num_decisions, size)
        for task in waiting:
            task.cancel()
    return 1e6 * took / num_decisions


def _slow_topology(size: Size) -> Topology:
    packaged = load_topology("scripted")
    block_bits = 8 * model_of(packaged).kv_format(packaged.block_tokens).block_bytes
    policy = msgspec.structs.replace(
        packaged.router.policy, relay_threshold_s=_NOBODY_RELAYS, reroute_interval_s=_ASKED_EVERY
    )
    return msgspec.structs.replace(
        packaged,
        links=tuple(
            msgspec.structs.replace(link, rate_bits_per_s=BitsPerSecond(block_bits / _BLOCK_TAKES))
            for link in packaged.links
        ),
        router=msgspec.structs.replace(packaged.router, policy=policy, max_open_requests=size.num_waiting),
    )


def _make_engine(kv_format: KvFormat, table: EngineTable, node: MemoryNode) -> ScriptedEngine:
    return ScriptedEngine(
        table.name,
        kv_format=kv_format,
        script=Script(prefill_tokens_per_s=_PREFILL_TOKENS_PER_S),
        connect_store=partial(node.open_store, table.name),
    )


async def _wait(world: World, number: int, reports: list[RequestReport]) -> None:
    request = TokenRequest(
        request_id=RequestId(f"r{number}"),
        tenant=TenantId("benchmark"),
        prompt=_prompt(number, _WAITING_PROMPT_TOKENS),
        max_tokens=64,
        stop_token_ids=frozenset(),
        sampling=GREEDY,
        salt=Salt(""),
    )
    async with world.driver.open(request) as answer:
        reports.append(answer.report)
        async for _ in answer:
            pass


def _check_that_all_wait(reports: list[RequestReport], num_decisions: int, size: Size) -> None:
    """Otherwise it was something else that took the time."""
    for report in reports:
        num_tokens = sum(report.tokens_by_role.values())
        if report.route is not Route.DIRECT or num_tokens != 1:
            raise RuntimeError(f"a request did not wait: route {report.route}, {num_tokens} tokens")
    if not 0.9 * size.num_decisions <= num_decisions <= 1.1 * size.num_decisions:
        raise RuntimeError(f"{num_decisions} decisions instead of {size.num_decisions}")


# The simulator --------------------------------------------------------------------------------------------------------


def _measure_simulator(name: str, size: Size) -> dict[str, float]:
    topology = load_simulated_topology(name)
    changes = Changes(num_requests=size.num_requests[name])
    workload = fitting(load_workload("generated", seed=_SEED, changes=changes), topology.max_model_tokens)
    began = process_time()
    result = simulate(topology, workload, seed=_SEED)
    return {"requests/s": len(result.samples) / (process_time() - began)}


# ----------------------------------------------------------------------------------------------------------------------


def _prompt(number: int, num_tokens: int) -> tuple[int, ...]:
    return tuple((number * 7919 + index * 104729 + 13) % 512 for index in range(num_tokens))


MEASUREMENTS: Mapping[str, Callable[[Size], dict[str, float]]] = {
    "streams": _measure_streams,
    "decisions": _measure_decisions,
    "crossing": partial(_measure_simulator, "crossing"),
    "paper": partial(_measure_simulator, "paper"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.router_measurement", description=__doc__)
    parser.add_argument("name", choices=MEASUREMENTS)
    parser.add_argument("--smallest", action="store_true", help="just see that it runs: the figures mean nothing")
    arguments = parser.parse_args()
    figures = MEASUREMENTS[arguments.name](_SMALLEST if arguments.smallest else _FULL)
    measured = Measured(package=str(Path(pdd.__file__).parent), figures=figures)
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
