from __future__ import annotations

import asyncio
import time

import pytest

from pdd.sim.loop import Deadlock, run


async def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_day_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(86_400 * 3)
        return await now()

    began = time.monotonic()
    assert run(main()) == pytest.approx(86_400 * 3)
    assert time.monotonic() - began < 5


def test_timers_go_off_in_order_of_time_and_then_of_setting() -> None:
    seen: list[tuple[str, float]] = []

    async def wait(name: str, delay: float) -> None:
        await asyncio.sleep(delay)
        seen.append((name, await now()))

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, delay in (("late", 2.0), ("early", 1.0), ("also early", 1.0)):
                tasks.create_task(wait(name, delay))

    run(main())
    assert seen == [("early", 1.0), ("also early", 1.0), ("late", 2.0)]


def test_a_timeout_goes_off_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return await now()

    assert run(main()) == pytest.approx(30)


def test_a_deadlock_is_raised_and_names_who_waits() -> None:
    async def waiting_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(waiting_for_ever(), name="the one that waits")

    with pytest.raises(Deadlock, match="the one that waits"):
        run(main())


def test_two_runs_begin_at_the_same_time() -> None:
    assert run(now()) == run(now()) == 0.0
