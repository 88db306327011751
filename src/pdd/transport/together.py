"""Tasks that live and die together: the loops of one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def run_together(*loops: Coroutine[None, None, None]) -> None:
    """Runs the loops until the first of them ends; the others are cancelled then.

    A task group of Python 3.11 that is cancelled from outside while one of its tasks fails reports the failure and
    forgets the cancellation: a caller that handles the failure and goes on could then never be stopped. So no task of
    this group ever fails: failures are collected and raised after it.

    Raises:
        ExceptionGroup: what failed.
    """
    failures: list[Exception] = []
    one_ended = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_collect(loop, failures, one_ended)) for loop in loops]
        await one_ended.wait()
        for task in running:
            task.cancel()
    if failures:
        raise ExceptionGroup("a loop of this connection failed", failures)


async def _collect(loop: Coroutine[None, None, None], failures: list[Exception], ended: asyncio.Event) -> None:
    try:
        await loop
    except Exception as error:  # noqa: BLE001 - raised again by run_together
        failures.append(error)
    finally:
        ended.set()
