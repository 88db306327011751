"""Single roles of a topology as child processes, for benchmarks that need no whole deployment."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import msgspec

from pdd.cli.deploy.deployment import role_commands
from pdd.cli.deploy.state import RoleKind, RunDirectory, run_directory
from pdd.cli.topology.formats import with_kv_format
from pdd.cli.topology.ports import resolve, write_resolved
from pdd.core.topology import Topology

_READY_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Where the roles that run find each other."""

    topology: Topology
    run: RunDirectory


@contextlib.contextmanager
def running_roles(topology: Topology, *roles: tuple[RoleKind, str]) -> Generator[Roles]:
    """Runs only these roles of ``topology``; whoever connects first may have to wait for them."""
    with tempfile.TemporaryDirectory(prefix="pdd-") as folder, contextlib.ExitStack() as stack:
        router = msgspec.structs.replace(topology.router, port=0)
        resolved = resolve(with_kv_format(msgspec.structs.replace(topology, router=router)))
        run = run_directory(Path(folder), resolved.name)
        run.path.mkdir(mode=0o700)
        write_resolved(resolved, run.topology_file)
        commands = {(command.kind, command.name): command for command in role_commands(resolved, run)}
        for role in roles:
            stack.enter_context(_child((*commands[role].arguments, "--log-level", "ERROR")))
        yield Roles(topology=resolved, run=run)


@contextlib.contextmanager
def _child(command: tuple[str, ...]) -> Generator[None]:
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.terminate()


def wait_for_file(path: Path) -> None:
    """Waits until ``path`` exists."""
    deadline = monotonic() + _READY_WITHIN_S
    while not path.exists():
        if monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear in {_READY_WITHIN_S} s")
        sleep(0.05)
