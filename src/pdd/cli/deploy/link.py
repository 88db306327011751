"""``pdd link``: looks at an emulated link of a running deployment, and changes it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator

import msgspec

from pdd.cli.commands import CommandParser
from pdd.cli.deploy.state import find_live_run
from pdd.cli.options import add_json, add_run, add_state_dir, duration, quantity
from pdd.cli.output import print_json
from pdd.cli.quantities import Dimension, format_rate, format_size, format_time
from pdd.core.topology import LOOPBACK, Address
from pdd.core.units import BitsPerSecond, Seconds
from pdd.transport.emulate_control import (
    MAX_DELAY_S,
    MAX_STALL_S,
    Change,
    Cut,
    CutKind,
    LinkRequest,
    LinkState,
    Restore,
    Show,
    Stall,
    ask_link,
    check_request,
)


def define(parser: CommandParser) -> None:
    """``pdd link``."""
    parser.description = (
        "Show an emulated link of a running deployment, or change it. Changes last until the link's process ends."
    )
    parser.add_argument("name", metavar="NAME", help="the link's name in the topology, such as wan")
    parser.add_argument("--rate", type=quantity(Dimension.RATE), help='of each direction, such as "20 Mbit/s"')
    parser.add_argument(
        "--delay", type=quantity(Dimension.TIME, most=MAX_DELAY_S), help='one way, such as "15 ms": half a round trip'
    )
    parser.add_argument(
        "--jitter",
        type=quantity(Dimension.TIME, most=MAX_DELAY_S),
        help='each packet waits up to this much longer, such as "2 ms"',
    )
    parser.add_argument(
        "--stall", type=duration(most=MAX_STALL_S), help='nothing moves for so long, such as "5 s", then all goes on'
    )
    parser.add_argument(
        "--cut",
        choices=[kind.value for kind in CutKind],
        help="until --restore: reset every connection (drop), or keep them open but move nothing (freeze)",
    )
    parser.add_argument("--restore", action="store_true", help="end a cut or a stall")
    add_run(parser)
    add_state_dir(parser)
    add_json(parser)
    parser.set_defaults(run=run_link_command)


def run_link_command(arguments: argparse.Namespace) -> int:
    """Sends what was asked for, in a fixed order: restore, settings, stall, cut; shows the link afterwards."""
    from pdd.cli.topology.ports import read_resolved

    requests = tuple(_requests(arguments))
    for request in requests:
        check_request(request)
    run = find_live_run(arguments.state_dir, arguments.run_name)
    link = read_resolved(run.topology_file).link(arguments.name)
    state = asyncio.run(_ask_all(Address(host=LOOPBACK, port=link.control_port), requests))
    if arguments.json:
        print_json(msgspec.to_builtins(state))
    else:
        print(describe_link(state))
    return 0


def _requests(arguments: argparse.Namespace) -> Iterator[LinkRequest]:
    if arguments.restore:
        yield Restore()
    if (arguments.rate, arguments.delay, arguments.jitter) != (None, None, None):
        yield Change(
            rate_bits_per_s=None if arguments.rate is None else BitsPerSecond(arguments.rate),
            delay_s=None if arguments.delay is None else Seconds(arguments.delay),
            jitter_s=None if arguments.jitter is None else Seconds(arguments.jitter),
        )
    if arguments.stall is not None:
        yield Stall(seconds=Seconds(arguments.stall))
    if arguments.cut is not None:
        yield Cut(kind=CutKind(arguments.cut))


async def _ask_all(control: Address, requests: tuple[LinkRequest, ...]) -> LinkState:
    for request in requests:
        await ask_link(control, request)
    return await ask_link(control, Show())


def describe_link(state: LinkState) -> str:
    """One line for people."""
    sent = ", ".join(f"{direction} {format_size(size)}" for direction, size in state.sent_bytes.items())
    return (
        f"link {state.name}: {state.condition.value}, {format_rate(state.rate_bits_per_s)}, delay "
        f"{format_time(state.delay_s)} one way, jitter {format_time(state.jitter_s)}, {state.connections} connections, "
        f"sent {sent}"
    )
