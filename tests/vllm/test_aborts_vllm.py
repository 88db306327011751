"""Clients that leave at any moment: nothing that vLLM or a node held for them stays held."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from pdd.cli.ask.conversation import Question, ReceivedSpan
from pdd.cli.deploy.forking import ForkServers
from pdd.core.request import HandoffMode, Route
from pdd.core.topology import Topology
from tests.support.live import Live, live, packaged_topology, question_of, token_prompt, with_policy

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(240)]

REQUESTS = 200
CLIENTS = 8
LONGEST_ANSWER = 60


@dataclass(frozen=True, kw_only=True)
class Call:
    """A question whose client leaves ``leave_after`` seconds after sending it, or when it has got so many tokens."""

    question: Question
    leave_after: float | None
    leave_at_tokens: int | None


def make_call(topology: Topology, index: int, chance: random.Random) -> Call:
    question = question_of(
        topology,
        token_prompt(chance.choice((1, 15, 17, 40, 100, 300, 600)), seed=chance.randrange(20)),
        LONGEST_ANSWER,
        salt=chance.choice(("one", "two")),
        seed=chance.choice((None, 1, 2)),
        route=chance.choice((None, Route.DIRECT, Route.RELAY, Route.RELAY)),
        handoff=chance.choice((None, HandoffMode.ONE_SHOT, HandoffMode.CATCH_UP)),
        handoff_after_tokens=chance.choice((None, 1, 20)),
    )
    in_time = index % 2 == 0  # before the first token, too, while KV is under way
    return Call(
        question=question,
        leave_after=chance.uniform(0.0, 0.5) if in_time else None,
        leave_at_tokens=None if in_time else chance.randrange(1, LONGEST_ANSWER),
    )


async def ask_and_leave(deployment: Live, call: Call) -> str:
    """How far it came."""
    roles: list[str] = []
    async with asyncio.TaskGroup() as group:
        task = group.create_task(deployment.ask(call.question, lambda span: listen(span)))

        def listen(span: ReceivedSpan) -> None:
            roles.extend(str(span.role) for _ in span.token_ids)
            if call.leave_at_tokens is not None and len(roles) >= call.leave_at_tokens:
                task.cancel()

        if call.leave_after is not None:
            asyncio.get_running_loop().call_later(call.leave_after, task.cancel)
        await asyncio.wait((task,))
    return "whole" if not task.cancelled() else roles[-1] if roles else "no token"


async def test_two_hundred_clients_that_leave_at_random_leave_nothing_held(forks: ForkServers):
    seed = 20
    print(f"seed {seed}")
    chance = random.Random(seed)
    topology = with_policy(packaged_topology("vllm-tiny", rate=20_000_000), relay_threshold_s=0.1)
    calls = iter([make_call(topology, index, chance) for index in range(REQUESTS)])
    ends: Counter[str] = Counter()
    async with live(topology, forks=forks) as deployment:

        async def client() -> None:
            for call in calls:
                ends[await ask_and_leave(deployment, call)] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client())
        assert ends.total() == REQUESTS
        assert min(ends[end] for end in ("no token", "relay_decode", "main_decode")) > 5, ends
        # vLLM counts anew only when it computes: every engine has to, once more, or it may still show the last abort.
        last = question_of(topology, token_prompt(200, seed=99), LONGEST_ANSWER, salt="last", route=Route.RELAY)
        answer = await deployment.ask(last)
        assert len(answer.token_ids) == LONGEST_ANSWER
        assert all(answer.report.tokens_by_role.values()), answer.report.tokens_by_role
        await deployment.until_clean()
        assert [deployment.role(name).restarts for name in deployment.names] == [0] * len(deployment.names)
