"""What stands at the two sites: PDD's roles, or a pair of vLLM engines as vLLM itself disaggregates them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from benchmarks.sites import Site, Sites
from pdd.cli.deploy.deployment import role_commands
from pdd.cli.deploy.state import RoleKind, run_directory
from pdd.cli.deploy.supervisor import RoleCommand, Supervisor, Timing
from pdd.cli.topology.formats import with_kv_format
from pdd.cli.topology.ports import write_resolved
from pdd.core.errors import ConfigError
from pdd.core.topology import LOOPBACK, Topology
from pdd.core.units import Seconds

NIXL = Path("build/nixl")
"""Beside the virtual environment, not in it: nothing of PDD needs it."""
_FIRST_PORT = 7000
_READY_WITHIN = Seconds(400.0)
_LOGS = Path("build/benchmarks/logs")
_TRACE = _LOGS / "router.trace"
"""What became of each request, for whoever asks why a figure is what it is."""


@asynccontextmanager
async def pdd_at(sites: Sites, topology: Topology) -> AsyncGenerator[str]:
    """Cluster A of ``topology`` near, all others far, joined by the sites' line alone. Yields the router's URL, seen
    from near.

    Raises:
        ConfigError: a role found its configuration wrong.
    """
    _make_room_for_logs()
    placed = with_kv_format(_placed(topology, sites))
    with tempfile.TemporaryDirectory(prefix="pdd-") as folder:
        run = run_directory(Path(folder), placed.name)
        with run.hold():
            write_resolved(placed, run.topology_file)
            commands = tuple(_inside(command, placed, sites) for command in role_commands(placed, run))
            timing = Timing(ready_within=_READY_WITHIN)
            supervisor = Supervisor(commands, run, on_change=lambda _: None, timing=timing)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(supervisor.run())
                try:
                    await supervisor.wait_until_ready()
                    yield f"http://{LOOPBACK}:{placed.router.port}"
                finally:
                    task.cancel()
                    for command in commands:
                        shutil.copy(run.log_file(command.name), _LOGS)


def _make_room_for_logs() -> None:
    _LOGS.mkdir(parents=True, exist_ok=True)


def _placed(topology: Topology, sites: Sites) -> Topology:
    """With addresses of the sites; ports can be fixed, as nothing else is in their namespaces."""
    ports = iter(range(_FIRST_PORT, _FIRST_PORT + 100))

    def host(cluster: str) -> str:
        return (sites.near if cluster == topology.router.cluster else sites.far).host

    return msgspec.structs.replace(
        topology,
        nodes=tuple(msgspec.structs.replace(n, host=host(n.cluster), port=next(ports)) for n in topology.nodes),
        engines=tuple(msgspec.structs.replace(e, host=host(e.cluster), port=next(ports)) for e in topology.engines),
        router=msgspec.structs.replace(topology.router, port=next(ports), trace_file=str(_TRACE.resolve())),
        links=(),
    )


def _inside(command: RoleCommand, topology: Topology, sites: Sites) -> RoleCommand:
    if command.kind is RoleKind.ROUTER:
        cluster = topology.router.cluster
    else:
        tables = (*topology.nodes, *topology.engines)
        cluster = next(table.cluster for table in tables if table.name == command.name)
    site = sites.near if cluster == topology.router.cluster else sites.far
    arguments = site.inside(*command.arguments, "--insecure-plaintext", "--log-level", "WARNING")
    return RoleCommand(name=command.name, kind=command.kind, stage=command.stage, arguments=arguments)


@contextmanager
def stock_engines_at(sites: Sites, *, model: Path, served_as: str) -> Generator[tuple[str, str, str]]:
    """Three vLLM engines without PDD: one by itself near; prefill near and decode far, joined by vLLM's own
    NixlConnector.

    Yields their URLs, in this order.

    Raises:
        ConfigError: NIXL is not there.
        CalledProcessError: an engine is not ready in time.
    """
    if not NIXL.is_dir():
        raise ConfigError(f"{NIXL} is missing, which vLLM's own connector needs: `make bench-vllm` installs it there")
    _LOGS.mkdir(parents=True, exist_ok=True)
    pair = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}
    engines = (
        (sites.near, "alone", _FIRST_PORT, None),
        (sites.near, "prefill", _FIRST_PORT + 1, pair | {"kv_role": "kv_producer"}),
        (sites.far, "decode", _FIRST_PORT, pair | {"kv_role": "kv_consumer"}),
    )
    with ExitStack() as stack:
        for site, name, port, transfer in engines:
            log = stack.enter_context((_LOGS / f"stock-{name}.log").open("wb"))
            command = site.inside(*_stock_command(site, port, model, served_as, transfer))
            environment = os.environ | _stock_environment(site)
            process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            stack.callback(process.terminate)
        alone, prefill, decode = (f"http://{site.host}:{port}" for site, _, port, _ in engines)
        waiting = (sys.executable, "-m", "benchmarks.one_question", str(_READY_WITHIN), alone, prefill, decode)
        subprocess.run(sites.near.inside(*waiting), check=True)
        yield alone, prefill, decode


def _stock_command(
    site: Site, port: int, model: Path, served_as: str, transfer: dict[str, str] | None
) -> Iterator[str]:
    yield from (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    yield from ("--model", str(model), "--served-model-name", served_as)
    yield from ("--host", site.host, "--port", str(port))
    yield from ("--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-model-len", "4096")
    yield from ("--kv-cache-memory-bytes", str(512 * 2**20), "--max-num-seqs", "16")
    if transfer is not None:
        yield from ("--kv-transfer-config", msgspec.json.encode(transfer).decode())


def _stock_environment(site: Site) -> dict[str, str]:
    return {
        "PYTHONPATH": str(NIXL.resolve()),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": site.host,
        "VLLM_HOST_IP": site.host,
        # Shared memory would cross namespaces beside the line, as no two datacenters can.
        "UCX_TLS": "tcp",
    }
