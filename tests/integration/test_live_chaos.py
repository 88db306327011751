"""Real processes killed, stopped and cut off at random moments while streams run: every answer is complete and exact.

The seeds decide what is asked, what happens to whom, in which order and for how long; the moments are the machine's.
"""

from __future__ import annotations

import random

import pytest

from pdd.cli.ask.conversation import Question
from pdd.core.topology import Topology
from pdd.core.units import Seconds
from tests.support.live import QUICK_RESTARTS, live, packaged_topology, question_of, token_prompt, with_policy
from tests.support.live_chaos import (
    Chaos,
    Fault,
    Hang,
    Kill,
    LineStall,
    LiveSystem,
    Tally,
    asked_again,
    doubled,
    in_peace,
    one_of_each_fault,
    one_of_each_kind,
    scripted_dialogues,
    until_at_peace,
    wide_scripted,
)

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(400)]


def explain(tally: Tally) -> str:
    return "\n".join([str(tally.as_object()), *tally.log])


async def test_one_trouble_after_another_costs_no_stream_and_nobody_is_turned_away():
    """Two of everything: while one of them is killed, hangs or is cut off, the other serves."""
    chance = random.Random(1)
    topology = wide_scripted()
    async with live(topology, timing=QUICK_RESTARTS) as deployment:
        chaos = Chaos(LiveSystem(deployment), num_clients=8, num_at_once=1, chance=chance)
        faults = one_of_each_kind(topology, chance)
        await chaos.run(scripted_dialogues(topology, chance), iter(faults), seconds=170.0)
        await until_at_peace(deployment)
    tally = chaos.tally
    assert (tally.wrong, tally.late, tally.broke_off, tally.refused) == ([], [], [], 0), explain(tally)
    assert tally.answers >= 100, explain(tally)
    assert tally.faults.total() == len(faults), explain(tally)
    assert tally.handoffs >= 10, explain(tally)


async def test_troubles_that_overlap_lose_double_and_reorder_nothing():
    """Now both of a pair may be gone at once: then a client is refused before its first token, and asks again."""
    chance = random.Random(2)
    topology = wide_scripted()
    async with live(topology, timing=QUICK_RESTARTS) as deployment:
        chaos = Chaos(LiveSystem(deployment), num_clients=6, num_at_once=3, chance=chance)
        faults = one_of_each_fault(topology, chance)
        await chaos.run(scripted_dialogues(topology, chance), iter(faults), seconds=25.0)
        await until_at_peace(deployment)
    tally = chaos.tally
    assert (tally.wrong, tally.late) == ([], []), explain(tally)
    assert len(tally.broke_off) <= tally.answers // 20, explain(tally)
    assert tally.answers >= 30, explain(tally)


def wide_tiny() -> Topology:
    """The real engine's arithmetic; two main decodes, each behind a line of its own."""
    topology = packaged_topology("tiny", rate=4_000_000)
    return doubled(with_policy(topology, relay_threshold_s=Seconds(0.1), catch_up_threshold_tokens=24))


def questions_in_peace(topology: Topology, chance: random.Random, num_questions: int) -> list[Question]:
    return [
        question_of(
            topology,
            token_prompt(chance.choice((60, 400, 900)), seed=number),
            600,
            salt=f"peace-{number}",
            seed=number if number % 2 else None,
        )
        for number in range(num_questions)
    ]


async def test_the_real_engine_gives_the_answers_of_peace_through_all_of_it():
    chance = random.Random(3)
    topology = wide_tiny()
    faults: list[Fault] = [Kill(role=role) for role in ("P", "RLD", "MD", "node-p", "node-rld", "node-md2")]
    faults += [Hang(role=role, seconds=chance.uniform(1.0, 5.0)) for role in ("P2", "RLD2", "MD2", "node-md")]
    faults += [LineStall(link="wan", seconds=1.5)]
    chance.shuffle(faults)
    async with live(topology, timing=QUICK_RESTARTS) as deployment:
        turns = await in_peace(deployment, questions_in_peace(topology, chance, 6))
        chaos = Chaos(LiveSystem(deployment), num_clients=2, num_at_once=1, chance=chance)
        await chaos.run(asked_again(turns), iter(faults), seconds=150.0)
        await until_at_peace(deployment)
    tally = chaos.tally
    assert (tally.wrong, tally.late, tally.broke_off, tally.refused) == ([], [], [], 0), explain(tally)
    assert tally.answers >= 15, explain(tally)
    assert tally.faults.total() == len(faults), explain(tally)
