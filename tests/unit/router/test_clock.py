from __future__ import annotations

import pytest

from pdd.core.units import Seconds
from pdd.router.clock import LoopClock
from pdd.router.driver.patience import Patience
from pdd.sim.loop import run


def test_the_clock_tells_the_running_loops_time() -> None:
    async def main() -> tuple[float, float]:
        clock = LoopClock()
        began = clock.now()
        await clock.sleep(Seconds(12.5))
        await clock.sleep(Seconds(-1.0))
        return began, clock.now()

    assert run(main()) == (0.0, 12.5)


def test_patience_bears_troubles_up_to_its_limit_and_begins_anew_when_all_is_well() -> None:
    async def main() -> tuple[int, float, bool]:
        clock = LoopClock()
        patience = Patience(clock, limit=Seconds(2.0), retry=Seconds(0.5))
        times = 0
        while await patience.bear():
            times += 1
        lasted = clock.now()
        patience.forget()
        return times, lasted, await patience.bear()

    assert run(main()) == (4, pytest.approx(2.0), True)
