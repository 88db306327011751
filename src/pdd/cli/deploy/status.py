"""``pdd status``: what a running deployment does, asked of its live processes."""

from __future__ import annotations

import argparse
import asyncio
import http.client
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.deploy.state import Phase, RoleKind, RoleStatus, RunDirectory, find_live_run
from pdd.cli.options import add_json, add_run, add_state_dir
from pdd.cli.output import print_json
from pdd.cli.quantities import format_rate, format_size, format_time
from pdd.core.errors import PddError
from pdd.core.request import Role
from pdd.core.topology import LOOPBACK, Address, Topology
from pdd.core.units import Seconds
from pdd.transport.emulate_control import LinkCondition, LinkState, Show, ask_link

if TYPE_CHECKING:
    from rich.console import Console

_PATIENCE = Seconds(3.0)
_MAX_REPLY_BYTES = 1024 * 1024
_ABBREVIATIONS = {Role.PREFILL: "P", Role.RELAY_DECODE: "RLD", Role.MAIN_DECODE: "MD"}

Details = dict[str, Any] | None
"""What a live process said about itself; None if it did not answer."""


def define(parser: CommandParser) -> None:
    """``pdd status``."""
    parser.description = "Show the roles of a running deployment, with what each live process says about itself."
    parser.epilog = (
        "Exit code 0 if every role answers, else 1; `silent` is one that runs but does not answer. Sent and got count bytes "
        "of KV for a node, of everything for a link. --json tells all there is to know."
    )
    add_run(parser)
    add_state_dir(parser)
    add_json(parser)
    parser.set_defaults(run=run_status)


def run_status(arguments: argparse.Namespace) -> int:
    """Prints the status; 0 if every role is ready and answers."""
    from pdd.cli.topology.ports import read_resolved

    run = find_live_run(arguments.state_dir, arguments.run_name)
    topology = read_resolved(run.topology_file)
    status = run.read_status()
    roles = status.roles if status is not None else ()
    details = asyncio.run(_ask_everyone(topology, roles))
    healthy = bool(roles) and all(found is not None for found in details)
    if arguments.json:
        print_json(_as_object(run, topology, roles, details, healthy=healthy))
    else:
        print_table(open_console(), run, topology, roles, details)
    return 0 if healthy else 1


def _as_object(
    run: RunDirectory,
    topology: Topology,
    roles: tuple[RoleStatus, ...],
    details: tuple[Details, ...],
    *,
    healthy: bool,
) -> dict[str, object]:
    router = topology.router
    return {
        "topology": topology.name,
        "model": topology.served_model_name,
        "url": f"http://{Address(host=router.host, port=router.port)}",
        "state_dir": str(run.path),
        "healthy": healthy,
        "roles": [
            {**msgspec.to_builtins(role), "answers": found is not None, "details": found}
            for role, found in zip(roles, details, strict=True)
        ],
    }


async def _ask_everyone(topology: Topology, roles: tuple[RoleStatus, ...]) -> tuple[Details, ...]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_ask(topology, role)) for role in roles]
    return tuple(task.result() for task in tasks)


async def _ask(topology: Topology, role: RoleStatus) -> Details:
    if role.phase is not Phase.READY:
        return None
    askers: dict[RoleKind, Callable[[Topology, str], Awaitable[dict[str, Any]]]] = {
        RoleKind.NODE: _ask_node,
        RoleKind.WAN: _ask_wan,
        RoleKind.ENGINE: _ask_engine,
        RoleKind.ROUTER: _ask_router,
    }
    try:
        async with asyncio.timeout(_PATIENCE):
            return await askers[role.kind](topology, role.name)
    except (PddError, OSError, TimeoutError, http.client.HTTPException, msgspec.DecodeError):
        return None


async def _ask_wan(topology: Topology, name: str) -> dict[str, Any]:
    control = Address(host=LOOPBACK, port=topology.link(name).control_port)
    return msgspec.to_builtins(await ask_link(control, Show()))


async def _ask_engine(topology: Topology, name: str) -> dict[str, Any]:
    from pdd.engine.http.wire_reply import INFO_PATH

    engine = topology.engine(name)
    return await asyncio.to_thread(_get, Address(host=engine.host, port=engine.port), INFO_PATH)


async def _ask_router(topology: Topology, name: str) -> dict[str, Any]:
    del name  # there is one
    router = topology.router
    return await asyncio.to_thread(_get, Address(host=router.host, port=router.port), "/health")


def _get(address: Address, path: str) -> dict[str, Any]:
    """One HTTP GET; an unhealthy answer is an answer too."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_PATIENCE)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return {"status": reply.status, **msgspec.json.decode(reply.read(_MAX_REPLY_BYTES), type=dict[str, Any])}
    finally:
        connection.close()


def print_table(
    console: Console, run: RunDirectory, topology: Topology, roles: tuple[RoleStatus, ...], details: tuple[Details, ...]
) -> None:
    """One line a role where 80 columns are enough for it."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("role", "name", "phase", "pid"):
        table.add_column(heading, no_wrap=True)
    table.add_column("")
    workers = _as_the_router_sees_them(roles, details)
    for role, found in zip(roles, details, strict=True):
        pid = "" if role.pid is None else str(role.pid)
        phase = "silent" if role.phase is Phase.READY and found is None else role.phase.value
        table.add_row(role.kind.value, role.name, phase, pid, _summarize(topology, role, found, workers))
    router = topology.router
    address = Address(host=router.host, port=router.port)
    console.print(
        f"{topology.name}: {topology.served_model_name} at http://{address}/v1, files in {run.path}", soft_wrap=True
    )
    console.print(table)


def _as_the_router_sees_them(roles: tuple[RoleStatus, ...], details: tuple[Details, ...]) -> dict[str, dict[str, Any]]:
    """Each engine by name; none if the router does not answer."""
    for role, found in zip(roles, details, strict=True):
        if role.kind is RoleKind.ROUTER and found is not None:
            return found.get("workers", {})
    return {}


def _summarize(topology: Topology, role: RoleStatus, details: Details, workers: dict[str, dict[str, Any]]) -> str:
    parts = [] if details is None else [_describe(topology, role, details)]
    if role.name in workers:
        parts += _describe_worker(workers[role.name])
    if role.restarts:
        times = "once" if role.restarts == 1 else f"{role.restarts} times"
        parts.append(f"restarted {times}")
    if details is None or role.restarts:
        parts.append(role.last_exit or "")
    return ", ".join(part for part in parts if part)


def _describe(topology: Topology, role: RoleStatus, details: dict[str, Any]) -> str:
    match role.kind:
        case RoleKind.WAN:
            return _describe_link(msgspec.convert(details, LinkState))
        case RoleKind.NODE:
            return _describe_node(details)
        case RoleKind.ENGINE:
            engine = topology.engine(role.name)
            return f"{engine.role.value.replace('_', ' ')} in {engine.cluster}, at {engine.node}"
        case RoleKind.ROUTER:
            return _describe_router(details)


def _describe_link(link: LinkState) -> str:
    condition = "" if link.condition is LinkCondition.UP else f"{link.condition.value}, "
    jitter = f" + {format_time(link.jitter_s)}" if link.jitter_s else ""
    sent = ", ".join(f"{direction} {format_size(size)}" for direction, size in link.sent_bytes.items())
    return f"{condition}{format_rate(link.rate_bits_per_s)}, {format_time(link.delay_s)}{jitter}, {sent}"


def _describe_node(stats: dict[str, Any]) -> str:
    sent = sum(stats["sent_bytes"].values())
    received = sum(stats["received_bytes"].values())
    used = "".join(
        f", {stats[key]} {word}"
        for key, word in (("leased_blocks", "leased"), ("reserved_blocks", "reserved"), ("orders", "orders"))
        if stats[key]
    )
    held = f"{stats['held_blocks']}/{stats['capacity_blocks']} blocks"
    return f"{held}, sent {format_size(sent)}, got {format_size(received)}{used}"


def _describe_worker(worker: dict[str, Any]) -> list[str]:
    """What matters of an engine as the router sees it: nothing, while it is idle and well."""
    requests, breaker = worker["requests"], worker["breaker"].replace("_", "-")
    return [
        *([_count(requests, "request")] if requests else []),
        *([] if worker["up"] else [f"down for the router: {worker['reason']}"]),
        *([] if breaker == "closed" else [f"breaker {breaker}"]),
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _describe_router(health: dict[str, Any]) -> str:
    counts = ", ".join(
        f"{engines['up']}/{engines['configured']} {_ABBREVIATIONS[Role(role)]}"
        for role, engines in health.get("roles", {}).items()
    )
    busy = "".join(f", {number} {state}" for state, number in health.get("requests", {}).items() if number)
    return f"{health.get('status', '')}, engines up: {counts}{busy}"


async def _ask_node(topology: Topology, name: str) -> dict[str, Any]:
    from pdd.cli.topology.source import TopologySource
    from pdd.cli.topology.wiring import require_kv_format
    from pdd.kvnode.client import TcpNodeClient

    node = topology.node(name)
    kv_format = require_kv_format(topology, TopologySource(file=f"topology {topology.name!r}").refuse)
    address = Address(host=node.host, port=node.port)
    async with TcpNodeClient(node=node.name, address=address, kv_format=kv_format) as client:
        return msgspec.to_builtins(await client.stats())
