"""How long a transfer waits for whom, on virtual time: the line book of a real world, a transfer that only says what it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from pdd.core.ids import OrderId, WorkerId
from pdd.core.replication import ReplicationProgress
from pdd.core.request import SendClass
from pdd.core.units import Bytes
from pdd.router.clock import LoopClock
from pdd.router.driver.transfers.standstill import Standstill
from pdd.sim.loop import run
from tests.support.worlds import SETTINGS, World, running_world


@dataclass(slots=True)
class FakeTransfer:
    """It stands still."""

    demoted: bool = True
    informed: bool = True
    refused: bool = False
    settled: bool = False


def owing(*, backlog: int = 0, background: int = 0) -> ReplicationProgress:
    return ReplicationProgress(
        order=OrderId("o"),
        num_missing=5,
        num_acknowledged=0,
        sent_bytes=Bytes(0),
        rate=None,
        backlog=Bytes(backlog),
        background_backlog=Bytes(background),
        done=False,
    )


async def waited(world: World, transfer: FakeTransfer, progress: ReplicationProgress) -> float:
    source, target = (world.driver.pool.workers.worker(WorkerId(name)) for name in ("prefill-0", "main_decode-0"))
    links = world.driver.beliefs.links
    now = LoopClock().now()
    links.record(source.site, target.site, progress, now=now, all_there=True, send_class=SendClass.BACKGROUND)
    standstill = Standstill(
        source, target, workers=world.driver.beliefs.workers, links=links, clock=LoopClock(), settings=SETTINGS
    )
    begun = asyncio.get_running_loop().time()
    assert await standstill.come(transfer)
    return asyncio.get_running_loop().time() - begun


@pytest.mark.parametrize(
    ("progress", "patience"),
    [(owing(), 3.0), (owing(backlog=1), 30.0), (owing(background=1), 30.0)],
    ids=["nothing", "what others wait for", "what nobody waits for"],
)
def test_in_the_background_a_source_that_has_something_is_waited_for_as_long_as_the_line_and_another_is_not(
    progress: ReplicationProgress, patience: float
) -> None:
    async def main() -> None:
        async with running_world() as world:
            assert await waited(world, FakeTransfer(), progress) == pytest.approx(patience, abs=0.3)

    run(main())


def test_in_the_background_a_target_that_has_said_nothing_is_waited_for_as_long_as_the_line() -> None:
    async def main() -> None:
        async with running_world() as world:
            assert await waited(world, FakeTransfer(informed=False), owing()) == pytest.approx(30.0, abs=0.3)

    run(main())


def test_of_others_a_source_that_has_nothing_is_waited_for_as_long() -> None:
    async def main() -> None:
        async with running_world() as world:
            assert await waited(world, FakeTransfer(demoted=False), owing()) == pytest.approx(3.0, abs=0.3)

    run(main())
