"""The commands that run one role of a topology in this process: ``pdd node``, ``engine``, ``wan`` and ``router``.

Usually ``pdd up`` starts them, and hands over the descriptors of lifeline and ready pipe.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import resource
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast

import msgspec

from pdd.cli.commands import CommandParser
from pdd.cli.deploy.lifeline import ReadySignal, watch_lifeline
from pdd.cli.deploy.state import RoleKind, run_directory
from pdd.cli.environment import default_state_root
from pdd.cli.options import add_callers, add_insecure_plaintext, add_state_dir, with_callers
from pdd.cli.output import exit_code_of, root_cause, show_error, write_logs_as_utf8
from pdd.cli.roles.context import RoleContext
from pdd.cli.topology.file import load_topology, read_topology
from pdd.cli.topology.ports import read_resolved, require_resolved
from pdd.cli.topology.ranges import Refuse
from pdd.cli.topology.source import TopologySource
from pdd.cli.topology.wiring import Exposure, check_node_topology
from pdd.core.errors import ConfigError, Incompatible
from pdd.core.topology import EngineKind, Topology
from pdd.transport.flood import LoopErrorLog

_logger = logging.getLogger(__name__)
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

RoleMain = Callable[[RoleContext], Coroutine[None, None, None]]
"""Runs a role until cancelled."""


def define(parser: CommandParser) -> None:
    """``pdd node``, ``engine``, ``wan`` and ``router``."""
    kind, summary = RoleKind(parser.listed.name), parser.listed.summary
    parser.description = f"{summary[0].upper()}{summary[1:]}."
    parser.add_argument(
        "--topology",
        required=True,
        metavar="FILE",
        help="a topology whose ports are all fixed: a TOML file, or the topology.json of a running `pdd up`",
    )
    if kind is RoleKind.ROUTER:  # there is one
        parser.set_defaults(name=kind.value)
        add_callers(parser)
    else:
        parser.add_argument("--name", required=True, help=f"which {_noun(kind)} of the topology to run")
    add_insecure_plaintext(parser)
    parser.add_argument("--lifeline-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="default: %(default)s"
    )
    if kind.keeps_files:
        add_state_dir(parser)
    else:
        parser.set_defaults(state_dir=default_state_root())
    parser.set_defaults(run=run_role, role_kind=kind, backend=None)
    if kind is RoleKind.ENGINE:
        _add_engine_flags(parser)


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    live = [kind.value for kind in EngineKind if kind is not EngineKind.MODELLED]
    parser.add_argument("--backend", choices=live, help="which engine it is, in place of the topology's kind")
    parser.add_argument(
        "--print-vllm-command",
        dest="run",
        action="store_const",
        const=print_vllm_command,
        help="print the `vllm serve` that would be the same engine, and exit",
    )


def print_vllm_command(arguments: argparse.Namespace) -> int:
    """Prints how to run the engine by vLLM's own command; returns the exit code."""
    from pdd.cli.roles.engine import describe_vllm

    print(describe_vllm(_context(arguments, on_ready=lambda: None)))
    return 0


def run_role(arguments: argparse.Namespace) -> int:
    """Runs the role until SIGTERM or Ctrl-C; returns the exit code."""
    if arguments.lifeline_fd is not None:
        watch_lifeline(arguments.lifeline_fd)
    ready = ReadySignal(arguments.ready_fd)
    write_logs_as_utf8()
    logging.basicConfig(level=arguments.log_level, format=_LOG_FORMAT)
    # A level of our own: what vLLM's server imports puts the root logger's at ERROR.
    logging.getLogger("pdd").setLevel(arguments.log_level)
    _raise_descriptor_limit()
    kind = cast("RoleKind", arguments.role_kind)
    try:
        context = _context(arguments, on_ready=ready.ready)
        asyncio.run(_until_stopped(_main_of(kind)(context)))
    except Exception as raised:  # noqa: BLE001 (the outermost edge of the process)
        return _fail(root_cause(raised), ready)
    return 0


def _context(arguments: argparse.Namespace, *, on_ready: Callable[[], None]) -> RoleContext:
    topology, source = _read_topology(arguments)
    if arguments.role_kind is RoleKind.ROUTER:
        topology = msgspec.structs.replace(topology, router=with_callers(topology.router, arguments))
    run = run_directory(arguments.state_dir, topology.name)
    return RoleContext(topology=topology, source=source, name=arguments.name, run=run, on_ready=on_ready)


def _raise_descriptor_limit() -> None:
    """Every connection is a descriptor, and the soft limit is often 1024."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _fail(error: BaseException, ready: ReadySignal) -> int:
    if isinstance(error, ConfigError | Incompatible):
        ready.refuse(error)
        show_error(error, as_json=False)
    else:
        _logger.error("role_failed", exc_info=error)
    return exit_code_of(error)


async def _until_stopped(main: Coroutine[None, None, None]) -> None:
    """Runs ``main``; SIGTERM and SIGINT cancel it, and are no failure."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrorLog())
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with asyncio.TaskGroup() as group:
        role = group.create_task(main)
        stopper = group.create_task(_cancel_when(stopped, role))
        role.add_done_callback(lambda _: stopper.cancel())


async def _cancel_when(stopped: asyncio.Event, role: asyncio.Task[None]) -> None:
    await stopped.wait()
    role.cancel()


def _read_topology(arguments: argparse.Namespace) -> tuple[Topology, TopologySource]:
    file, kind = cast("str", arguments.topology), cast("RoleKind", arguments.role_kind)
    exposure = Exposure.INSECURE_PLAINTEXT if arguments.insecure_plaintext else Exposure.LOOPBACK
    source, unchecked = TopologySource(file=file), True
    if file.endswith(".json"):
        topology = read_resolved(Path(file))
        unchecked = arguments.lifeline_fd is None  # `pdd up` has checked what it hands over
    elif kind is RoleKind.NODE:
        topology, source = read_topology(file)
        require_resolved(topology, file)
    else:
        topology = require_resolved(load_topology(file, exposure=exposure), file)
        unchecked = False
    if arguments.backend is not None:
        topology, unchecked = _with_backend(topology, arguments.name, EngineKind(arguments.backend)), True
    if unchecked:
        _check_of(kind)(topology, source.refuse, exposure)
    return topology, source


def _check_of(kind: RoleKind) -> Callable[[Topology, Refuse, Exposure], None]:
    """A node knows nothing of its model."""
    if kind is RoleKind.NODE:
        return check_node_topology
    from pdd.cli.topology.check import check_topology

    return check_topology


def _with_backend(topology: Topology, name: str, kind: EngineKind) -> Topology:
    chosen = topology.engine(name)
    engines = (msgspec.structs.replace(e, kind=kind) if e is chosen else e for e in topology.engines)
    return msgspec.structs.replace(topology, engines=tuple(engines))


def _main_of(kind: RoleKind) -> RoleMain:
    """Imports only what this role needs: a node's process never sees an engine's libraries."""
    module = importlib.import_module(f"pdd.cli.roles.{kind.value}")
    return cast("RoleMain", module.main)


def _noun(kind: RoleKind) -> str:
    return "link" if kind is RoleKind.WAN else kind.value
