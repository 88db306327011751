"""A line for room at a node: one asks at a time, in order, as soon as there may be room."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pdd.core.units import Seconds
from pdd.router.driver.transfers.room_line import RoomLine
from pdd.sim.loop import run

RETRY = Seconds(0.25)
ROUND_TRIP = 0.03


@dataclass(slots=True)
class FullNode:
    """``room`` blocks are free; everybody's question takes a round trip."""

    room: int
    line: RoomLine = field(default_factory=lambda: RoomLine(retry=RETRY))
    asked: list[tuple[float, str]] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)

    def let_go(self, blocks: int) -> None:
        self.room += blocks
        self.line.let_go()

    async def reserve(self, name: str, blocks: int) -> None:
        turn = self.line.turn()
        try:
            while True:
                await turn.come()
                await asyncio.sleep(ROUND_TRIP)
                self.asked.append((round(asyncio.get_running_loop().time(), 6), name))
                if blocks <= self.room:
                    self.room -= blocks
                    self.admitted.append(name)
                    return
                turn.refused()
        finally:
            turn.over()


def test_while_there_is_room_nobody_waits_for_anybody() -> None:
    async def main() -> None:
        node = FullNode(room=100)
        async with asyncio.TaskGroup() as tasks:
            for number in range(10):
                tasks.create_task(node.reserve(str(number), 10))
        assert asyncio.get_running_loop().time() == ROUND_TRIP
        assert len(node.line) == 0

    run(main())


def test_many_who_wait_ask_no_more_often_than_one() -> None:
    async def main() -> None:
        node = FullNode(room=0)
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(node.reserve("first", 10))]
            await asyncio.sleep(0.1)
            waiting += [tasks.create_task(node.reserve(str(number), 10)) for number in range(100)]
            await asyncio.sleep(10)
            assert {name for _, name in node.asked} == {"first"}
            assert 30 <= len(node.asked) <= 40
            for task in waiting:
                task.cancel()
        assert len(node.line) == 0

    run(main())


def test_what_is_let_go_is_asked_for_at_once_and_in_order() -> None:
    async def main() -> None:
        node = FullNode(room=0)
        async with asyncio.TaskGroup() as tasks:
            for number in range(5):
                tasks.create_task(node.reserve(str(number), 10))
                await asyncio.sleep(0.1)
            node.let_go(30)
            await asyncio.sleep(4 * ROUND_TRIP)
            assert node.admitted == ["0", "1", "2"]
            node.let_go(20)
        assert node.admitted == ["0", "1", "2", "3", "4"]

    run(main())


def test_a_large_reservation_is_not_passed_by_small_ones() -> None:
    async def main() -> None:
        node = FullNode(room=10)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(node.reserve("large", 50))
            await asyncio.sleep(0.1)
            for number in range(5):
                tasks.create_task(node.reserve(f"small {number}", 5))
            for _ in range(4):
                await asyncio.sleep(1)
                node.let_go(10)
            await asyncio.sleep(1)
            assert node.admitted == ["large"]
            node.let_go(25)
        assert node.admitted[0] == "large"
        assert len(node.admitted) == 6

    run(main())


def test_what_was_let_go_while_one_asked_is_not_missed() -> None:
    async def main() -> None:
        node = FullNode(room=0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(node.reserve("one", 10))
            await asyncio.sleep(ROUND_TRIP + RETRY + ROUND_TRIP / 2)
            node.line.let_go()  # on its way while the question is: the answer may not know of it
            await asyncio.sleep(ROUND_TRIP / 2 + 0.001)
            node.room = 10
        assert node.asked[-1][0] < 2 * (ROUND_TRIP + RETRY)

    run(main())


def test_whoever_gives_up_lets_the_next_one_ask() -> None:
    async def main() -> None:
        node = FullNode(room=10)
        async with asyncio.TaskGroup() as tasks:
            large = tasks.create_task(node.reserve("large", 50))
            await asyncio.sleep(0.1)
            tasks.create_task(node.reserve("small", 10))
            await asyncio.sleep(1)
            assert node.admitted == []
            large.cancel()
        assert node.admitted == ["small"]
        assert len(node.line) == 0

    run(main())
