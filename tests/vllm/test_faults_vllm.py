"""kill -9 of a vLLM engine in mid-stream: the answer is complete, and what it would have been anyway."""

from __future__ import annotations

import pytest

from pdd.cli.deploy.forking import ForkServers
from pdd.core.request import HandoffMode, Role, Route
from pdd.core.topology import Topology
from tests.support.live import QUICK_RESTARTS, Live, live, packaged_topology, question_of, token_prompt

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(240)]

NUM_TOKENS = 600
PROMPT = token_prompt(300)


def question(topology: Topology, salt: str, route: Route, seed: int | None):
    # On a busy machine RLD's first tokens may take longer than the transfer: it gets 50 in any case.
    pins = {"handoff": HandoffMode.ONE_SHOT, "handoff_after_tokens": 50} if route is Route.RELAY else {}
    return question_of(topology, PROMPT, NUM_TOKENS, salt=salt, seed=seed, route=route, **pins)


async def kill_in_mid_stream(
    deployment: Live, victim: str, *, emitting: Role, route: Route, seed: int | None
) -> tuple[int, ...]:
    """The answer's tokens; the victim dies at the third token that ``emitting`` brought."""
    restarts = deployment.role(victim).restarts
    num_seen = 0

    def third(span) -> bool:
        nonlocal num_seen
        num_seen += len(span.token_ids) if span.role is emitting else 0
        return num_seen >= 3

    salt = f"{victim} {emitting} {route} {seed}"
    answer = await deployment.ask_and(
        question(deployment.topology, salt, route, seed), third, lambda: deployment.kill(victim)
    )
    await deployment.until_back(victim, restarts=restarts + 1)
    await deployment.until_healthy()
    return answer.token_ids


async def test_killed_engines_change_no_answer(forks: ForkServers):
    topology = packaged_topology("vllm-tiny", rate=20_000_000)
    async with live(topology, timing=QUICK_RESTARTS, forks=forks) as deployment:
        await deployment.until_healthy()
        for seed in (None, 7):
            whole = await deployment.ask(question(topology, f"whole {seed}", Route.DIRECT, seed))
            assert len(whole.token_ids) == NUM_TOKENS
            for victim, emitting, route in (
                ("MD", Role.MAIN_DECODE, Route.DIRECT),
                ("MD", Role.MAIN_DECODE, Route.RELAY),
                ("RLD", Role.RELAY_DECODE, Route.RELAY),
            ):
                tokens = await kill_in_mid_stream(deployment, victim, emitting=emitting, route=route, seed=seed)
                assert tokens == whole.token_ids, (victim, emitting, route, seed)
        await deployment.until_clean()
