"""The router's own connections, to every engine and to every node, break, hang and crawl at random moments.

A second router runs in the test's process, beside the deployment's own: the very one, composed from a topology in which
each address is that of a bad line.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import assert_never

import aiohttp
import msgspec
import pytest

from pdd.cli.ask.client import RouterClient
from pdd.cli.ask.conversation import Question, ReceivedAnswer, ReceivedSpan
from pdd.cli.roles import router
from pdd.cli.roles.context import RoleContext
from pdd.cli.topology.source import TopologySource
from pdd.core.topology import LOOPBACK, Topology
from tests.integration.test_live_chaos import explain
from tests.support.bad_line import BadLine, bad_line
from tests.support.live import Live, live, until
from tests.support.live_chaos import Chaos, pairs_of, scripted_dialogues, wide_scripted

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Breaks what is open; new connections are broken for so long."""

    endpoint: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """Connections stay open and move nothing, as through a dead middlebox."""

    endpoint: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawl:
    """A few hundred bytes per second, in both directions."""

    endpoint: str
    seconds: float


UpstreamFault = Cut | Freeze | Crawl


@dataclass(frozen=True, slots=True, kw_only=True)
class BadUpstream:
    """A router whose every connection crosses a line of its own."""

    url: str
    lines: dict[str, BadLine]
    client: RouterClient
    http: aiohttp.ClientSession

    async def ask(self, question: Question, on_span: Callable[[ReceivedSpan], None]) -> ReceivedAnswer:
        return await self.client.ask(question, on_span)

    async def inflict(self, fault: UpstreamFault) -> None:
        line = self.lines[fault.endpoint]
        match fault:
            case Cut():
                line.refuses = True
                line.cut()
                await asyncio.sleep(fault.seconds)
                line.refuses = False
            case Freeze():
                line.freeze()
                await asyncio.sleep(fault.seconds)
                line.thaw()
            case Crawl():
                line.bytes_per_second = line.bytes_per_second_back = 500.0
                await asyncio.sleep(fault.seconds)
                line.bytes_per_second = line.bytes_per_second_back = None
            case _:
                assert_never(fault)

    async def until_well(self) -> None:
        await until(self._is_healthy, "every worker is up")

    async def _is_healthy(self) -> bool:
        async with self.http.get(f"{self.url}/health") as reply:
            counts = (await reply.json())["roles"].values()
        return all(count["up"] == count["configured"] for count in counts)


@asynccontextmanager
async def bad_upstream(deployment: Live) -> AsyncGenerator[BadUpstream]:
    async with AsyncExitStack() as held:
        lines: dict[str, BadLine] = {}
        for endpoint in deployment.topology.endpoints():
            lines[endpoint.name] = line = await held.enter_async_context(bad_line())
            line.there = deployment.topology.address_of(endpoint, seen_from=deployment.topology.router.cluster)
        topology = through(deployment.topology, {name: line.address.port for name, line in lines.items()})
        url = await held.enter_async_context(own_router(topology, deployment))
        client = await held.enter_async_context(RouterClient(url))
        http = await held.enter_async_context(aiohttp.ClientSession())
        yield BadUpstream(url=url, lines=lines, client=client, http=http)


def through(topology: Topology, ports: dict[str, int]) -> Topology:
    """The topology in which the router finds everyone at these ports of loopback."""
    return msgspec.structs.replace(
        topology,
        nodes=tuple(msgspec.structs.replace(node, port=ports[node.name]) for node in topology.nodes),
        engines=tuple(msgspec.structs.replace(engine, port=ports[engine.name]) for engine in topology.engines),
        links=tuple(
            msgspec.structs.replace(link, forwards={name: ports[name] for name in link.forwards})
            for link in topology.links
        ),
        router=msgspec.structs.replace(topology.router, port=free_port()),
    )


def free_port() -> int:
    line = BadLine()
    line.close()
    return line.address.port


@asynccontextmanager
async def own_router(topology: Topology, deployment: Live) -> AsyncGenerator[str]:
    ready = asyncio.Event()
    run, source = deployment.deployment.run, TopologySource(file="topology.json")
    context = RoleContext(topology=topology, source=source, name="router", run=run, on_ready=ready.set)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(router.main(context))
        await ready.wait()
        try:
            yield f"http://{LOOPBACK}:{topology.router.port}"
        finally:
            serving.cancel()


def faults_of_every_pair(topology: Topology, chance: random.Random) -> list[UpstreamFault]:
    """Of each pair one is cut off, the other frozen, and one of the two crawls."""
    faults: list[UpstreamFault] = []
    for pair in pairs_of(topology):
        cut, frozen = chance.sample(pair, 2)
        faults.append(Cut(endpoint=cut, seconds=chance.uniform(0.0, 1.5)))
        faults.append(Freeze(endpoint=frozen, seconds=chance.uniform(0.3, 4.0)))
        faults.append(Crawl(endpoint=chance.choice(pair), seconds=chance.uniform(0.5, 2.0)))
    chance.shuffle(faults)
    return faults


async def test_no_line_of_the_router_is_worth_a_stream():
    chance = random.Random(4)
    topology = wide_scripted()
    async with live(topology) as deployment:
        async with bad_upstream(deployment) as upstream:
            chaos = Chaos(upstream, num_clients=5, num_at_once=1, chance=chance)
            faults = faults_of_every_pair(topology, chance)
            await chaos.run(scripted_dialogues(topology, chance), iter(faults), seconds=150.0)
            await upstream.until_well()
            await deployment.until_clean()
        tally = chaos.tally
        assert (tally.wrong, tally.late, tally.broke_off, tally.refused) == ([], [], [], 0), explain(tally)
        assert tally.answers >= 50, explain(tally)
        assert tally.faults.total() == len(faults), explain(tally)
