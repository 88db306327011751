"""Loops that live and die together."""

from __future__ import annotations

import asyncio

import pytest

from pdd.transport.together import run_together

pytestmark = pytest.mark.anyio


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise ValueError("broken")


async def test_the_first_failure_ends_all_of_them():
    with pytest.raises(ExceptionGroup) as group:
        await run_together(for_ever(), fails())
    assert [str(error) for error in group.value.exceptions] == ["broken"]


async def test_a_cancellation_is_not_lost_when_a_loop_fails_at_the_same_moment():
    goes_on = asyncio.Event()

    async def fails_when_told() -> None:
        await goes_on.wait()
        raise ValueError("broken")

    async def handles_failures_and_goes_on() -> None:
        while True:
            try:
                await run_together(for_ever(), fails_when_told())
            except* ValueError:
                pass

    task = asyncio.get_running_loop().create_task(handles_failures_and_goes_on())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.sleep(0)
    goes_on.clear()
    task.cancel()
    async with asyncio.timeout(1):
        await asyncio.wait([task])
    assert task.cancelled()
