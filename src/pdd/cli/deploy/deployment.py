"""A whole deployment on this machine: resolves a topology, runs every role of it as a process, and stops them all."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pdd.cli.deploy.forking import ForkServers, Preload
from pdd.cli.deploy.state import RoleKind, RoleStatus, RunDirectory, run_directory
from pdd.cli.deploy.supervisor import RoleCommand, Supervisor, Timing
from pdd.cli.quantities import format_memory
from pdd.cli.topology.formats import with_kv_format
from pdd.cli.topology.ports import reserved, write_resolved
from pdd.cli.topology.wiring import ROUTER_NAME
from pdd.core.errors import ConfigError
from pdd.core.topology import LOOPBACK, Address, EngineKind, Topology
from pdd.core.units import Seconds

VLLM_READY_WITHIN = Seconds(600.0)
"""For an engine, and for a deployment of them: three on two busy cores took 165 s; larger models load for minutes."""
VLLM_TAKES_TIME = "vLLM is imported first: 10 to 30 s. Large models then load for minutes."
_WILDCARD_HOSTS = ("0.0.0.0", "::")  # noqa: S104 (recognised, not bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A deployment that runs; every role has been ready."""

    topology: Topology
    """Resolved: no port is 0, and it carries its KV format."""
    run: RunDirectory
    supervisor: Supervisor

    @property
    def router_url(self) -> str:
        """Where a client on this machine finds the front door, without a trailing slash."""
        router = self.topology.router
        host = LOOPBACK if router.host in _WILDCARD_HOSTS else router.host
        return f"http://{Address(host=host, port=router.port)}"

    @property
    def api_key(self) -> str | None:
        """A key that the front door accepts; None where it asks for none."""
        tenants = self.topology.router.tenants
        return tenants[0].api_key if tenants else None

    @property
    def roles(self) -> tuple[RoleStatus, ...]:
        return self.supervisor.statuses


@asynccontextmanager
async def run_deployment(
    topology: Topology,
    *,
    state_root: Path,
    on_change: Callable[[RoleStatus], None] = lambda _: None,
    timing: Timing | None = None,
    forks: ForkServers | None = None,
) -> AsyncGenerator[Deployment]:
    """Yields when every role is ready; leaving the context stops them all and waits until they are gone.

    ``forks`` are for who runs several deployments, one after the other or at once (``Supervisor``).

    Raises:
        ConfigError: a port is in use, the deployment runs already, or a role found its configuration wrong; in a
            group if that happens later than that.
    """
    run = run_directory(state_root, topology.name)
    with run.hold(), reserved(with_kv_format(topology)) as resolved:
        run.status_file.unlink(missing_ok=True)
        run.set_old_logs_aside()
        for node in resolved.nodes:
            run.node_socket(node.name)
        _require_memory(resolved)
        write_resolved(resolved, run.topology_file)
        supervisor = Supervisor(
            tuple(role_commands(resolved, run)), run, on_change=on_change, timing=timing or Timing(), forks=forks
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(supervisor.run())
            try:
                await supervisor.wait_until_ready()
                yield Deployment(topology=resolved, run=run, supervisor=supervisor)
            finally:
                task.cancel()


def _require_memory(topology: Topology) -> None:
    """Each node checks its own arena; only here it is known that they share one machine."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    arenas = sum(node.arena_bytes for node in topology.nodes)
    if arenas > physical:
        raise ConfigError(
            f"{topology.name}: nodes: their arenas are {format_memory(arenas)} together, but this machine has "
            f"{format_memory(physical)} of memory"
        )


def role_commands(topology: Topology, run: RunDirectory) -> Iterator[RoleCommand]:
    """Nodes and links come first: engines look for their node, and everything beyond a link needs that link.

    The router comes last, so that it finds every worker up and can serve the moment it is ready. Starting all at once
    saves nothing: on few cores the engines' start is bound by the processor.
    """
    for node in topology.nodes:
        yield _command(RoleKind.NODE, node.name, 0, run)
    for link in topology.links:
        yield _command(RoleKind.WAN, link.name, 0, run)
    preload = _vllm_preload() if runs_vllm(topology) else None
    for engine in topology.engines:
        command = _command(RoleKind.ENGINE, engine.name, 1, run)
        if engine.kind is EngineKind.VLLM:
            command = replace(command, preload=preload, ready_within=VLLM_READY_WITHIN)
        yield command
    yield _command(RoleKind.ROUTER, ROUTER_NAME, 2, run)


def runs_vllm(topology: Topology) -> bool:
    """Whether any of its engines is vLLM, which takes its time to start."""
    return any(engine.kind is EngineKind.VLLM for engine in topology.engines)


def _vllm_preload() -> Preload:
    """Raises ConfigError: vLLM is not installed."""
    from pdd.plugins.vllm.server import PRELOAD_MODULE, VLLM_ENVIRONMENT, require_vllm

    return Preload(module=PRELOAD_MODULE, environment=VLLM_ENVIRONMENT[require_vllm()])


def _command(kind: RoleKind, name: str, stage: int, run: RunDirectory) -> RoleCommand:
    program = (sys.executable, "-m", "pdd.cli", kind.value)
    topology = ("--topology", str(run.topology_file))
    which = () if kind is RoleKind.ROUTER else ("--name", name)
    place = ("--state-dir", str(run.path.parent)) if kind.keeps_files else ()
    return RoleCommand(name=name, kind=kind, stage=stage, arguments=program + topology + which + place)
