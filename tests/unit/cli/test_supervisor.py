"""How long the supervisor waits before it starts a dead role again."""

from pdd.cli.deploy.supervisor import Backoff, Timing


def test_the_pause_doubles_up_to_its_limit():
    backoff = Backoff(Timing(first_pause=0.25, longest_pause=1.5, stable_after=10.0))
    assert [backoff.after_exit(0.1) for _ in range(5)] == [0.25, 0.5, 1.0, 1.5, 1.5]


def test_a_role_that_was_stable_starts_again_with_the_first_pause():
    backoff = Backoff(Timing(first_pause=0.25, longest_pause=8.0, stable_after=10.0))
    for _ in range(4):
        backoff.after_exit(1.0)
    assert backoff.after_exit(10.0) == 0.25
    assert backoff.after_exit(9.9) == 0.5
