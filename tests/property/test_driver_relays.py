"""Thousands of answers on virtual time: whatever happens, each is the one right answer and nothing is left behind."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings

from pdd.core.errors import CapacityExhausted, Unavailable
from pdd.sim.loop import run
from tests.support.scenarios import Scene, play, scenes
from tests.support.worlds import Outcome

SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking whole deployments takes minutes
)


def check_begun_answers_completed(outcomes: list[Outcome]) -> None:
    """A client that has read a token reads them all; without one it may be refused, for a reason that passes."""
    for outcome in outcomes:
        if outcome.failure is not None:
            assert not outcome.spans, outcome
            assert isinstance(outcome.failure, Unavailable)


@SETTINGS
@given(scenes())
def test_every_answer_is_whole_and_right_on_every_route(scene: Scene) -> None:
    for outcome in run(play(scene)):
        if outcome.failure is not None:
            # Only a small node, full for longer than anybody waits in line, refuses, and before it has begun.
            assert scene.spec.main_capacity is not None, outcome
            assert isinstance(outcome.failure, CapacityExhausted)
            assert not outcome.spans


@SETTINGS
@given(scenes(may_leave=True))
def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind(scene: Scene) -> None:
    run(play(scene))


@SETTINGS
@given(scenes(max_breaks=3))
def test_what_breaks_and_is_repaired_costs_no_answer_that_has_begun(scene: Scene) -> None:
    check_begun_answers_completed(run(play(scene)))


@SETTINGS
@given(scenes(max_breaks=1, repaired=False))
def test_no_single_loss_for_good_costs_an_answer_that_has_begun(scene: Scene) -> None:
    check_begun_answers_completed(run(play(scene)))


@SETTINGS
@given(scenes(may_leave=True, max_breaks=4, repaired=False))
def test_whatever_breaks_for_good_leaves_nothing_behind(scene: Scene) -> None:
    run(play(scene))
