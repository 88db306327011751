"""An asyncio event loop on virtual time: it never waits, it jumps to the next timer.

Whatever runs on asyncio alone (no sockets, no threads) runs on it unchanged, thousands of times faster, and twice in
the same way. When nothing is ready and no timer is left, nothing can ever happen again: that is a ``Deadlock``.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Deadlock(Exception):
    """Every task waits for something that can't come any more. The message names the tasks."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for input, moves the loop's clock on by what the loop would have waited."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock(self.loop.describe_tasks())
        self.loop.advance(timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0."""

    def __init__(self) -> None:
        self._virtual_now = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual_now

    def advance(self, duration: float) -> None:
        self._virtual_now += max(0.0, duration)

    def describe_tasks(self) -> str:
        waiting = sorted(task.get_name() for task in asyncio.all_tasks(self) if not task.done())
        return f"at {self._virtual_now:.6f} s nothing can happen any more; waiting: {', '.join(waiting) or 'nobody'}"


def run(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs ``main`` to its end on virtual time.

    Raises:
        Deadlock: it waits for ever.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
