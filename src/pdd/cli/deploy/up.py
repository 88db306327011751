"""``pdd up``: runs and supervises every role of a topology on this machine."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from time import monotonic

import msgspec
from rich.console import Console
from rich.text import Text

from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.deploy.state import Phase, RoleStatus
from pdd.cli.environment import default_state_root
from pdd.cli.given_text import require_text
from pdd.cli.options import (
    add_callers,
    add_engine,
    add_insecure_plaintext,
    add_json,
    add_state_dir,
    port,
    with_callers,
)
from pdd.cli.output import exit_code_of, print_json, root_cause, show_error
from pdd.core.errors import ConfigError
from pdd.core.topology import Topology


def define(parser: CommandParser) -> None:
    """``pdd up``."""
    parser.description = (
        "Run every role of a topology on this machine, start dead ones again, and stop them all on Ctrl-C."
    )
    parser.epilog = "With --json one object is printed when every role is ready: topology, url, state_dir and roles."
    parser.add_argument(
        "topology",
        nargs="?",
        metavar="TOPOLOGY",
        help="default; scripted and wide (no model); tiny and wide-tiny (random weights); vllm and mixed, or with random "
        "weights vllm-tiny and mixed-tiny; or a TOML file (default: the one of --engine)",
    )
    add_engine(parser)
    parser.add_argument("--port", type=port, help="the router's port, 0 for any that is free (default: the topology's)")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="append what happens to requests to FILE, one JSON object a line, without prompts or tokens",
    )
    add_callers(parser)
    add_insecure_plaintext(parser)
    add_state_dir(parser)
    add_json(parser)
    parser.set_defaults(run=run_up)


def run_up(arguments: argparse.Namespace) -> int:
    """Runs until SIGINT or SIGTERM."""
    progress = _Progress(open_console(stderr=arguments.json))
    try:
        asyncio.run(_up(_load(arguments), arguments, progress))
    except Exception as raised:
        if not (arguments.json and progress.announced):
            raise
        # The one JSON object has been printed: what goes wrong later can only go to stderr.
        error = root_cause(raised)
        show_error(error, as_json=False)
        return exit_code_of(error)
    return 0


def _load(arguments: argparse.Namespace) -> Topology:
    from pdd.cli.topology.choose import choose_topology
    from pdd.cli.topology.wiring import Exposure

    exposure = Exposure.INSECURE_PLAINTEXT if arguments.insecure_plaintext else Exposure.LOOPBACK
    topology = choose_topology(arguments.engine, arguments.topology, exposure=exposure)
    router = with_callers(topology.router, arguments)
    if arguments.port is not None:
        router = msgspec.structs.replace(router, port=arguments.port)
    if arguments.trace is not None:
        router = msgspec.structs.replace(router, trace_file=str(require_text("--trace", arguments.trace.absolute())))
    if router.trace_file is not None:
        _check_trace(Path(router.trace_file), "router.trace_file" if arguments.trace is None else "--trace")
    return msgspec.structs.replace(topology, router=router)


def _check_trace(path: Path, named_by: str) -> None:
    """Now, since the router itself would serve without a trace, and say so in its log only."""
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(f"{named_by} {path}: {error.strerror}") from error


async def _up(topology: Topology, arguments: argparse.Namespace, progress: _Progress) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_serve(topology, arguments, progress))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _stop, task, progress)


async def _serve(topology: Topology, arguments: argparse.Namespace, progress: _Progress) -> None:
    from pdd.cli.deploy.deployment import VLLM_TAKES_TIME, run_deployment, runs_vllm

    if runs_vllm(topology):
        progress.note(VLLM_TAKES_TIME)
    async with run_deployment(topology, state_root=arguments.state_dir, on_change=progress) as deployment:
        if arguments.json:
            print_json(
                {
                    "topology": deployment.topology.name,
                    "url": deployment.router_url,
                    "state_dir": str(deployment.run.path),
                    "roles": msgspec.to_builtins(deployment.roles),
                }
            )
        progress.announce(deployment.topology, deployment.router_url, state_dir=arguments.state_dir)
        await asyncio.Event().wait()


def _stop(task: asyncio.Task[None], progress: _Progress) -> None:
    """Stopping takes seconds at most, so asking again changes nothing."""
    if not task.cancelling():
        progress.stopping()
        task.cancel()


class _Progress:
    """Tells people what the roles are doing, one line for each thing that matters."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = monotonic()
        self.announced = False
        """Whether people were told that it runs."""

    def __call__(self, role: RoleStatus) -> None:
        label = f"{role.kind.value:7} {role.name}"
        match role.phase:
            case Phase.READY:
                self._say("ready", "green", f"{label}  ({role.ready_after_s:.1f} s, pid {role.pid})")
            case Phase.RESTARTING:
                self._say("restart", "yellow", f"{label}  {role.last_exit}; its log: {role.log}")
            case Phase.REFUSED:
                self._say("refused", "red", label)
            case Phase.WAITING | Phase.STARTING | Phase.STOPPED:
                pass

    def _say(self, what: str, style: str, of: str) -> None:
        self._console.print(Text.assemble((f"{what:9}", style), of), soft_wrap=True)

    def note(self, line: str) -> None:
        self._console.print(line, style="dim")

    def announce(self, topology: Topology, url: str, *, state_dir: Path) -> None:
        """Everything runs: says where, and what to try."""
        self.announced = True
        body = f'{{"model": "{topology.served_model_name}", "max_tokens": 64, "messages": [{{"role": "user", "content": "Hello!"}}]}}'
        self._console.print(f"\nAll roles are ready after {monotonic() - self._began:.1f} s: {url}/v1\nTry, elsewhere:")
        key = " -H 'Authorization: Bearer KEY'" if topology.router.tenants else ""
        api_key = " --api-key KEY" if topology.router.tenants else ""
        elsewhere = "" if state_dir == default_state_root() else f" --state-dir {state_dir}"
        lines = [
            f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'",
            f"  pdd ask --url {url}{api_key} 'Why is the sky blue?'",
            f"  pdd status{elsewhere}",
            *(f"  pdd link {link.name} --stall 5{elsewhere}" for link in topology.links[:1]),
        ]
        for line in lines:
            self._console.print(line, soft_wrap=True)
        self._console.print("Ctrl-C stops everything.")

    def stopping(self) -> None:
        self._console.print("Stopping.")
