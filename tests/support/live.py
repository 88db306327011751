"""A whole deployment in real processes: start it, ask it, kill its roles, look at what they hold."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from pdd.cli.ask.client import RouterClient
from pdd.cli.ask.conversation import Draw, Pins, Question, ReceivedAnswer, ReceivedSpan, TokenPrompt
from pdd.cli.deploy.deployment import Deployment, run_deployment
from pdd.cli.deploy.forking import ForkServers
from pdd.cli.deploy.state import Phase, RoleStatus
from pdd.cli.deploy.supervisor import Timing
from pdd.cli.topology.file import load_topology
from pdd.core.errors import PddError
from pdd.core.replication import NodeStats
from pdd.core.request import Sampling
from pdd.core.topology import LOOPBACK, Address, EngineKind, Topology
from pdd.core.units import BitsPerSecond, Seconds
from pdd.engine.catalog import find_model
from pdd.engine.scripted.engine import scripted_answer
from pdd.kvnode.client import TcpNodeClient
from pdd.transport.emulate_control import LinkRequest, LinkState, ask_link

NODES = ("node-p", "node-rld", "node-md")
ENGINES = ("P", "RLD", "MD")
LINK = "wan"
_POLL_S = 0.05
_VLLM_HOLDS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_requests_kv_fetch_by_stage": "loading",
    "vllm:kv_cache_usage_perc": "cache share",
}
"""vLLM counts them anew only when it computes."""


def packaged_topology(name: str, *, rate: float | None = None, **engines: dict[str, object]) -> Topology:
    """A packaged topology on free ports; ``rate`` in bit/s replaces its line's, and ``P=dict(...)`` keys of
    an engine.
    """
    topology = load_topology(name)
    links = tuple(
        msgspec.structs.replace(link, rate_bits_per_s=BitsPerSecond(rate or link.rate_bits_per_s))
        for link in topology.links
    )
    return msgspec.structs.replace(
        topology,
        router=msgspec.structs.replace(topology.router, port=0),
        engines=tuple(msgspec.structs.replace(e, **engines.get(e.name, {})) for e in topology.engines),
        links=links,
    )


def with_policy(topology: Topology, **settings: object) -> Topology:
    policy = msgspec.structs.replace(topology.router.policy, **settings)
    return msgspec.structs.replace(topology, router=msgspec.structs.replace(topology.router, policy=policy))


@dataclass(kw_only=True)
class Live:
    """A deployment that runs, as a test sees it."""

    deployment: Deployment
    router: RouterClient
    http: aiohttp.ClientSession
    changes: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def topology(self) -> Topology:
        return self.deployment.topology

    @property
    def url(self) -> str:
        return self.deployment.router_url

    # Processes

    def role(self, name: str) -> RoleStatus:
        return next(role for role in self.deployment.roles if role.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.deployment.roles)

    def pid(self, name: str) -> int:
        pid = self.role(name).pid
        assert pid is not None, f"{name} is not running"
        return pid

    def kill(self, name: str) -> None:
        """kill -9."""
        os.kill(self.pid(name), signal.SIGKILL)

    async def until_back(self, name: str, *, restarts: int = 1) -> None:
        """Waits until a killed role has been started again and is ready."""
        await until(lambda: self.role(name).restarts >= restarts and self.role(name).phase is Phase.READY, name)

    def resident_bytes(self, name: str) -> int:
        """Anonymous resident memory (RSS without the arena and mapped files)."""
        return _status_bytes(self.pid(name), "RssAnon")

    def shared_bytes(self, name: str) -> int:
        """Resident shared memory: the arena, as far as this process has touched it."""
        return _status_bytes(self.pid(name), "RssShmem")

    def cpu_seconds(self, name: str) -> float:
        fields = Path(f"/proc/{self.pid(name)}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log(self, name: str) -> str:
        return Path(self.role(name).log).read_text(errors="replace")

    # Asking

    async def ask(self, question: Question, on_span: Callable[[ReceivedSpan], None] | None = None) -> ReceivedAnswer:
        return await self.router.ask(question, on_span)

    async def ask_and(
        self, question: Question, when: Callable[[ReceivedSpan], bool], act: Callable[[], Awaitable[None] | None]
    ) -> ReceivedAnswer:
        """Asks, and does something at the first span for which ``when`` holds; that it held once is checked."""
        reached = asyncio.Event()

        def listen(span: ReceivedSpan) -> None:
            if when(span):
                reached.set()

        async def do() -> None:
            await reached.wait()
            done = act()
            if done is not None:
                await done

        async with asyncio.TaskGroup() as group:
            acting = group.create_task(do())
            try:
                answer = await self.ask(question, listen)
            except PddError as error:
                acting.cancel()
                failure = error
            else:
                assert reached.is_set(), f"the moment never came; tokens by role: {answer.report.tokens_by_role}"
                return answer
        # Outside of the group, which would wrap it.
        raise failure

    async def get(self, address: str, path: str) -> tuple[int, dict[str, Any]]:
        async with self.http.get(f"http://{address}{path}") as reply:
            return reply.status, await reply.json(content_type=None)

    async def health(self) -> int:
        """The HTTP status of the router's health."""
        async with self.http.get(f"{self.url}/health") as reply:
            return reply.status

    async def until_healthy(self) -> None:
        """Waits until the router knows every worker as up."""

        async def everyone_up() -> bool:
            async with self.http.get(f"{self.url}/health") as reply:
                body = await reply.json()
            workers = body["roles"].values()
            return reply.status == 200 and all(count["up"] == count["configured"] for count in workers)

        await until(everyone_up, "a healthy router")

    # What is held

    async def running(self, engine: str) -> int:
        """Generations that the engine has not let go of."""
        return int((await self.engine_holds(engine))["running"])

    async def engine_holds(self, engine: str) -> dict[str, float]:
        """What an engine holds for requests; vLLM also says it of its queues and its cache."""
        table = self.topology.engine(engine)
        address = str(Address(host=table.host, port=table.port))
        if table.kind is EngineKind.VLLM:
            return await self._vllm_holds(address)
        _, body = await self.get(address, "/health")
        return {"running": body["running"]}

    async def _vllm_holds(self, address: str) -> dict[str, float]:
        held: dict[str, float] = {}
        async with self.http.get(f"http://{address}/metrics") as reply:
            text = await reply.text()
        for family in text_string_to_metric_families(text):
            if name := _VLLM_HOLDS.get(family.name):
                held[name] = sum(sample.value for sample in family.samples)
        return held

    async def node_stats(self, name: str) -> NodeStats:
        node = self.topology.node(name)
        kv_format = find_model(self.topology.model).kv_format(self.topology.block_tokens)
        address = Address(host=node.host, port=node.port)
        async with TcpNodeClient(node=node.name, address=address, kv_format=kv_format) as client:
            return await client.stats()

    async def held(self) -> dict[str, dict[str, float]]:
        """What each node and engine holds for requests, without what is 0: empty when everything was given back."""
        held: dict[str, dict[str, float]] = {}
        for node in self.topology.nodes:
            stats = await self.node_stats(node.name)
            books = {
                "leased": stats.leased_blocks,
                "reserved": stats.reserved_blocks,
                "writing": stats.writing_blocks,
                "orders": stats.orders,
                "watches": stats.watches,
            }
            held[node.name] = {name: count for name, count in books.items() if count}
        for engine in self.topology.engines:
            holds = await self.engine_holds(engine.name)
            held[engine.name] = {name: count for name, count in holds.items() if count}
        return {name: books for name, books in held.items() if books}

    async def until_clean(self, seconds: float = 15.0) -> None:
        """Waits until nothing is held anywhere; what is held still at the end is in the message."""
        deadline = monotonic() + seconds
        while held := await self.held():
            assert monotonic() < deadline, f"still held after {seconds} s: {held}"
            await asyncio.sleep(_POLL_S)

    async def link(self, request: LinkRequest, name: str = LINK) -> LinkState:
        return await ask_link(Address(host=LOOPBACK, port=self.topology.link(name).control_port), request)


def _status_bytes(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no {key}")


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 30.0) -> None:
    """Polls until ``condition`` holds."""
    deadline = monotonic() + seconds
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        assert monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def live(
    topology: Topology, *, timing: Timing | None = None, forks: ForkServers | None = None
) -> AsyncGenerator[Live]:
    """Runs ``topology`` in a state directory of its own; every role is ready."""
    # Not a test's own folder: a Unix socket's path may have no more than 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pdd-"))
    try:
        async with (
            run_deployment(topology, state_root=root, timing=timing, forks=forks) as deployment,
            RouterClient(deployment.router_url) as router,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http,
        ):
            yield Live(deployment=deployment, router=router, http=http)
    finally:
        shutil.rmtree(root)


def token_prompt(num_tokens: int, seed: int = 0, vocab_size: int = 512) -> TokenPrompt:
    """Token IDs without a pattern; another ``seed``, other tokens from the first on."""
    return TokenPrompt(token_ids=tuple((seed * 7919 + index * 104729 + 13) % vocab_size for index in range(num_tokens)))


def question_of(
    topology: Topology, prompt: TokenPrompt, max_tokens: int, *, salt: str, seed: int | None = None, **pins: object
) -> Question:
    """Greedy without a seed, else sampled."""
    draw = Draw() if seed is None else Draw(temperature=0.8, top_p=0.95, seed=seed)
    return Question(
        prompt=prompt,
        model=topology.model,
        max_tokens=max_tokens,
        draw=draw,
        pins=Pins(cache_salt=salt, **pins),
        ignore_eos=True,
    )


def right_answer(question: Question) -> tuple[int, ...]:
    """What scripted engines must answer, whoever computes which part."""
    prompt, draw = question.prompt, question.draw
    assert isinstance(prompt, TokenPrompt)
    assert question.max_tokens is not None
    sampling = Sampling(temperature=draw.temperature or 0.0, top_k=None, top_p=draw.top_p or 1.0, seed=draw.seed or 0)
    vocab_size = find_model("scripted").vocab_size
    return scripted_answer(prompt.token_ids, question.max_tokens, sampling, vocab_size=vocab_size)


QUICK_RESTARTS = Timing(first_pause=Seconds(0.25), longest_pause=Seconds(0.5))
