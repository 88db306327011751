"""One vLLM engine beside its KV node, in processes of their own, started as `pdd up` starts them."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pdd.cli.deploy.deployment import role_commands
from pdd.cli.deploy.forking import ForkServers
from pdd.cli.deploy.state import Phase, RoleStatus, run_directory
from pdd.cli.deploy.supervisor import Supervisor, Timing
from pdd.cli.topology.formats import with_kv_format
from pdd.cli.topology.ports import reserved, write_resolved
from pdd.core.topology import Address, Topology
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from tests.support.live import packaged_topology, until

MODEL = "tiny-random-32"
START_LIMIT_S = 250.0
_ENGINE, _NODE = "P", "node-p"
_ONCE = Timing(first_pause=Seconds(3600.0))
"""An engine that dies stays dead, so that a test can look at that."""


@dataclass(frozen=True)
class VllmProcess:
    """``pid`` is its server's, of which its other processes are children."""

    topology: Topology
    address: Address
    pid: int
    supervisor: Supervisor

    async def until_dead(self, seconds: float) -> None:
        await until(lambda: _status(self.supervisor).phase is Phase.RESTARTING, "the engine's end", seconds)


@asynccontextmanager
async def vllm_process(forks: ForkServers, **engine: object) -> AsyncGenerator[VllmProcess]:
    """A ready engine of ``MODEL`` by itself; ``engine`` are keys of its table. Nothing of it is left afterwards."""
    packaged = packaged_topology("vllm-tiny", **{_ENGINE: engine})
    widened = msgspec.structs.replace(packaged, max_model_tokens=find_model(MODEL).max_model_tokens)
    with reserved(with_kv_format(widened)) as topology, tempfile.TemporaryDirectory(prefix="pdd-") as folder:
        run = run_directory(Path(folder), topology.name)
        with run.hold():
            write_resolved(topology, run.topology_file)
            commands = tuple(role for role in role_commands(topology, run) if role.name in {_ENGINE, _NODE})
            supervisor = Supervisor(commands, run, on_change=lambda _: None, timing=_ONCE, forks=forks)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(supervisor.run())
                try:
                    pid = await _until_ready(supervisor)
                    table = topology.engine(_ENGINE)
                    yield VllmProcess(topology, Address(host=table.host, port=table.port), pid, supervisor)
                finally:
                    task.cancel()


async def _until_ready(supervisor: Supervisor) -> int:
    """The server's pid."""
    decided = (Phase.READY, Phase.RESTARTING, Phase.REFUSED)
    await until(lambda: _status(supervisor).phase in decided, "an engine that serves", START_LIMIT_S)
    status = _status(supervisor)
    assert status.phase is Phase.READY, _last_words(status)
    assert status.pid is not None
    return status.pid


def _last_words(status: RoleStatus) -> str:
    return Path(status.log).read_text(errors="replace")[-5000:]


def _status(supervisor: Supervisor) -> RoleStatus:
    return next(status for status in supervisor.statuses if status.name == _ENGINE)
