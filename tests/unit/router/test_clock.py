from __future__ import annotations

from pdd.core.units import Seconds
from pdd.router.clock import LoopClock
from pdd.sim.loop import run


def test_the_clock_tells_the_running_loops_time() -> None:
    async def main() -> tuple[float, float]:
        clock = LoopClock()
        began = clock.now()
        await clock.sleep(Seconds(12.5))
        await clock.sleep(Seconds(-1.0))
        return began, clock.now()

    assert run(main()) == (0.0, 12.5)
