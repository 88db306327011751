"""A whole deployment in one process, on whatever loop runs: scripted engines, in-memory nodes, lines, the
real driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from pdd.core.errors import PddError
from pdd.core.ids import NodeId, RequestId, Salt, TenantId, WorkerId
from pdd.core.kv_format import DType, KvFormat, uniform_attention_format
from pdd.core.request import GREEDY, Role, Sampling, Steering
from pdd.core.topology import PolicyTable
from pdd.core.units import BytesPerSecond, Seconds
from pdd.engine.scripted.engine import Script, ScriptedEngine, scripted_answer
from pdd.protocol.relay import Command
from pdd.router.base import EmittedSpan, RequestReport, TokenRequest
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.service import Driver
from pdd.router.driver.workers.worker import Worker
from pdd.sim.memory.line import MemoryLine
from pdd.sim.memory.network import MemoryNetwork
from pdd.sim.memory.node import MemoryNode
from pdd.telemetry.events import EventSink

VOCAB_SIZE = 1000
BLOCK_TOKENS = 16


def make_format() -> KvFormat:
    """1 KiB a block."""
    return uniform_attention_format(
        model="scripted", num_layers=1, num_kv_heads=1, head_dim=8, dtype=DType.FLOAT32, block_tokens=BLOCK_TOKENS
    )


KV_FORMAT = make_format()
BLOCK_BYTES = KV_FORMAT.block_bytes


PREFILL_SCRIPT = Script(prefill_tokens_per_s=2000.0, prefill_chunk_tokens=32, vocab_size=VOCAB_SIZE)
RELAY_SCRIPT = Script(token_interval=Seconds(0.03), vocab_size=VOCAB_SIZE)
MAIN_SCRIPT = Script(token_interval=Seconds(0.02), vocab_size=VOCAB_SIZE)
SETTINGS = DriverSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """Clusters A (prefill, relay decode) and B (main decode). The line carries ``blocks_per_s``."""

    blocks_per_s: float = 10.0
    line_delay: float = 0.015
    workers_per_role: int = 1
    prefill: Script = PREFILL_SCRIPT
    relay_decode: Script = RELAY_SCRIPT
    main_decode: Script = MAIN_SCRIPT
    second_prefill_node: bool = False
    """The second prefill worker has a node of its own, which ``World.nodes`` does not list."""
    second_main_node: bool = False
    """So has the second main decode worker."""
    capacity: int = 4096
    main_capacity: int | None = None
    relay_capacity: int | None = None
    relay_batch: int = 16
    """How many generations fill relay decode, as the router counts."""
    decode_limits: tuple[int, int] = (131_072, 131_072)
    """Tokens that the first and the second decode worker of either role take, prompt and output together."""
    settings: DriverSettings = SETTINGS

    @property
    def rate(self) -> BytesPerSecond:
        return BytesPerSecond(self.blocks_per_s * BLOCK_BYTES)


@dataclass(slots=True)
class World:
    """What a test may look at and break."""

    spec: WorldSpec
    network: MemoryNetwork
    line: MemoryLine
    back_line: MemoryLine
    nodes: dict[Role, MemoryNode]
    engines: dict[Role, list[ScriptedEngine]]
    driver: Driver
    commands: list[tuple[RequestId, Command]] = field(default_factory=list)

    async def settle(self) -> None:
        """Waits until transfers that outlive their requests are over."""
        while self.driver.num_transfers:  # noqa: ASYNC110 - on virtual time asking again costs nothing
            await asyncio.sleep(0.5)

    async def check_idle(self) -> None:
        """Nothing runs, is leased, reserved or ordered any more."""
        assert self.driver.num_open == 0
        assert self.driver.num_transfers == 0
        assert self.driver._shared.prefill_turns.num_workers == 0
        await asyncio.sleep(2 * (self.spec.line_delay + BLOCK_BYTES / self.line.rate))  # what is on the line lands
        for role, engines in self.engines.items():
            assert [engine.num_open for engine in engines] == [0] * len(engines), f"{role} still runs something"
        assert {
            status.worker: status.running
            for status in self.driver.pool.workers.status(self.driver.now)
            if status.running
        } == {}
        for node in self.nodes.values():
            if not node.life.alive:
                continue
            stats = await node.stats()
            books = (stats.leased_blocks, stats.reserved_blocks, stats.writing_blocks, stats.orders, stats.watches)
            assert books == (0, 0, 0, 0, 0), (
                f"{stats.node} still holds (leased, reserved, writing, orders, watches) {books}"
            )
            node.life.index.check_integrity()


@asynccontextmanager
async def running_world(spec: WorldSpec | None = None) -> AsyncGenerator[World]:
    """Builds and runs a world; ends it with the context."""
    spec = spec or WorldSpec()
    world = build_world(spec)
    async with world.driver.running():
        yield world


def build_world(spec: WorldSpec, *, sink: EventSink | None = None) -> World:
    network = MemoryNetwork(KV_FORMAT)
    line = MemoryLine(rate=spec.rate, delay=Seconds(spec.line_delay))
    back_line = MemoryLine(rate=spec.rate, delay=Seconds(spec.line_delay))
    capacities = {
        Role.PREFILL: spec.capacity,
        Role.RELAY_DECODE: spec.relay_capacity or spec.capacity,
        Role.MAIN_DECODE: spec.main_capacity or spec.capacity,
    }
    names = {Role.PREFILL: "node-p", Role.RELAY_DECODE: "node-rld", Role.MAIN_DECODE: "node-md"}
    nodes = {
        role: network.add(
            NodeId(name),
            capacity=capacities[role],
            control_delay=Seconds(spec.line_delay if role is Role.MAIN_DECODE else 0.0001),
        )
        for role, name in names.items()
    }
    for role in (Role.PREFILL, Role.RELAY_DECODE):
        network.join(nodes[role].node, nodes[Role.MAIN_DECODE].node, line)
        network.join(nodes[Role.MAIN_DECODE].node, nodes[role].node, back_line)
    places = {role: [node] * spec.workers_per_role for role, node in nodes.items()}
    if spec.second_prefill_node:
        places[Role.PREFILL][1] = network.add(NodeId("node-p-1"), capacity=spec.capacity)
        network.join(NodeId("node-p-1"), nodes[Role.MAIN_DECODE].node, line)
    if spec.second_main_node:
        places[Role.MAIN_DECODE][1] = network.add(NodeId("node-md-1"), capacity=spec.capacity)
        for role in (Role.PREFILL, Role.RELAY_DECODE):
            network.join(nodes[role].node, NodeId("node-md-1"), line)
    engines = {role: _make_engines(role, spec, places[role]) for role in names}
    workers = [
        Worker(
            engine=engine,
            node=node,
            role=role,
            cluster="B" if role is Role.MAIN_DECODE else "A",
            max_batch=spec.relay_batch if role is Role.RELAY_DECODE else 16,
        )
        for role in names
        for engine, node in zip(engines[role], places[role], strict=True)
    ]
    commands: list[tuple[RequestId, Command]] = []
    driver = Driver(
        workers,
        kv_format=KV_FORMAT,
        clock=LoopClock(),
        rates={("A", "B"): spec.rate, ("B", "A"): spec.rate},
        settings=spec.settings,
        on_command=lambda request, command: commands.append((request, command)),
        sink=sink,
    )
    return World(spec, network, line, back_line, nodes, engines, driver, commands)


def _make_engines(role: Role, spec: WorldSpec, places: list[MemoryNode]) -> list[ScriptedEngine]:
    script = {
        Role.PREFILL: spec.prefill,
        Role.RELAY_DECODE: spec.relay_decode,
        Role.MAIN_DECODE: spec.main_decode,
    }[role]
    return [
        ScriptedEngine(
            WorkerId(f"{role.value}-{index}"),
            kv_format=KV_FORMAT,
            script=script,
            max_model_tokens=131_072 if role is Role.PREFILL else spec.decode_limits[index],
            connect_store=partial(node.open_store, WorkerId(f"{role.value}-{index}")),
        )
        for index, node in enumerate(places)
    ]


def make_request(
    number: int = 0,
    *,
    prompt_tokens: int = 100,
    max_tokens: int = 50,
    steering: Steering | None = None,
    stop_token_ids: frozenset[int] = frozenset(),
    sampling: Sampling = GREEDY,
    salt: str = "",
    prompt: tuple[int, ...] | None = None,
) -> TokenRequest:
    """A request whose prompt depends on ``number``."""
    made = tuple((7919 * number + 31 * index + index * index) % VOCAB_SIZE for index in range(prompt_tokens))
    return TokenRequest(
        request_id=RequestId(f"r{number}"),
        tenant=TenantId("test"),
        prompt=made if prompt is None else prompt,
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
        sampling=sampling,
        salt=Salt(salt),
        steering=steering or Steering(),
    )


def expected_answer(request: TokenRequest) -> tuple[int, ...]:
    return scripted_answer(
        request.prompt, request.max_tokens, request.sampling, request.stop_token_ids, vocab_size=VOCAB_SIZE
    )


@dataclass(slots=True)
class Outcome:
    """What a client got."""

    spans: list[EmittedSpan]
    report: RequestReport
    failure: PddError | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for span in self.spans for token in span.tokens)

    @property
    def roles(self) -> list[Role]:
        """Who emitted, in order, repetitions removed."""
        roles: list[Role] = []
        for span in self.spans:
            if span.tokens and (not roles or roles[-1] is not span.role):
                roles.append(span.role)
        return roles

    @property
    def event_names(self) -> list[str]:
        return [event.name for event in self.report.events]


async def ask(world: World, request: TokenRequest, *, read_interval: float = 0.0) -> Outcome:
    """Reads a whole answer, and checks what must hold of every answer."""
    spans: list[EmittedSpan] = []
    async with world.driver.open(request) as answer:
        async for span in answer:
            spans.append(span)
            if read_interval:
                await asyncio.sleep(read_interval)
    outcome = Outcome(spans, answer.report)
    check_whole(request, outcome)
    return outcome


def check_whole(request: TokenRequest, outcome: Outcome) -> None:
    """The one right answer: every position once and in order, one finish, attribution that sums up."""
    check_spans(request, outcome.spans)
    expected = expected_answer(request)
    assert outcome.tokens == expected
    assert [span.finish_reason is not None for span in outcome.spans] == [False] * (len(outcome.spans) - 1) + [True]
    assert sum(outcome.report.tokens_by_role.values()) == len(expected)
    for role, count in outcome.report.tokens_by_role.items():
        assert sum(len(span.tokens) for span in outcome.spans if span.role is role) == count
    assert outcome.event_names[0] == "opened"
    assert outcome.event_names[-1] == "finished"


def check_spans(request: TokenRequest, spans: list[EmittedSpan]) -> None:
    """What must hold of every answer's beginning too."""
    position = 0
    for span in spans:
        assert span.first_position == position
        position += len(span.tokens)
    tokens = tuple(token for span in spans for token in span.tokens)
    assert tokens == expected_answer(request)[: len(tokens)]


def with_policy(spec: WorldSpec, policy: PolicyTable) -> WorldSpec:
    return replace(spec, settings=replace(spec.settings, policy=policy))
