"""Answers are judged token by token, and their failures against who could have served them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.core.errors import CapacityExhausted, PddError, Unavailable
from pdd.core.ids import RequestId, Salt, TenantId, WorkerId
from pdd.core.request import GREEDY, FinishReason, Role
from pdd.core.units import Seconds
from pdd.router.base import EmittedSpan, TokenRequest
from pdd.sim.chaos.breakage import History
from pdd.sim.chaos.compose import compose
from pdd.sim.chaos.scene import Scene, Weather
from pdd.sim.chaos.verdict import Attempt, Wrong, judge

EXPECTED = (10, 11, 12, 13)
OVER = Unavailable("it is over", retry_after_s=Seconds(1.0))
REQUEST = TokenRequest(
    request_id=RequestId("r"),
    tenant=TenantId("t"),
    prompt=(1, 2, 3),
    max_tokens=len(EXPECTED),
    stop_token_ids=frozenset(),
    sampling=GREEDY,
    salt=Salt(""),
)


@pytest.fixture
def scene() -> Scene:
    return replace(compose(0), weather=Weather.STORM, is_tight=False)


def span(first: int, *tokens: int, finish: FinishReason | None = None) -> EmittedSpan:
    return EmittedSpan(
        first_position=first, tokens=tokens, role=Role.MAIN_DECODE, worker=WorkerId("m0"), finish_reason=finish
    )


def attempt(*spans: EmittedSpan, error: PddError | None = None, took: float = 1.0) -> Attempt:
    made = Attempt(request=REQUEST, opened_at=100.0, expected=EXPECTED, error=error)
    for each in spans:
        made.take(each, 100.0 + took / 2)
    made.end(100.0 + took)
    return made


def found(made: Attempt, scene: Scene, history: History | None = None) -> list[Wrong]:
    return [finding.wrong for finding in judge(made, scene, history or History())]


def everybody_broken(scene: Scene, *roles: Role) -> History:
    history = History()
    for table in scene.topology.engines:
        if table.role in (roles or tuple(Role)):
            history.begin(table.name, 99.0)
    return history


LAST = span(2, 12, 13, finish=FinishReason.LENGTH)


def test_the_right_answer_is_found_right(scene: Scene) -> None:
    assert found(attempt(span(0, 10, 11), LAST), scene) == []


def test_a_gap_is_a_loss(scene: Scene) -> None:
    assert found(attempt(span(0, 10), LAST), scene) == [Wrong.LOST, Wrong.LOST]


def test_an_end_too_early_is_a_loss(scene: Scene) -> None:
    assert found(attempt(span(0, 10, 11, finish=FinishReason.LENGTH)), scene) == [Wrong.LOST]


def test_an_answer_that_just_stops_is_a_loss(scene: Scene) -> None:
    assert found(attempt(span(0, 10, 11)), scene) == [Wrong.LOST]


def test_a_repeated_token_is_doubled(scene: Scene) -> None:
    assert Wrong.DOUBLED in found(attempt(span(0, 10, 11), span(1, 11), LAST), scene)


def test_a_token_that_comes_after_later_ones_is_reordered(scene: Scene) -> None:
    assert Wrong.REORDERED in found(attempt(span(0, 10), LAST, span(1, 11)), scene)


def test_another_token_is_wrong(scene: Scene) -> None:
    assert found(attempt(span(0, 10, 99), LAST), scene) == [Wrong.WRONG]


def test_a_token_too_many_is_wrong(scene: Scene) -> None:
    assert Wrong.WRONG in found(attempt(span(0, 10, 11, 12, 13, 14, finish=FinishReason.LENGTH)), scene)


def test_another_reason_to_end_is_wrong(scene: Scene) -> None:
    assert found(attempt(span(0, *EXPECTED, finish=FinishReason.STOP)), scene) == [Wrong.WRONG]


def test_a_client_that_left_is_owed_nothing(scene: Scene) -> None:
    made = attempt(span(0, 10))
    made.left = True
    assert found(made, scene) == []


def test_an_answer_that_broke_off_is_lost_if_anybody_could_have_gone_on(scene: Scene) -> None:
    made = attempt(span(0, 10), error=OVER, took=40.0)
    assert found(made, scene) == [Wrong.LOST]
    assert found(made, scene, everybody_broken(scene, Role.PREFILL, Role.MAIN_DECODE)) == [Wrong.LOST]


def test_an_answer_may_break_off_when_nobody_could_go_on(scene: Scene) -> None:
    assert found(attempt(span(0, 10), error=OVER, took=40.0), scene, everybody_broken(scene)) == []


def test_who_broke_long_before_could_have_gone_on(scene: Scene) -> None:
    history = History()
    for table in scene.topology.engines:
        history.begin(table.name, 10.0)(20.0)
    assert found(attempt(span(0, 10), error=OVER, took=40.0), scene, history) == [Wrong.LOST]


def test_nobody_is_turned_away_while_all_are_well(scene: Scene) -> None:
    assert found(attempt(error=OVER), scene) == [Wrong.TURNED_AWAY]


@pytest.mark.parametrize("roles", [(Role.PREFILL,), (Role.MAIN_DECODE,)])
def test_without_prefill_or_without_main_decode_a_request_may_be_turned_away(scene: Scene, roles: tuple[Role]) -> None:
    assert found(attempt(error=OVER), scene, everybody_broken(scene, *roles)) == []


def test_without_relay_decode_all_are_served(scene: Scene) -> None:
    assert found(attempt(error=OVER), scene, everybody_broken(scene, Role.RELAY_DECODE)) == [Wrong.TURNED_AWAY]


def test_full_is_a_reason_only_where_room_is_scarce(scene: Scene) -> None:
    made = attempt(error=CapacityExhausted("full", retry_after_s=Seconds(1.0)))
    assert found(made, scene) == [Wrong.TURNED_AWAY]
    assert found(made, replace(scene, is_tight=True)) == []


def test_who_is_turned_away_must_be_told_when_to_come_back(scene: Scene) -> None:
    made = attempt(error=Unavailable("later", retry_after_s=Seconds(0.0)))
    assert found(made, scene, everybody_broken(scene)) == [Wrong.TURNED_AWAY]


def test_any_other_error_is_a_crash(scene: Scene) -> None:
    assert found(attempt(error=PddError("what?")), scene) == [Wrong.CRASHED]


def test_nobody_waits_for_ever_while_somebody_could_serve(scene: Scene) -> None:
    faultless = replace(scene, faults=())
    assert found(attempt(span(0, 10, 11), LAST, took=200.0), faultless) == [Wrong.HUNG]
    assert found(attempt(span(0, 10, 11), LAST, took=200.0), faultless, everybody_broken(scene)) == []
