from inspect import iscoroutinefunction

from pdd.core.clock import Clock


def test_a_clock_is_read_at_once_and_slept_on():
    assert not iscoroutinefunction(Clock.now)
    assert iscoroutinefunction(Clock.sleep)
