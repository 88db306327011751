"""What follows for workers and nodes from what is found out about them, on times that are just numbers."""

from __future__ import annotations

import pytest

from pdd.belief.health import LATE_AFTER, BreakerState
from pdd.belief.worker_state import Change, Seat, WorkerDown, WorkerNotUp, WorkerState, WorkerSuspect, WorkerUp
from pdd.belief.workers import Workers
from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role
from pdd.core.topology import HealthTable
from pdd.core.units import Seconds
from pdd.core.view import PaceView
from tests.support.known_workers import Known, books, known

P, MD = Role.PREFILL, Role.MAIN_DECODE
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
NODE, OTHER = NodeId("node"), NodeId("other")
NOW = Seconds(0.0)
RULE = HealthTable(checks_to_down=2, breaker_failures=3, breaker_open_s=Seconds(5.0))


def answering(*some: Known, rule: HealthTable = RULE) -> Workers[Known]:
    """Each of them answered its first check, and so did its node."""
    workers = Workers(some, rule)
    for each in some:
        workers.node_answered(books(each.site.node), None)
        workers.answered(each.name, "one", None, NOW)
    return workers


def state_of(workers: Workers[Known], name: WorkerId, role: Role = MD) -> WorkerState[Known]:
    """Of one that is up."""
    (state,) = [each for each in workers.candidates(role) if each.worker.name == name]
    return state


def up(workers: Workers[Known], role: Role = MD) -> list[WorkerId]:
    return [state.worker.name for state in workers.candidates(role)]


def why_down(workers: Workers[Known]) -> list[str | None]:
    return [status.why_down for status in workers.status(NOW)]


def sit(workers: Workers[Known], name: WorkerId = A, *, missing: int = 0, blocks: int = 0) -> Seat[Known]:
    return workers.take(name, NOW, num_missing=missing, num_blocks=blocks)


# Up and down ----------------------------------------------------------------------------------------------------------


def test_a_worker_is_up_from_its_first_answer_on_which_is_told_once() -> None:
    workers = Workers([known("a")], RULE)
    assert (workers.role_view(MD).up, workers.answers(A), why_down(workers)) == (False, False, ["not asked yet"])
    assert workers.answered(A, "one", None, NOW) == WorkerUp(restarts=0, ended=None)
    assert (workers.role_view(MD).up, workers.answers(A), why_down(workers)) == (True, True, [None])
    assert workers.answered(A, "one", None, NOW) is None
    assert not workers.role_view(P).up


def test_workers_are_known_by_name_and_stand_in_the_order_of_their_names() -> None:
    workers = answering(known("c"), known("a"), known("b", P))
    assert up(workers) == [A, C]
    assert [status.worker for status in workers.status(NOW)] == [A, B, C]
    assert workers.worker(B) == known("b", P)


def test_so_many_missed_checks_in_a_row_bring_it_down_and_end_its_lifetime() -> None:
    workers = answering(known("a"))
    seat = sit(workers)
    assert workers.missed(A, "silent") is None
    assert workers.answered(A, "one", None, NOW) is None
    assert workers.missed(A, "silent") is None
    assert workers.holds(seat)
    assert workers.missed(A, "silent") == WorkerDown(why="silent", ended=seat.lifetime)
    assert (workers.holds(seat), workers.answers(A), why_down(workers)) == (False, False, ["silent"])


def test_a_refusal_brings_it_down_at_once() -> None:
    workers = answering(known("a"))
    seat = sit(workers)
    assert workers.refused(A, "nobody is there") == WorkerDown(why="nobody is there", ended=seat.lifetime)
    assert up(workers) == []


def test_of_one_that_stays_down_only_another_reason_is_told() -> None:
    workers = Workers([known("a")], RULE)
    assert workers.refused(A, "nobody is there") == WorkerNotUp(why="nobody is there")
    assert workers.refused(A, "nobody is there") is None
    assert workers.missed(A, "silent") == WorkerNotUp(why="silent")
    assert why_down(workers) == ["silent"]


def test_one_that_was_down_has_to_answer_as_often_as_the_rule_says() -> None:
    workers = answering(known("a"), rule=HealthTable(checks_to_up=3))
    workers.refused(A, "nobody is there")
    assert [workers.answered(A, "one", None, NOW) for _ in range(2)] == [None, None]
    assert workers.answered(A, "one", None, NOW) == WorkerUp(restarts=0, ended=None)


def test_the_same_process_that_is_up_again_is_no_restart_but_what_it_was_asked_before_is_lost() -> None:
    workers = answering(known("a"))
    seat = sit(workers)
    workers.refused(A, "nobody is there")
    assert workers.answered(A, "one", None, NOW) == WorkerUp(restarts=0, ended=None)
    assert not workers.holds(seat)


def test_another_process_ends_the_lifetime_of_the_one_before() -> None:
    workers = answering(known("a"))
    seat = sit(workers)
    assert workers.answered(A, "two", None, NOW) == WorkerUp(restarts=1, ended=seat.lifetime)
    assert not workers.holds(seat)
    assert workers.holds(sit(workers))
    assert [status.restarts for status in workers.status(NOW)] == [1]


def test_a_seat_is_down_once_its_lifetime_was_ended() -> None:
    seat = sit(answering(known("a")))
    assert not seat.down
    seat.lifetime.end()
    assert seat.down


def test_who_disagrees_with_the_deployment_is_down_and_says_why() -> None:
    workers = answering(known("a"))
    seat = sit(workers)
    assert workers.answered(A, "one", "another model", NOW) == WorkerDown(why="another model", ended=seat.lifetime)
    assert workers.answered(A, "one", "another model", NOW) is None
    assert (up(workers), why_down(workers)) == ([], ["another model"])


# Suspects -------------------------------------------------------------------------------------------------------------


def suspect(workers: Workers[Known], *seats: Seat[Known]) -> list[Change | None]:
    return [workers.suspect(seat, NOW) for seat in seats]


def test_a_suspect_gets_nothing_and_holds_nobody_until_its_next_answer() -> None:
    workers = answering(known("a"))
    seat = sit(workers)
    assert suspect(workers, seat) == [WorkerSuspect(breaker=BreakerState.CLOSED)]
    assert (workers.role_view(MD).up, up(workers), workers.holds(seat), workers.answers(A)) == (False, [], False, True)
    assert why_down(workers) == ["a generation broke off, and no check was answered since"]
    assert workers.answered(A, "one", None, NOW) is None
    assert (up(workers), workers.holds(seat)) == ([A], True)


def test_the_end_of_one_process_counts_as_one_failure_however_much_ran_there() -> None:
    workers = answering(known("a"))
    seats = [sit(workers) for _ in range(10)]
    assert suspect(workers, *seats) == [WorkerSuspect(breaker=BreakerState.CLOSED), *[None] * 9]
    assert [status.breaker for status in workers.status(NOW)] == [BreakerState.CLOSED]


def test_a_new_process_answers_for_nothing_that_broke_before() -> None:
    workers = answering(known("a"))
    seat = sit(workers)
    workers.answered(A, "two", None, NOW)
    assert suspect(workers, seat) == [None]
    assert up(workers) == [A]


def test_one_that_was_suspect_when_it_went_down_is_no_suspect_any_more() -> None:
    workers = answering(known("a"))
    seat = sit(workers)
    suspect(workers, seat)
    assert workers.refused(A, "nobody is there") == WorkerDown(why="nobody is there", ended=seat.lifetime)
    assert why_down(workers) == ["nobody is there"]


def broken(workers: Workers[Known]) -> None:
    """Generations at ``a`` break off, one after another; each time it answers its next check."""
    for _ in range(RULE.breaker_failures):
        seat = sit(workers)
        suspect(workers, seat)
        workers.release(seat)
        workers.answered(A, "one", None, NOW)


def test_a_worker_whose_generations_break_off_is_not_trusted_though_it_answers_its_checks() -> None:
    workers = answering(known("a"))
    broken(workers)
    assert [status.breaker for status in workers.status(NOW)] == [BreakerState.OPEN]
    assert not state_of(workers, A).breaker.lets_through(NOW)


def test_one_request_tries_it_again_and_its_success_closes_the_breaker() -> None:
    workers, later = answering(known("a")), Seconds(5.0)
    broken(workers)
    trial = workers.take(A, later)
    assert trial.is_trial
    assert not workers.take(A, later).is_trial
    workers.vouch(trial, later)
    assert [status.breaker for status in workers.status(later)] == [BreakerState.CLOSED]


def test_a_trial_that_told_nothing_is_followed_by_another() -> None:
    workers, later = answering(known("a")), Seconds(5.0)
    broken(workers)
    for _ in range(2):
        trial = workers.take(A, later)
        assert trial.is_trial
        workers.release(trial)


def test_who_sat_beside_a_trial_does_not_end_it() -> None:
    workers, later = answering(known("a")), Seconds(5.0)
    broken(workers)
    before, trial = sit(workers), workers.take(A, later)
    assert trial.is_trial
    workers.release(before)
    assert not workers.take(A, later).is_trial


# Seats ----------------------------------------------------------------------------------------------------------------


def test_a_seat_is_counted_until_it_is_given_back_and_no_less_if_that_is_done_twice() -> None:
    workers = answering(known("a"))
    first, second = sit(workers, missing=9, blocks=20), sit(workers, missing=5, blocks=30)
    state = state_of(workers, A)
    assert (list(state.seats), state.num_missing, state.node.num_promised) == ([first, second], 14, 50)
    for _ in range(2):
        workers.release(first)
        assert (list(state.seats), state.num_missing, state.node.num_promised) == ([second], 5, 30)
    assert [status.running for status in workers.status(NOW)] == [1]


def test_load_is_counted_over_those_that_are_up() -> None:
    workers = answering(known("a"), known("b", max_batch=6), known("c", P))
    for name in (A, B, B, C):
        sit(workers, name)
    view = workers.role_view(MD)
    assert (view.capacity, view.num_seats, view.load, view.up) == (10, 3, 0.3, True)
    workers.refused(B, "nobody is there")
    view = workers.role_view(MD)
    assert (view.capacity, view.num_seats, view.load, view.up) == (4, 1, 0.25, True)


def test_nobody_has_room_if_nobody_is_there() -> None:
    view = answering(known("a")).role_view(P)
    assert (view.capacity, view.num_seats, view.load, view.up) == (0, 0, 1.0, False)


def test_a_role_is_seen_with_its_own_pace() -> None:
    workers = answering(known("a"), known("p", P))
    workers.pace(MD).record(A, work=10, seconds=Seconds(1.0), now=NOW)
    assert workers.role_view(MD).pace.unit_s == pytest.approx(0.1)
    assert workers.role_view(P).pace.unit_s is None


def test_a_status_says_all_that_is_known_of_a_worker() -> None:
    workers = answering(known("a", max_batch=7))
    sit(workers)
    (status,) = workers.status(NOW)
    assert (status.worker, status.role, status.up, status.running, status.max_batch) == (A, MD, True, 1, 7)
    assert (status.restarts, status.breaker, status.why_down) == (0, BreakerState.CLOSED, None)


# Nodes ----------------------------------------------------------------------------------------------------------------


def test_a_nodes_last_books_stand_until_it_is_known_to_be_away() -> None:
    workers = Workers([known("a")], RULE)
    assert (workers.books, workers.node_instance(NODE)) == ({}, None)
    workers.node_answered(books(), None)
    assert (workers.books, workers.node_instance(NODE)) == ({NODE: books()}, "first")
    workers.node_missed(NODE)
    assert workers.node_instance(NODE) == "first"
    workers.node_missed(NODE)
    assert (workers.books, workers.node_instance(NODE)) == ({}, None)


def test_a_node_that_refuses_is_away_at_once() -> None:
    workers = answering(known("a"))
    assert workers.node_refused(NODE, None) == []
    assert (workers.books, up(workers)) == ({}, [A])


def test_a_node_that_was_away_has_no_books_before_it_answered_often_enough() -> None:
    workers = answering(known("a"), rule=HealthTable(checks_to_up=2))
    workers.node_refused(NODE, None)
    workers.node_answered(books(), None)
    assert workers.books == {}
    workers.node_answered(books(), None)
    assert workers.books == {NODE: books()}


def test_it_is_counted_how_often_a_node_came_back_or_is_another_process() -> None:
    workers = Workers([known("a")], RULE)
    assert workers.node_returns(NODE) == 0
    returns: list[int] = []
    for instance in ("first", "first", "second", "second"):
        workers.node_answered(books(instance=instance), None)
        returns.append(workers.node_returns(NODE))
    workers.node_refused(NODE, None)
    workers.node_answered(books(instance="second"), None)
    assert (returns, workers.node_returns(NODE)) == ([1, 1, 2, 2], 3)


def test_the_workers_of_a_node_that_disagrees_are_down_until_it_agrees_or_is_away() -> None:
    workers = answering(known("a"), known("b"), known("c", node="other"))
    for agree in (lambda: workers.node_answered(books(), None), lambda: workers.node_refused(NODE, None)):
        ended = [sit(workers, name).lifetime for name in (A, B)]
        assert workers.node_answered(books(), "too small") == [
            (A, WorkerDown(why="too small", ended=ended[0])),
            (B, WorkerDown(why="too small", ended=ended[1])),
        ]
        assert workers.node_refused(NODE, "too small") == [], "known already"
        assert workers.answered(A, "one", None, NOW) is None
        assert (up(workers), why_down(workers)) == ([C], ["too small", "too small", None])
        assert agree() == []
        assert up(workers) == [C], "nobody has answered since"
        for name in (A, B):
            assert workers.answered(name, "one", None, NOW) == WorkerUp(restarts=0, ended=None)


def test_a_node_has_room_for_what_is_neither_taken_nor_promised() -> None:
    workers = Workers([known("a"), known("b")], RULE)
    workers.answered(A, "one", None, NOW)
    workers.answered(B, "one", None, NOW)
    state = state_of(workers, B)
    assert workers.view(state, NOW).free_blocks is None
    workers.node_answered(books(capacity=100, reserved=20, leased=10), None)
    assert workers.view(state, NOW).free_blocks == 70
    sit(workers, blocks=30)
    assert workers.view(state, NOW).free_blocks == 70, "the books may count it already"
    seat = sit(workers, B, blocks=30)
    assert workers.view(state, NOW).free_blocks == 40, "they don't count all of these yet"
    workers.release(seat)
    assert workers.view(state, NOW).free_blocks == 70


# Lateness -------------------------------------------------------------------------------------------------------------


def test_a_worker_is_late_with_the_first_check_that_it_has_not_answered() -> None:
    workers = answering(known("a"))
    state = state_of(workers, A)
    assert not state.is_late(Seconds(99.0)), "nobody has asked"
    workers.asked(A, Seconds(10.0))
    workers.asked(A, Seconds(10.5))
    assert (state.is_late(Seconds(10.9)), state.is_late(Seconds(10.0 + LATE_AFTER))) == (False, True)
    workers.answered(A, "one", None, NOW)
    assert not state.is_late(Seconds(99.0))


def test_whose_tokens_come_is_not_late_and_no_check_is_held_against_it() -> None:
    workers = answering(known("a"))
    state, seat = state_of(workers, A), sit(workers)
    assert workers.asked(A, NOW) is seat.lifetime
    seat.lifetime.heard = True
    assert not state.is_late(Seconds(9.0))
    workers.heard(A)
    workers.asked(A, Seconds(9.0))
    assert not state.is_late(Seconds(9.5))


def test_what_was_heard_before_a_check_says_nothing_about_it() -> None:
    workers = answering(known("a"))
    lifetime = sit(workers).lifetime
    lifetime.heard = True
    workers.asked(A, NOW)
    assert not lifetime.heard
    assert state_of(workers, A).is_late(Seconds(1.0))


def test_one_that_is_down_may_be_asked_too() -> None:
    assert Workers([known("a")], RULE).asked(A, NOW) is None


def test_the_workers_of_a_node_that_is_late_are_late() -> None:
    workers = answering(known("a"), known("c", node="other"))
    workers.node_asked(NODE, NOW)
    late = Seconds(1.0)
    assert (workers.node_is_late(NODE, Seconds(0.9)), workers.node_is_late(NODE, late)) == (False, True)
    assert [state.is_late(late) for state in workers.candidates(MD)] == [True, False]
    workers.node_answered(books(), None)
    assert not workers.node_is_late(NODE, late)


def test_a_node_that_is_away_is_late() -> None:
    workers = answering(known("a"))
    workers.node_refused(NODE, None)
    assert workers.node_is_late(NODE, NOW)


# Pace -----------------------------------------------------------------------------------------------------------------


def test_prefill_is_measured_by_what_it_computed_in_the_time_it_was_busy() -> None:
    workers = answering(known("a", P))
    seats = [sit(workers, missing=9) for _ in range(4)]
    for seat in seats:
        workers.prefilled(seat, Seconds(4.0), whole=True)
    assert workers.pace(P).unit_s == pytest.approx(4.0 / 40), "side by side they took four seconds, not sixteen"


def test_a_prefill_that_was_held_says_nothing_about_the_pace() -> None:
    workers = answering(known("a", P))
    workers.prefilled(sit(workers, missing=9), Seconds(4.0), whole=False)
    assert workers.pace(P).unit_s is None
    workers.prefilled(sit(workers, missing=9), Seconds(6.0), whole=True)
    assert workers.pace(P).unit_s == pytest.approx(2.0 / 10), "but when the next one could begin"


def test_a_prefill_takes_its_time_after_those_before_it() -> None:
    workers = answering(known("a", P))
    seat = sit(workers, missing=1, blocks=10)
    assert workers.prefill_time(seat, NOW) is None, "nothing was measured"
    workers.pace(P).record(A, work=10, seconds=Seconds(1.0), now=NOW)
    assert workers.prefill_time(seat, NOW) == pytest.approx(0.1 * (10 + 1 + 1))
    sit(workers, missing=20)
    assert workers.prefill_time(seat, NOW) == pytest.approx(0.1 * (10 + 21 + 2))


def test_a_prefill_that_is_slow_takes_longer() -> None:
    workers = answering(known("a", P), known("b", P))
    for _ in range(50):
        for name, seconds in ((A, 3.0), (B, 1.0)):
            workers.pace(P).record(name, work=10, seconds=Seconds(seconds), now=NOW)
    slow, fast = (workers.prefill_time(sit(workers, name, blocks=10), NOW) for name in (A, B))
    assert slow is not None
    assert fast is not None
    assert slow > 2 * fast


def test_decoders_are_measured_by_their_tokens_after_the_first_and_by_how_many_ran_beside() -> None:
    workers = answering(known("a"))
    first, second = sit(workers), sit(workers)
    assert [workers.begin_decoding(seat) for seat in (first, second)] == [0, 1]
    assert state_of(workers, A).num_decoding == 2
    workers.end_decoding(first, NOW, num_tokens=100, seconds=Seconds(2.0), beside=0)
    workers.end_decoding(second, NOW, num_tokens=300, seconds=Seconds(4.0), beside=1)
    assert state_of(workers, A).num_decoding == 0
    assert workers.pace(MD).unit_s == pytest.approx(6.0 / 400)
    assert workers.pace(MD)._mean_crowd == pytest.approx(0.5), "each had the other beside it for half of its time"


def test_a_decode_that_sent_nothing_after_its_first_token_says_nothing_about_the_pace() -> None:
    workers = answering(known("a"))
    seat = sit(workers)
    beside = workers.begin_decoding(seat)
    workers.end_decoding(seat, NOW, num_tokens=0, seconds=Seconds(2.0), beside=beside)
    assert (workers.pace(MD).view, state_of(workers, A).num_decoding) == (PaceView(), 0)
