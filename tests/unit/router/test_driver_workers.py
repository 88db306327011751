"""Placement, conversations, health and breakers at work: two of each role, each beside its own node, the
whole driver.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from pdd.belief.health import BreakerState
from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role, Route, Steering
from pdd.core.topology import (
    EngineKind,
    EngineTable,
    LinkTable,
    NodeTable,
    PlacementRule,
    PolicyTable,
    RouterTable,
    Topology,
)
from pdd.core.units import BitsPerSecond, Bytes, Seconds
from pdd.engine.scripted.engine import Faults, Script, ScriptedEngine
from pdd.router.base import TokenRequest
from pdd.router.clock import LoopClock
from pdd.sim.chaos.upstream import FaultyEngine
from pdd.sim.loop import run
from pdd.sim.memory.node import MemoryNode
from pdd.sim.world import World, build_world
from tests.support.worlds import BLOCK_BYTES, KV_FORMAT, VOCAB_SIZE, Outcome, check_spans, expected_answer, make_request

P, RLD, MD = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE
NAMES = {P: "p", RLD: "r", MD: "m"}
SCRIPT = Script(prefill_tokens_per_s=2000.0, token_interval=Seconds(0.02), vocab_size=VOCAB_SIZE)
DIRECT = Steering(route=Route.DIRECT)


def topology(policy: PolicyTable) -> Topology:
    """Nodes np0, np1, nr0, nr1 in cluster A, nm0, nm1 in B; engines named likewise, without the n."""
    places = [(role, f"{name}{number}") for role, name in NAMES.items() for number in range(2)]
    return Topology(
        name="test",
        model="scripted",
        nodes=tuple(
            NodeTable(name=NodeId(f"n{name}"), cluster=cluster(role), arena_bytes=Bytes(4096 * BLOCK_BYTES))
            for role, name in places
        ),
        engines=tuple(
            EngineTable(
                name=WorkerId(name),
                role=role,
                cluster=cluster(role),
                node=NodeId(f"n{name}"),
                kind=EngineKind.SCRIPTED,
            )
            for role, name in places
        ),
        router=RouterTable(cluster="A", policy=policy),
        links=(
            LinkTable(
                name="wan",
                clusters=("A", "B"),
                rate_bits_per_s=BitsPerSecond(8.0 * 100 * BLOCK_BYTES),
                delay_s=Seconds(0.015),
            ),
        ),
    )


def cluster(role: Role) -> str:
    return "B" if role is MD else "A"


class Stage:
    """A world, its scripted engines by name, and the lines between them and the router."""

    def __init__(self, policy: PolicyTable) -> None:
        self.scripted: dict[str, ScriptedEngine] = {}
        self.faulty: dict[str, FaultyEngine] = {}
        self.world: World = build_world(topology(policy), KV_FORMAT, self._make_engine)

    def _make_engine(self, table: EngineTable, node: MemoryNode) -> FaultyEngine:
        engine = ScriptedEngine(
            table.name, kv_format=KV_FORMAT, script=SCRIPT, connect_store=lambda: node.open_store(table.name)
        )
        self.scripted[table.name] = engine
        self.faulty[table.name] = FaultyEngine(engine)
        return self.faulty[table.name]

    async def ask(self, request: TokenRequest) -> tuple[Outcome, list[str]]:
        """The whole answer, and which workers gave it, in order."""
        async with self.world.driver.open(request) as answer:
            spans = [span async for span in answer]
        outcome = Outcome(spans, answer.report)
        check_spans(request, spans)
        assert outcome.tokens == expected_answer(request)
        workers = list(dict.fromkeys(str(span.worker) for span in spans if span.tokens))
        return outcome, workers

    def break_generations(self, name: str, *, after: int) -> None:
        """From now on each generation there dies after so many tokens, and the process lives on."""
        engine = self.scripted[name]
        engine.script = replace(engine.script, faults=Faults(die_after_tokens=after))

    def breaker(self, name: str) -> BreakerState:
        return next(
            status.breaker
            for status in self.world.driver.pool.workers.status(LoopClock().now())
            if status.worker == name
        )

    async def num_pinned(self) -> dict[str, int]:
        await asyncio.sleep(1.0)
        return {name: (await self.world.nodes[NodeId(name)].stats()).pinned_blocks for name in ("nm0", "nm1")}


@asynccontextmanager
async def playing(policy: PolicyTable | None = None) -> AsyncGenerator[Stage]:
    stage = Stage(policy or PolicyTable())
    async with stage.world.driver.running():
        yield stage
    assert all(engine.num_open == 0 for engine in stage.scripted.values())
    assert all(status.running == 0 for status in stage.world.driver.pool.workers.status(LoopClock().now()))


# Placement ------------------------------------------------------------------------------------------------------------


def test_a_conversation_stays_with_its_workers_while_others_come_and_go() -> None:
    async def main() -> None:
        async with playing() as stage:
            prompts = {number: make_request(number, prompt_tokens=160).prompt for number in range(4)}
            homes: dict[int, set[str]] = {number: set() for number in prompts}
            for turn in range(4):
                async with asyncio.TaskGroup() as tasks:
                    asked = {
                        number: tasks.create_task(
                            stage.ask(make_request(10 * turn + number, prompt=prompt, max_tokens=40, steering=DIRECT))
                        )
                        for number, prompt in prompts.items()
                    }
                for number, task in asked.items():
                    outcome, workers = task.result()
                    homes[number].update(workers)
                    if turn:
                        assert outcome.report.missing_blocks_at_main is not None
                        assert outcome.report.missing_blocks_at_main <= 3, "the turn before is there already"
                    prompts[number] = (*prompts[number], *outcome.tokens, *range(turn, turn + 30))
            assert all(len(workers) == 2 for workers in homes.values()), f"one P and one MD each: {homes}"
            assert Counter(name for workers in homes.values() for name in workers) == {
                "p0": 2,
                "p1": 2,
                "m0": 2,
                "m1": 2,
            }

    run(main())


def test_a_conversation_is_pinned_at_main_decodes_node_while_it_lives() -> None:
    async def main() -> None:
        async with playing(PolicyTable(conversation_ttl_s=Seconds(60.0))) as stage:
            request = make_request(0, prompt_tokens=160, max_tokens=40, steering=DIRECT)
            outcome, (_, main_worker) = await stage.ask(request)
            pinned = await stage.num_pinned()
            assert pinned[f"n{main_worker}"] == 12
            longer = (*request.prompt, *outcome.tokens, *range(56))
            await stage.ask(make_request(1, prompt=longer, max_tokens=40, steering=DIRECT))
            assert sorted((await stage.num_pinned()).values()) == [0, 18]
            await asyncio.sleep(61.0)
            assert stage.world.driver.beliefs.conversations.num_live(LoopClock().now()) == 0
            assert sorted((await stage.num_pinned()).values()) == [0, 0]

    run(main())


def test_a_conversation_whose_home_died_goes_on_elsewhere_and_stays_there() -> None:
    async def main() -> None:
        async with playing() as stage:
            prompt = make_request(0, prompt_tokens=160).prompt
            seen = list[str]()
            for turn in range(4):
                outcome, workers = await stage.ask(make_request(turn, prompt=prompt, max_tokens=40, steering=DIRECT))
                seen.append(workers[-1])
                prompt = (*prompt, *outcome.tokens, *range(30))
                if turn == 1:
                    stage.scripted[workers[-1]].die()
                    await asyncio.sleep(3.0)
                if turn == 2:
                    stage.scripted[seen[0]].revive()
                    await asyncio.sleep(3.0)
            assert seen[0] == seen[1] != seen[2] == seen[3]

    run(main())


# Health ---------------------------------------------------------------------------------------------------------------


def test_an_engine_that_stops_in_mid_answer_is_left_within_seconds_and_gets_its_work_back_later() -> None:
    async def main() -> None:
        async with playing() as stage:
            request = make_request(0, max_tokens=300, steering=DIRECT)
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(stage.ask(request))
                await asyncio.sleep(1.0)
                stopped = next(name for name in ("m0", "m1") if stage.scripted[name].num_open)
                stage.faulty[stopped].upstream.hold()
            outcome, workers = asking.result()
            assert stopped in workers
            assert outcome.report.max_itl_s is not None
            assert outcome.report.max_itl_s < 6.0
            stage.faulty[stopped].upstream.let_go()
            await asyncio.sleep(3.0)
            assert len(stage.world.driver.pool.workers.candidates(MD)) == 2

    run(main())


def test_an_engine_that_breaks_all_it_begins_is_passed_over_until_a_trial_succeeds() -> None:
    async def main() -> None:
        async with playing() as stage:
            healthy = stage.scripted["m0"].script
            stage.break_generations("m0", after=1)
            lost = Counter[str]()
            for number in range(12):
                outcome, _ = await stage.ask(make_request(number, max_tokens=20, steering=DIRECT))
                lost["all"] += outcome.event_names.count("worker_lost")
            assert lost["all"] == 3, "the third failure opened the breaker"
            assert stage.breaker("m0") is BreakerState.OPEN
            stage.scripted["m0"].script = healthy
            await asyncio.sleep(5.0)
            async with asyncio.TaskGroup() as tasks:
                for number in range(20, 24):
                    tasks.create_task(stage.ask(make_request(number, max_tokens=20, steering=DIRECT)))
            assert stage.breaker("m0") is BreakerState.CLOSED

    run(main())


def test_a_prefill_that_answers_its_checks_but_gives_no_token_costs_half_a_minute_and_loses_its_work() -> None:
    async def main() -> None:
        async with playing() as stage:
            for number in range(4):
                await stage.ask(make_request(number, max_tokens=4, steering=DIRECT))
            engine = stage.scripted["p0"]
            engine.script = replace(engine.script, faults=Faults(hang_after_tokens=0))
            waits: list[float] = []
            for number in range(4, 16, 2):
                async with asyncio.TaskGroup() as tasks:
                    asked = [
                        tasks.create_task(stage.ask(make_request(n, max_tokens=4, steering=DIRECT)))
                        for n in (number, number + 1)
                    ]
                waits.extend(task.result()[0].report.ttft_s or 0.0 for task in asked)
            assert max(waits) < 40.0, "a second attempt goes elsewhere"
            assert sum(wait > 1.0 for wait in waits) == 3
            assert stage.breaker("p0") is not BreakerState.CLOSED

    run(main())


def test_what_clients_do_wrong_opens_no_breaker() -> None:
    async def main() -> None:
        async with playing() as stage:
            for number in range(10):
                async with stage.world.driver.open(make_request(number, max_tokens=100)) as answer:
                    await anext(aiter(answer))
            assert {status.breaker for status in stage.world.driver.pool.workers.status(LoopClock().now())} == {
                BreakerState.CLOSED
            }

    run(main())


def test_the_naive_rule_scatters_conversations() -> None:
    async def main() -> None:
        async with playing(PolicyTable(placement=PlacementRule.LEAST_LOADED)) as stage, asyncio.TaskGroup() as tasks:
            prompt = make_request(0, prompt_tokens=160).prompt
            first, _ = await stage.ask(make_request(0, prompt=prompt, max_tokens=40, steering=DIRECT))
            longer = (*prompt, *first.tokens, *range(30))
            tasks.create_task(stage.ask(make_request(1, max_tokens=400, steering=DIRECT)))
            await asyncio.sleep(0.5)
            second, _ = await stage.ask(make_request(2, prompt=longer, max_tokens=20, steering=DIRECT))
            assert second.report.missing_blocks_at_main == len(longer) // 16

    run(main())
