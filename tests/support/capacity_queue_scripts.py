"""Who may ask a full node, step by step."""

from __future__ import annotations

from typing import Any

from pdd.protocol.capacity_queue import Turn


def while_nobody_waits_everybody_asks(m: Any) -> None:
    queue = m.CapacityQueue()
    assert [queue.turn(name) for name in "abc"] == [Turn.OPEN] * 3
    assert len(queue) == 0
    assert queue.release() is None
    assert queue.leave("a") is None


def newcomers_stand_behind_whoever_was_refused(m: Any) -> None:
    queue = m.CapacityQueue()
    queue.join("large")
    assert queue.turn("small") is Turn.BEHIND
    assert queue.turn("large") is Turn.FIRST
    queue.join("large")
    assert queue.turn("small") is Turn.BEHIND, "a position is kept"
    assert len(queue) == 2


def the_first_is_called_when_something_is_released(m: Any) -> None:
    queue = m.CapacityQueue()
    queue.join("one")
    queue.join("two")
    assert queue.turn("one") is Turn.FIRST
    assert queue.release() == "one"
    assert queue.turn("two") is Turn.BEHIND
    assert queue.turn("one") is Turn.CALLED
    assert queue.turn("one") is Turn.FIRST, "it is called once"


def who_leaves_lets_the_next_one_ask(m: Any) -> None:
    queue = m.CapacityQueue()
    for name in "abc":
        queue.join(name)
    assert queue.leave("b") is None, "it was not the first"
    assert queue.turn("a") is Turn.FIRST
    assert queue.leave("a") == "c"
    assert queue.turn("c") is Turn.CALLED
    assert queue.leave("c") is None
    assert len(queue) == 0


def who_comes_back_was_not_called(m: Any) -> None:
    queue = m.CapacityQueue()
    queue.join("one")
    assert queue.release() == "one"
    queue.leave("one")
    queue.join("other")
    assert queue.turn("one") is Turn.BEHIND
    assert queue.leave("other") == "one"
    assert queue.turn("one") is Turn.CALLED


SCRIPTS = (
    while_nobody_waits_everybody_asks,
    newcomers_stand_behind_whoever_was_refused,
    the_first_is_called_when_something_is_released,
    who_leaves_lets_the_next_one_ask,
    who_comes_back_was_not_called,
)
