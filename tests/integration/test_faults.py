"""Roles die, lines break and clients leave in the middle of answers from real processes; the answer stays the right
one.

The line is slow enough for a prompt's KV to take a second and a half, and main decode extends slowly, so that there is
time to break something while relay decode runs, while main decode catches up, and while it decodes.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial

import msgspec
import pytest

from pdd.cli.ask.conversation import Question, ReceivedAnswer, ReceivedSpan
from pdd.cli.deploy.state import Phase
from pdd.cli.deploy.supervisor import Timing
from pdd.core.errors import PddError, Unavailable, WorkerFailed
from pdd.core.request import Role
from pdd.core.topology import Topology
from pdd.core.units import Seconds
from pdd.transport.emulate_control import Cut, CutKind, Restore, Stall
from tests.support.live import (
    QUICK_RESTARTS,
    Live,
    live,
    packaged_topology,
    question_of,
    right_answer,
    token_prompt,
    until,
    with_policy,
)

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(150)]

PROMPT_TOKENS = 3000
ANSWER_TOKENS = 200
LONG_AWAY = Timing(first_pause=Seconds(12.0), longest_pause=Seconds(12.0))
"""Longer than a request waits for a worker to come back."""
ROLES = ("MD", "RLD", "P", "node-md", "node-rld", "node-p", "wan")


def slow_scripted() -> Topology:
    topology = packaged_topology(
        "scripted",
        rate=1_000_000,
        P={"prefill_tokens_per_s": 6000.0},
        RLD={"prefill_tokens_per_s": 20_000.0},
        MD={"prefill_tokens_per_s": 300.0},
    )
    return with_policy(topology, relay_threshold_s=Seconds(0.5), catch_up_threshold_tokens=32)


def relayed_question(topology: Topology, salt: str) -> Question:
    return question_of(topology, token_prompt(PROMPT_TOKENS), ANSWER_TOKENS, salt=salt)


def counts(answer: ReceivedAnswer) -> dict[str, int]:
    return {role.value: count for role, count in answer.report.tokens_by_role.items()}


def check_exact(answer: ReceivedAnswer, question: Question, context: str = "") -> None:
    assert answer.token_ids == right_answer(question), f"{context}: another answer; tokens by role: {counts(answer)}"
    assert answer.finish_reason == "length"


async def check_relays(deployment: Live, salt: str) -> None:
    """A new request is answered the whole way round."""
    question = relayed_question(deployment.topology, salt)
    answer = await deployment.ask(question)
    check_exact(answer, question, "after recovery")
    by_role = counts(answer)
    assert all(by_role.get(role.value, 0) >= 1 for role in Role), f"not relayed: {by_role}, {answer.report}"


def decoded_by(role: Role, num_tokens: int):
    """Holds from the ``num_tokens``-th token of ``role`` on."""
    seen = [0]

    def holds(span: ReceivedSpan) -> bool:
        seen[0] += len(span.token_ids) if span.role is role else 0
        return seen[0] >= num_tokens

    return holds


async def ask_killing(deployment: Live, question: Question, phase: str, victim: str) -> ReceivedAnswer:
    """Asks; the victim is killed in ``phase`` of the answer."""

    async def while_main_catches_up() -> None:
        await until(lambda: is_extending(deployment), "main decode extends while relay decode goes on")
        deployment.kill(victim)

    match phase:
        case "relay decode":
            return await deployment.ask_and(
                question, decoded_by(Role.RELAY_DECODE, 10), lambda: deployment.kill(victim)
            )
        case "catch-up":
            return await deployment.ask_and(question, decoded_by(Role.RELAY_DECODE, 10), while_main_catches_up)
        case "main decode":
            return await deployment.ask_and(question, decoded_by(Role.MAIN_DECODE, 5), lambda: deployment.kill(victim))
        case _:
            raise AssertionError(phase)


async def is_extending(deployment: Live) -> bool:
    return await deployment.running("MD") > 0


@pytest.mark.parametrize("victim", ROLES)
async def test_a_role_killed_in_any_phase_of_an_answer_costs_no_token_and_comes_back(victim: str):
    async with live(slow_scripted(), timing=QUICK_RESTARTS) as deployment:
        for number, phase in enumerate(("relay decode", "catch-up", "main decode"), start=1):
            question = relayed_question(deployment.topology, f"{victim} {phase}")
            async with asyncio.timeout(45):
                answer = await ask_killing(deployment, question, phase, victim)
            check_exact(answer, question, f"{victim} killed during {phase}")
            await deployment.until_back(victim, restarts=number)
            await deployment.until_healthy()
            await deployment.until_clean()
        await check_relays(deployment, "afterwards")
        await deployment.until_clean()
        assert sum(role.restarts for role in deployment.deployment.roles) == 3


def slow_tiny() -> Topology:
    """The real engine; a prompt's KV takes about half a second to cross."""
    return with_policy(packaged_topology("tiny", rate=2_000_000), relay_threshold_s=Seconds(0.2))


async def test_the_real_engine_finishes_the_same_sampled_answer_whoever_is_killed():
    """The reference is the same request in peace, whichever engine computed which part."""
    async with live(slow_tiny(), timing=QUICK_RESTARTS) as deployment:

        def ask(salt: str) -> Question:
            return question_of(deployment.topology, token_prompt(250), 2000, salt=salt, seed=5)

        expected = await deployment.ask(ask("peace"))
        assert set(expected.report.tokens_by_role) == set(Role)
        for victim, role in (
            ("MD", Role.RELAY_DECODE),
            ("RLD", Role.RELAY_DECODE),
            ("node-md", Role.RELAY_DECODE),
            ("node-p", Role.RELAY_DECODE),
            ("MD", Role.MAIN_DECODE),
            ("node-md", Role.MAIN_DECODE),
        ):
            before = deployment.role(victim).restarts
            async with asyncio.timeout(45):
                question = ask(f"{victim} {role}")
                answer = await deployment.ask_and(question, decoded_by(role, 20), partial(deployment.kill, victim))
            assert answer.token_ids == expected.token_ids, f"{victim} killed during {role}: {counts(answer)}"
            await deployment.until_back(victim, restarts=before + 1)
            await deployment.until_healthy()
            await deployment.until_clean()


async def test_a_killed_router_loses_its_streams_but_leaves_nothing_held_and_serves_again():
    async with live(slow_scripted(), timing=QUICK_RESTARTS) as deployment:
        question = relayed_question(deployment.topology, "router")
        with pytest.raises(WorkerFailed):
            async with asyncio.timeout(30):
                await deployment.ask_and(question, decoded_by(Role.RELAY_DECODE, 10), lambda: deployment.kill("router"))
        await until(lambda: are_idle(deployment), "idle engines", seconds=5.0)
        await deployment.until_clean(seconds=5.0)
        await deployment.until_back("router")
        await deployment.until_healthy()
        await check_relays(deployment, "afterwards")
        await deployment.until_clean()


def slow_to_prefill() -> Topology:
    return packaged_topology("scripted", P={"prefill_tokens_per_s": 1500.0})


async def kill_prefill_when_it_runs(deployment: Live) -> None:
    await until(lambda: is_prefilling(deployment), "prefill runs")
    deployment.kill("P")


async def test_prefill_lost_before_the_first_token_is_waited_for_a_moment():
    question = question_of(slow_to_prefill(), token_prompt(PROMPT_TOKENS), 20, salt="lost")
    async with live(slow_to_prefill(), timing=QUICK_RESTARTS) as deployment:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(kill_prefill_when_it_runs(deployment))
            answer = await deployment.ask(question)
        check_exact(answer, question)
        assert deployment.role("P").restarts == 1
        await deployment.until_clean()


async def test_prefill_that_stays_away_before_the_first_token_is_503_and_served_again_when_it_is_back():
    question = question_of(slow_to_prefill(), token_prompt(PROMPT_TOKENS), 20, salt="lost")
    body = {"model": "scripted", "prompt": list(question.prompt.token_ids), "max_tokens": 20, "ignore_eos": True}
    async with live(slow_to_prefill(), timing=LONG_AWAY) as deployment:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(kill_prefill_when_it_runs(deployment))
            async with deployment.http.post(f"{deployment.url}/v1/completions", json=body) as reply:
                error = (await reply.json())["error"]
        assert reply.status == 503, error
        assert int(reply.headers["Retry-After"]) >= 1
        assert error["message"]
        await deployment.until_back("P")
        await deployment.until_healthy()
        check_exact(await deployment.ask(question), question)
        await deployment.until_clean()


async def is_prefilling(deployment: Live) -> bool:
    return await deployment.running("P") > 0


async def test_another_prefill_worker_takes_over_before_the_first_token():
    topology = packaged_topology("scripted", P={"prefill_tokens_per_s": 1500.0})
    spare = msgspec.structs.replace(topology.engine("P"), name="P2")
    topology = msgspec.structs.replace(topology, engines=(*topology.engines, spare))
    question = question_of(topology, token_prompt(PROMPT_TOKENS), 20, salt="two")
    async with live(topology, timing=QUICK_RESTARTS) as deployment, asyncio.TaskGroup() as group:
        asking = group.create_task(deployment.ask(question))
        await until(lambda: is_prefilling(deployment), "prefill runs")
        deployment.kill("P")
        answer = await asking
        check_exact(answer, question)
        assert answer.spans[0].worker == "P2"
        await deployment.until_back("P")
        await deployment.until_clean()


@pytest.mark.parametrize("kind", CutKind)
async def test_a_line_cut_in_mid_transfer_costs_no_token_and_the_next_answer_relays_again(kind: CutKind):
    async with live(slow_scripted(), timing=QUICK_RESTARTS) as deployment:
        question = relayed_question(deployment.topology, f"cut {kind}")

        async def cut_and_restore() -> None:
            await deployment.link(Cut(kind=kind))
            await asyncio.sleep(2.5)  # how long the line is down
            await deployment.link(Restore())

        async with asyncio.timeout(60):
            answer = await deployment.ask_and(question, decoded_by(Role.RELAY_DECODE, 10), cut_and_restore)
        check_exact(answer, question)
        await deployment.until_healthy()
        await check_relays(deployment, "afterwards")
        await deployment.until_clean()


async def test_a_line_that_stays_cut_leaves_the_answer_to_relay_decode():
    async with live(slow_scripted(), timing=QUICK_RESTARTS) as deployment:
        question = relayed_question(deployment.topology, "cut for good")

        async def cut() -> None:
            await deployment.link(Cut(kind=CutKind.DROP))

        async with asyncio.timeout(60):
            answer = await deployment.ask_and(question, decoded_by(Role.RELAY_DECODE, 10), cut)
        check_exact(answer, question)
        assert "main_decode" not in counts(answer)
        await deployment.link(Restore())
        await deployment.until_healthy()
        await check_relays(deployment, "afterwards")
        await deployment.until_clean()


async def test_a_stalled_line_is_waited_for_while_relay_decode_goes_on():
    async with live(slow_scripted()) as deployment:
        question = relayed_question(deployment.topology, "stall")

        async def stall() -> None:
            await deployment.link(Stall(seconds=Seconds(1.0)))

        async with asyncio.timeout(60):
            answer = await deployment.ask_and(question, decoded_by(Role.RELAY_DECODE, 10), stall)
        check_exact(answer, question)
        assert counts(answer)["relay_decode"] > 100  # 50 a second, through the stall and the rest of the transfer
        assert counts(answer)["main_decode"] >= 1
        await deployment.until_clean()


@pytest.mark.parametrize("missing", [("P",), ("RLD", "MD")])
async def test_without_a_needed_worker_there_is_503_at_once_and_service_when_it_is_back(missing: tuple[str, ...]):
    topology = packaged_topology("scripted")
    question = question_of(topology, token_prompt(50), 20, salt="missing")
    body = {"model": "scripted", "prompt": list(question.prompt.token_ids), "max_tokens": 20}
    async with live(topology, timing=LONG_AWAY) as deployment:
        for name in missing:
            deployment.kill(name)
        await until(lambda: is_unhealthy(deployment), "the router notices")
        async with asyncio.timeout(2.0), deployment.http.post(f"{deployment.url}/v1/completions", json=body) as reply:
            error = (await reply.json())["error"]
        assert reply.status == 503
        assert int(reply.headers["Retry-After"]) >= 1
        assert "worker is up" in error["message"]
        for name in missing:
            await deployment.until_back(name)
        await deployment.until_healthy()
        check_exact(await deployment.ask(question), question)
        assert deployment.role("router").restarts == 0
        await deployment.until_clean()


async def test_without_main_decode_cluster_a_answers_alone_until_it_is_back():
    topology = packaged_topology("scripted")
    async with live(topology, timing=LONG_AWAY) as deployment:
        deployment.kill("MD")
        alone = question_of(topology, token_prompt(50), 20, salt="alone")
        answer = await deployment.ask(alone)
        check_exact(answer, alone)
        assert counts(answer) == {"prefill": 1, "relay_decode": 19}
        assert await deployment.health() == 200
        await deployment.until_back("MD")
        await deployment.until_healthy()
        together = question_of(topology, token_prompt(50, seed=1), 20, salt="together")
        answer = await deployment.ask(together)
        check_exact(answer, together)
        assert "main_decode" in counts(answer)
        await deployment.until_clean()


async def is_unhealthy(deployment: Live) -> bool:
    return await deployment.health() == 503


async def test_clients_that_leave_at_random_moments_leave_engines_idle_within_a_second():
    chance = random.Random(7)
    async with live(slow_scripted()) as deployment:
        for number in range(4):
            questions = [relayed_question(deployment.topology, f"leaver {number} {index}") for index in range(4)]
            async with asyncio.TaskGroup() as group:
                for question in questions:
                    group.create_task(ask_and_leave(deployment, question, chance.uniform(0.05, 2.5)))
            left = asyncio.get_running_loop().time()
            await until(lambda: are_idle(deployment), "idle engines", seconds=5.0)
            assert asyncio.get_running_loop().time() - left < 1.0
        await deployment.until_clean(seconds=5.0)
        await check_relays(deployment, "afterwards")
        await deployment.until_clean()


async def ask_and_leave(deployment: Live, question: Question, after: float) -> None:
    with suppress(TimeoutError, PddError):
        async with asyncio.timeout(after):
            await deployment.ask(question)


async def are_idle(deployment: Live) -> bool:
    return not any([await deployment.running(engine.name) for engine in deployment.topology.engines])


async def test_random_kills_under_load_break_no_answer():
    """Whatever dies whenever: an answer that has begun is completed exactly; one that hasn't may be refused, and is
    asked again.
    """
    chance = random.Random(11)
    seconds = 12.0
    async with live(slow_scripted(), timing=QUICK_RESTARTS) as deployment:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        num_answers = 0

        async def client(number: int) -> None:
            nonlocal num_answers
            while loop.time() < end:
                question = relayed_question(deployment.topology, f"client {number} {num_answers}")
                answer = await ask_until_taken(deployment, question)
                check_exact(answer, question, f"client {number}")
                num_answers += 1

        async def killer() -> None:
            while loop.time() < end:
                await asyncio.sleep(chance.uniform(0.3, 1.5))
                victim = chance.choice(ROLES)
                if deployment.role(victim).phase is Phase.READY:
                    deployment.kill(victim)

        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            group.create_task(killer())
            for number in range(4):
                group.create_task(client(number))
        assert num_answers >= 4
        await deployment.until_healthy()
        # What those answers still send shares the line: the next hand-off would come too late for an answer of this
        # length.
        await deployment.until_clean(seconds=30.0)
        await check_relays(deployment, "afterwards")
        await deployment.until_clean()


async def ask_until_taken(deployment: Live, question: Question) -> ReceivedAnswer:
    while True:
        try:
            return await deployment.ask(question)
        except Unavailable as refusal:
            await asyncio.sleep(min(refusal.retry_after_s, 0.5))
