"""The collapse's requests, and what main decode holds of them."""

from __future__ import annotations

from collections import Counter

import pytest

from pdd.core.request import Route
from pdd.sim.paper.runs import collapse_workload, held_at_main
from pdd.sim.workload.base import SimRequest, Workload
from pdd.sim.workload.conversations import WARM_UP_PREFIX

STEM = SimRequest(request_id=f"{WARM_UP_PREFIX}0", arrival=0.0, prompt=((1, 1000),), answer=((2, 10),), max_tokens=10)
FIRST = SimRequest(request_id="first", arrival=1.0, prompt=((1, 400), (3, 600)), answer=((4, 50),), max_tokens=50)
SECOND = SimRequest(
    request_id="second",
    arrival=2.0,
    prompt=(*FIRST.prompt, *FIRST.answer, (5, 100)),
    answer=((6, 50),),
    max_tokens=50,
    after="first",
)
WORKLOAD = Workload(name="test", requests=(STEM, FIRST, SECOND))


@pytest.mark.parametrize("route", [Route.DIRECT, Route.RELAY])
def test_main_decode_holds_prompt_and_answer_of_a_turn_that_went_there(route):
    held = held_at_main(WORKLOAD, {STEM.request_id: Route.DIRECT, "first": route, "second": route})
    assert held == {STEM.request_id: 0, "first": 400, "second": 1050}


@pytest.mark.parametrize("route", [Route.RELAY_ONLY, None])
def test_of_a_turn_that_stayed_away_main_decode_holds_what_it_had_before(route):
    held = held_at_main(WORKLOAD, {STEM.request_id: Route.DIRECT, "first": route, "second": Route.RELAY})
    assert held["second"] == 400


def test_without_its_stem_main_decode_holds_nothing():
    assert held_at_main(WORKLOAD, {"first": Route.RELAY_ONLY})["second"] == 0


def test_conversations_that_shall_collapse_have_many_turns_and_stems_that_go_to_main_decode():
    requests = collapse_workload(1000, seed=1).requests
    assert {request.steering.route for request in requests if request.request_id.startswith(WARM_UP_PREFIX)} == {
        Route.DIRECT
    }
    turns = [request for request in requests if not request.request_id.startswith(WARM_UP_PREFIX)]
    assert {request.steering.route for request in turns} == {None}
    depth: Counter[str] = Counter()
    for request in turns:
        depth[request.request_id] = depth[request.after or ""] + 1
    assert sum(depth[request.request_id] for request in turns[-333:]) / 333 > 10
