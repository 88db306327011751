"""A node dies while nobody asks anything, and is back before the next request: that one must not notice.

The engines' connections to the node are dead by then. Relay and main decode compute so slowly that a prompt which they
don't get from their node takes them longer than is allowed here; without P's blocks the answer stands still for longer
yet.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from pdd.cli.ask.conversation import Question, ReceivedAnswer
from pdd.core.request import Role, Route
from pdd.core.topology import Topology
from tests.support.live import (
    NODES,
    QUICK_RESTARTS,
    Live,
    live,
    packaged_topology,
    question_of,
    right_answer,
    token_prompt,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(120)]

PROMPT_TOKENS = 400
ANSWER_TOKENS = {"tiny": 1500, "scripted": 60}  # enough for the KV to cross before relay decode has finished the answer
SLOW_TOKENS_PER_S = 60.0
ALLOWED_S = 3.0
ROUTES = (Route.RELAY, None)


def question_for(topology: Topology, route: Route | None, salt: str) -> Question:
    pins = {} if route is None else {"route": route}
    return question_of(topology, token_prompt(PROMPT_TOKENS), ANSWER_TOKENS[topology.name], salt=salt, seed=3, **pins)


def longest_gap(answer: ReceivedAnswer) -> float:
    """Without a new token, in seconds; the first is waited for from the question on."""
    moments = [0.0, *(span.at for span in answer.spans if span.token_ids)]
    return max(later - earlier for earlier, later in pairwise(moments))


async def restart(deployment: Live, node: str) -> None:
    """Kills it, and waits until everybody but the engines, who are idle, has found it again."""
    restarts, connections = deployment.role(node).restarts, num_connections(deployment, node)
    deployment.kill(node)
    await deployment.until_back(node, restarts=restarts + 1)
    await deployment.until_healthy()
    await until(lambda: num_connections(deployment, node) > connections, f"the router's connection to {node}")


def num_connections(deployment: Live, node: str) -> int:
    """How often the router has connected to the node; its health is that of the engines only."""
    return deployment.log("router").count(f"node_connected node={node} ")


async def check_unnoticed(deployment: Live, victim: str, expected: dict[Route | None, ReceivedAnswer]) -> None:
    """Kills the idle node anew before each request: an engine that was asked since has a new connection."""
    for number, (route, in_peace) in enumerate(expected.items()):
        await restart(deployment, victim)
        answer = await deployment.ask(question_for(deployment.topology, route, f"{victim} {number}"))
        context = f"{victim} killed, route {route}: {answer.report}"
        assert answer.token_ids == in_peace.token_ids, context
        assert longest_gap(answer) < longest_gap(in_peace) + ALLOWED_S, context
        assert answer.report.wan_kv_bytes > 0, context
        assert set(answer.report.tokens_by_role) == set(in_peace.report.tokens_by_role), context
        await deployment.until_clean()


@pytest.mark.parametrize("name", ["tiny", "scripted"])
async def test_the_request_after_an_idle_node_was_restarted_goes_as_if_nothing_had_been(name: str):
    slow = {"prefill_tokens_per_s": SLOW_TOKENS_PER_S}
    topology = packaged_topology(name, RLD=slow, MD=slow) if name == "scripted" else packaged_topology(name)
    async with live(topology, timing=QUICK_RESTARTS) as deployment:
        expected = {route: await deployment.ask(question_for(topology, route, f"peace {route}")) for route in ROUTES}
        for answer in expected.values():
            assert answer.report.wan_kv_bytes > 0
            assert longest_gap(answer) < ALLOWED_S
        assert set(expected[Route.RELAY].report.tokens_by_role) == set(Role)
        if name == "scripted":
            assert expected[Route.RELAY].token_ids == right_answer(question_for(topology, Route.RELAY, ""))
        await deployment.until_clean()
        for victim in NODES:
            await check_unnoticed(deployment, victim, expected)
