"""Starts a topology for one command only, in a state directory of its own, and takes it down again."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.text import Text

from pdd.cli.deploy.deployment import VLLM_READY_WITHIN, VLLM_TAKES_TIME, Deployment, run_deployment, runs_vllm
from pdd.cli.deploy.state import Phase, RoleStatus
from pdd.core.errors import Unavailable
from pdd.core.topology import Topology
from pdd.core.units import Seconds

_Deployed = TypeVar("_Deployed")

_READY_WITHIN = Seconds(120.0)
_EXIT_TERMINATED = 128 + signal.SIGTERM


def run_to_the_end(command: Coroutine[None, None, int]) -> int:
    """Runs a command that launches something; SIGTERM ends it as orderly as Ctrl-C does. Returns its exit code."""
    try:
        return asyncio.run(_cancelled_by_sigterm(command))
    except asyncio.CancelledError:
        return _EXIT_TERMINATED


async def _cancelled_by_sigterm(command: Coroutine[None, None, int]) -> int:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(command)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return task.result()


def unshaped(topology: Topology) -> Topology:
    """The same deployment without its emulated lines: clusters reach each other at once, as in one machine room."""
    return msgspec.structs.replace(topology, links=())


def on_any_port(topology: Topology) -> Topology:
    """The same deployment with its router on any free port: only the command that launches it has to find it."""
    return msgspec.structs.replace(topology, router=msgspec.structs.replace(topology.router, port=0))


@asynccontextmanager
async def launched(topology: Topology, progress: Console) -> AsyncGenerator[Deployment]:
    """Yields when every role is ready; shows on ``progress`` how they come up. Leaving stops them all.

    The state directory, with the logs in it, outlives the context only if that ends with an error.

    Raises:
        ConfigError: a role found its configuration wrong.
        Unavailable: a role was not ready in time.
    """
    root = Path(tempfile.mkdtemp(prefix="pdd-"))
    lines = _RoleLines(progress)
    patience = _READY_WITHIN
    if runs_vllm(topology):
        patience = VLLM_READY_WITHIN
        progress.print(f"    {VLLM_TAKES_TIME}", style="dim")
    deploying = run_deployment(on_any_port(topology), state_root=root, on_change=lines)
    try:
        async with ready_within(patience, deploying, f"what they said is below {root}") as deployment:
            lines.all_ready()
            yield deployment
    except Exception:
        lines.point_to(root)
        raise
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    shutil.rmtree(root, ignore_errors=True)


@asynccontextmanager
async def ready_within(
    patience: Seconds, deploying: AbstractAsyncContextManager[_Deployed], hint: str
) -> AsyncGenerator[_Deployed]:
    """Like ``deploying``, whose beginning may take so long, and no longer. What is done with it may take any time.

    Raises:
        Unavailable: it took longer.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(patience):
                deployed = await stack.enter_async_context(deploying)
        except TimeoutError as error:
            message = f"not every role was ready within {patience:.0f} s; {hint}"
            raise Unavailable(message, retry_after_s=Seconds(1.0)) from error
        yield deployed


class _RoleLines:
    """One line a role as it becomes ready, and whatever goes wrong."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = monotonic()
        self._stopping = False

    def __call__(self, role: RoleStatus) -> None:
        label = f"{role.kind.value:7}{role.name}"
        match role.phase:
            case Phase.READY:
                self._console.print(Text("  ✓ ", style="green"), f"{label:20}{role.ready_after_s:5.1f} s", sep="")
            case Phase.RESTARTING | Phase.REFUSED:
                line = f"{label:20}{role.last_exit or role.phase.value}; its log: {role.log}"
                self._console.print(Text("  ✗ ", style="red"), line, sep="", soft_wrap=True)
            case Phase.WAITING | Phase.STARTING | Phase.STOPPED:
                pass

    def all_ready(self) -> None:
        self._console.print(f"    all ready after {monotonic() - self._began:.1f} s\n", style="dim")

    def point_to(self, root: Path) -> None:
        """Says where the logs of a failed run are; removes the folder of one that was refused before it began."""
        if not any(root.glob("*/logs/*")):
            shutil.rmtree(root, ignore_errors=True)
            return
        self._console.print(f"  the roles' logs are kept below {root}", soft_wrap=True)
