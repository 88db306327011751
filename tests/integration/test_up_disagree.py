"""Roles started from another file than the rest: nobody sends them anything, and everybody is told why."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import pytest

from pdd.cli.deploy.state import Phase
from pdd.cli.deploy.supervisor import Timing
from pdd.cli.topology.formats import with_kv_format
from pdd.cli.topology.ports import resolve, write_resolved
from pdd.core.topology import Topology
from pdd.core.units import Seconds
from tests.support.live import Live, live, packaged_topology, until

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(90)]

ONCE = Timing(first_pause=Seconds(3600.0))
"""Who dies stays dead, so that another can be started in its place."""


@asynccontextmanager
async def deployment_without(name: str) -> AsyncGenerator[Live]:
    async with live(packaged_topology("scripted"), timing=ONCE) as deployment:
        deployment.kill(name)
        await until(lambda: deployment.role(name).phase is Phase.RESTARTING, f"the end of {name}")
        yield deployment


def with_other_blocks(topology: Topology) -> Topology:
    return with_kv_format(msgspec.structs.replace(topology, block_tokens=32, kv_format=None))


def command(deployment: Live, topology: Topology, *words: str) -> list[str]:
    file = deployment.deployment.run.path / "theirs.json"
    write_resolved(topology, file)
    state = str(deployment.deployment.run.path.parent)
    return [sys.executable, "-m", "pdd.cli", *words, "--topology", str(file), "--state-dir", state]


@contextmanager
def started(words: list[str]) -> Generator[None]:
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


async def reason(deployment: Live, worker: str) -> str | None:
    async with deployment.http.get(f"{deployment.url}/health") as reply:
        return (await reply.json())["workers"][worker]["reason"]


async def until_reason(deployment: Live, worker: str, why: str | None) -> None:
    async def is_told() -> bool:
        return await reason(deployment, worker) == why

    await until(is_told, f"{worker}: {why}")


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def status(deployment: Live) -> str:
    words = [sys.executable, "-m", "pdd.cli", "status", "--state-dir", str(deployment.deployment.run.path.parent)]
    wide = os.environ | {"COLUMNS": "400"}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=wide).stdout


async def test_an_engine_that_takes_less_than_the_deployment_promises_gets_nothing_until_it_is_put_right():
    async with deployment_without("P") as deployment:
        ours = deployment.topology
        theirs = msgspec.structs.replace(ours, max_model_tokens=2048)
        with started(command(deployment, theirs, "engine", "--name", "P")):
            why = f"takes 2048 tokens, this deployment {ours.max_model_tokens}"
            await until_reason(deployment, "P", why)
            assert await deployment.health() == 503
            assert f"down for the router: {why}" in status(deployment)
            assert f" worker=P role=prefill reason={why}" in deployment.log("router")
        with started(command(deployment, ours, "engine", "--name", "P")):
            await until_reason(deployment, "P", None)
            assert await deployment.health() == 200


async def test_an_engine_that_another_node_is_beside_gets_nothing():
    async with deployment_without("MD") as deployment:
        ours = deployment.topology
        moved = msgspec.structs.replace(ours.engine("MD"), node="node-rld", cluster="A")
        theirs = msgspec.structs.replace(ours, engines=tuple(moved if e.name == "MD" else e for e in ours.engines))
        with started(command(deployment, theirs, "engine", "--name", "MD")):
            await until_reason(deployment, "MD", "stands beside node node-rld, in this deployment beside node-md")


async def test_an_engine_whose_node_keeps_other_blocks_ends_at_once_in_one_line():
    async with deployment_without("P") as deployment:
        theirs = with_other_blocks(deployment.topology)
        words = command(deployment, theirs, "engine", "--name", "P")
        ended = await asyncio.to_thread(run, words)
        assert ended.returncode == 2
        assert ended.stderr.startswith("pdd: KV formats differ in block length: engine 'P' has ")
        assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(("role", "flags"), [("engine", ("--name", "P")), ("router", ())])
async def test_who_has_another_model_than_the_file_was_resolved_with_ends_at_once_in_one_line(role, flags, tmp_path):
    theirs = resolve(with_kv_format(packaged_topology("scripted")))
    table = msgspec.structs.replace(theirs.kv_format, model="scripted@2")
    write_resolved(msgspec.structs.replace(theirs, kv_format=table), file := tmp_path / "theirs.json")
    words = [sys.executable, "-m", "pdd.cli", role, "--topology", str(file), *flags]
    ended = await asyncio.to_thread(run, words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(
        f"pdd: {file}: kv_format: it is 'scripted@2|block=16|state:float32[16]', but model 's"
    )
    assert "they differ in model; give every machine the same model" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


async def test_a_node_that_keeps_other_blocks_takes_its_engines_with_it():
    async with deployment_without("node-md") as deployment:
        theirs = with_other_blocks(deployment.topology)
        with started(command(deployment, theirs, "node", "--name", "node-md")):

            async def is_told() -> bool:
                why = await reason(deployment, "MD")
                return why is not None and "KV formats differ in block length" in why

            await until(is_told, "a node that disagrees")
            assert "down for the router: node 'node-md' can't be used: KV formats differ in block length" in status(
                deployment
            )


async def test_a_node_with_less_room_than_a_request_may_need_takes_its_engines_with_it():
    async with deployment_without("node-md") as deployment:
        ours = deployment.topology
        num_blocks = ours.max_model_tokens // ours.block_tokens
        small = msgspec.structs.replace(ours.node("node-md"), arena_bytes=1024 * 100)
        nodes = tuple(small if node.name == "node-md" else node for node in ours.nodes)
        theirs = msgspec.structs.replace(ours, nodes=nodes, max_model_tokens=1600)
        with started(command(deployment, theirs, "node", "--name", "node-md")):
            why = f"node node-md holds 100 blocks, a request of this deployment may need {num_blocks}"
            await until_reason(deployment, "MD", why)
