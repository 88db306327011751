"""Lifetimes, hysteresis and the circuit breaker, on times that are just numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdd.belief.health import LATE_AFTER, MAX_OPEN_FACTOR, Attention, Breaker, BreakerState, Lifetime, Pulse
from pdd.core.topology import HealthTable
from pdd.core.units import Seconds

RULE = HealthTable(
    checks_to_down=3,
    checks_to_up=2,
    breaker_failures=3,
    breaker_window_s=Seconds(30.0),
    breaker_open_s=Seconds(5.0),
)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(RULE)
    for _ in range(3):
        breaker.failed(Seconds(at))
    return breaker


# Lifetimes ------------------------------------------------------------------------------------------------------------


def test_whoever_listens_is_told_of_the_end_once_and_who_comes_too_late_at_once() -> None:
    lifetime, told = Lifetime("one", Seconds(0.0)), list[str]()
    lifetime.on_end(lambda: told.append("first"))
    lifetime.on_end(lambda: told.append("second"))
    assert (lifetime.ended, told) == (False, [])
    for _ in range(2):
        assert lifetime.end() == []
        assert (lifetime.ended, told) == (True, ["first", "second"])
    lifetime.on_end(lambda: told.append("late"))()
    assert told == ["first", "second", "late"]


def test_who_listens_no_more_is_not_told() -> None:
    lifetime, told = Lifetime("one", Seconds(0.0)), list[str]()
    forget = lifetime.on_end(lambda: told.append("gone"))
    lifetime.on_end(lambda: told.append("there"))
    for _ in range(2):
        forget()
    lifetime.end()
    assert told == ["there"]


def test_every_listener_is_told_and_what_one_of_them_raises_is_returned() -> None:
    lifetime, told, error = Lifetime("one", Seconds(0.0)), list[str](), RuntimeError("can't be told")

    def fail() -> None:
        raise error

    for listener in (fail, lambda: told.append("after"), fail):
        lifetime.on_end(listener)
    assert lifetime.end() == [error, error]
    assert told == ["after"]


def test_who_begins_to_listen_while_the_end_is_told_is_told_too() -> None:
    lifetime, told = Lifetime("one", Seconds(0.0)), list[str]()
    lifetime.on_end(lambda: lifetime.on_end(lambda: told.append("late")) and None)
    lifetime.end()
    assert told == ["late"]


def test_a_lifetime_says_which_it_is_since_when_and_how_it_is() -> None:
    lifetime = Lifetime("one", Seconds(12.5))
    assert repr(lifetime) == "<Lifetime one since 12.5 s, lasts>"
    lifetime.end()
    assert repr(lifetime) == "<Lifetime one since 12.5 s, ended>"


# Checks ---------------------------------------------------------------------------------------------------------------


def test_the_first_answer_ever_counts_at_once() -> None:
    pulse = Pulse(RULE)
    assert not pulse.up
    pulse.answered()
    assert pulse.up


def test_only_misses_in_a_row_bring_it_down() -> None:
    pulse = Pulse(RULE)
    pulse.answered()
    for _ in range(5):
        pulse.missed()
        pulse.missed()
        assert pulse.up
        pulse.answered()
    for _ in range(3):
        assert pulse.up
        pulse.missed()
    assert not pulse.up


def test_only_answers_in_a_row_bring_it_back() -> None:
    pulse = Pulse(RULE)
    pulse.refused()
    for _ in range(5):
        pulse.answered()
        assert not pulse.up
        pulse.missed()
    pulse.answered()
    assert not pulse.up
    pulse.answered()
    assert pulse.up


def test_a_refusal_needs_no_second_one() -> None:
    pulse = Pulse(RULE)
    pulse.answered()
    pulse.refused()
    assert not pulse.up


def test_lateness_counts_from_the_first_check_since_the_last_answer_or_sign_of_life() -> None:
    attention = Attention(Pulse(RULE))
    assert not attention.is_late(Seconds(99.0))
    for hear in (attention.answered, attention.heard):
        attention.asked(Seconds(10.0))
        attention.asked(Seconds(10.5))
        assert not attention.is_late(Seconds(10.0 + LATE_AFTER - 0.1))
        assert attention.is_late(Seconds(10.0 + LATE_AFTER))
        hear()
        assert not attention.is_late(Seconds(99.0))


def test_a_sign_of_life_is_no_answer() -> None:
    attention = Attention(Pulse(RULE))
    attention.heard()
    assert not attention.pulse.up
    attention.answered()
    assert attention.pulse.up


# The breaker ----------------------------------------------------------------------------------------------------------


def test_failures_open_it_only_within_the_window() -> None:
    breaker = Breaker(RULE)
    for at in (0.0, 10.0, 30.1, 41.0, 60.2):
        breaker.succeeded(Seconds(at))
        breaker.failed(Seconds(at))
        assert breaker.state(Seconds(at)) is BreakerState.CLOSED, at
    breaker.succeeded(Seconds(70.9))
    breaker.failed(Seconds(70.9))
    assert breaker.state(Seconds(70.9)) is BreakerState.OPEN


def test_failures_in_a_row_open_it_however_long_each_takes() -> None:
    """An engine that falls silent is given up after half a minute or more: three such never fall into one window."""
    breaker = Breaker(RULE)
    for at in (0.0, 300.0, 300.0, 600.0, 600.0):
        breaker.failed(Seconds(at))
        if at == 300.0:
            breaker.succeeded(Seconds(at))
        assert breaker.state(Seconds(at)) is BreakerState.CLOSED, at
    breaker.failed(Seconds(900.0))
    assert breaker.state(Seconds(900.0)) is BreakerState.OPEN
    breaker.succeeded(Seconds(905.0))
    for at in (1000.0, 1100.0):
        breaker.failed(Seconds(at))
    assert breaker.state(Seconds(1100.0)) is BreakerState.CLOSED, "those before the trial count no more"


def test_it_opens_with_the_failure_that_is_one_too_many_to_the_end_of_the_window() -> None:
    breaker = Breaker(RULE)
    for at in (0.0, 1.0, 30.0):
        breaker.succeeded(Seconds(at))
        breaker.failed(Seconds(at))
    assert breaker.state(Seconds(30.0)) is BreakerState.OPEN


def test_it_is_half_open_after_a_while_and_lets_one_through() -> None:
    breaker = opened()
    assert not breaker.lets_through(Seconds(4.9))
    assert not breaker.begin(Seconds(4.9)), "what is sent there all the same is no trial"
    assert breaker.state(Seconds(5.0)) is BreakerState.HALF_OPEN
    assert breaker.lets_through(Seconds(5.0))
    assert breaker.begin(Seconds(5.0))
    assert not breaker.lets_through(Seconds(6.0))
    assert not breaker.begin(Seconds(6.0))
    breaker.end_trial()
    assert breaker.lets_through(Seconds(6.0))


def test_success_closes_it_when_half_open_and_forgets_the_failures() -> None:
    breaker = opened()
    breaker.succeeded(Seconds(4.0))
    assert breaker.state(Seconds(4.0)) is BreakerState.OPEN, "that began before"
    breaker.succeeded(Seconds(6.0))
    assert breaker.state(Seconds(6.0)) is BreakerState.CLOSED
    breaker.failed(Seconds(7.0))
    breaker.failed(Seconds(7.0))
    assert breaker.state(Seconds(7.0)) is BreakerState.CLOSED


def test_success_between_failures_excuses_none_of_them() -> None:
    """A worker that breaks every other generation is not well."""
    breaker = Breaker(RULE)
    for at in (0.0, 1.0, 2.0):
        breaker.failed(Seconds(at))
        breaker.succeeded(Seconds(at))
    assert breaker.state(Seconds(2.0)) is BreakerState.OPEN


def test_failed_trials_double_the_time_up_to_a_bound_and_success_resets_it() -> None:
    breaker, now, waits = opened(), 5.0, list[float]()
    for _ in range(6):
        breaker.begin(Seconds(now))
        breaker.failed(Seconds(now))
        breaker.end_trial()
        wait = next(t for t in (10.0, 20.0, 40.0, 60.0) if breaker.lets_through(Seconds(now + t)))
        assert not breaker.lets_through(Seconds(now + wait - 0.01))
        waits.append(wait)
        now += wait
    assert waits == [10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert RULE.breaker_open_s * MAX_OPEN_FACTOR == 60.0
    breaker.succeeded(Seconds(now))
    for _ in range(3):
        breaker.failed(Seconds(now))
    assert breaker.lets_through(Seconds(now + 5.0))


def test_failures_while_it_is_open_do_not_prolong_it() -> None:
    breaker = opened()
    breaker.failed(Seconds(4.0))
    assert breaker.lets_through(Seconds(5.0))


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.sampled_from(["fail", "succeed", "begin", "end"])), max_size=60))
def test_whatever_happens_it_opens_again_within_its_longest_time(steps: list[tuple[float, str]]) -> None:
    breaker, now = Breaker(RULE), Seconds(0.0)
    for wait, what in steps:
        now = Seconds(now + wait)
        match what:
            case "fail":
                breaker.failed(now)
            case "succeed":
                breaker.succeeded(now)
            case "begin":
                breaker.begin(now)
            case _:
                breaker.end_trial()
    breaker.end_trial()
    assert breaker.lets_through(Seconds(now + RULE.breaker_open_s * MAX_OPEN_FACTOR))
