"""Conversations, and the pins that follow them, against an in-memory node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pdd.belief.conversations import Conversation, Conversations
from pdd.core.blocks import BlockHash
from pdd.core.errors import NodeFailed
from pdd.core.ids import NodeId, PinId, WorkerId
from pdd.core.replication import Pin
from pdd.core.request import Role
from pdd.core.topology import HealthTable
from pdd.core.units import Seconds
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.workers.pins import PinBoard
from pdd.sim.loop import run

TTL = 100.0
MAIN = NodeId("main")
OTHER = NodeId("other")


def blocks(*path: int) -> list[BlockHash]:
    return [BlockHash(repr(path[:end]).encode()) for end in range(1, len(path) + 1)]


class Notebook:
    """A node that writes down its pins."""

    def __init__(self, name: NodeId) -> None:
        self.node = name
        self.pins: dict[PinId, tuple[BlockHash, ...]] = {}
        self.told: list[str] = []
        self.fails = False
        self.hangs = False

    async def pin(self, pin: Pin) -> None:
        await self._meet_fate()
        self.told.append(f"+{pin.pin}")
        self.pins[pin.pin] = pin.hashes

    async def unpin(self, pin: PinId) -> None:
        await self._meet_fate()
        self.told.append(f"-{pin}")
        self.pins.pop(pin, None)

    async def _meet_fate(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise NodeFailed("away")

    def lose_connection(self) -> None:
        self.pins.clear()


now = LoopClock().now


class Nodes:
    """What a pin board needs of a pool."""

    def __init__(self) -> None:
        self.nodes = {name: Notebook(name) for name in (MAIN, OTHER)}
        self.returns = 1
        self.workers = self

    def node_returns(self, node: NodeId) -> int:
        return self.returns


class Stage:
    def __init__(self, max_conversations: int = 1000) -> None:
        self.nodes = Nodes()
        settings = DriverSettings(health=HealthTable())
        self.pins = PinBoard(self.nodes, settings, LoopClock())  # type: ignore[arg-type]
        self.all = Conversations(self.pins, ttl=Seconds(TTL), max_conversations=max_conversations)
        self.main, self.other = self.nodes.nodes[MAIN], self.nodes.nodes[OTHER]

    def play(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                self.pins.start(tasks)
                await scene()
                self.pins.stop()

        run(main())

    def turn(
        self,
        hashes: Sequence[BlockHash],
        *,
        previous: Conversation | None = None,
        node: NodeId | None = MAIN,
        filtered: bool = False,
        **seats: str,
    ) -> None:
        workers = {Role(role): WorkerId(worker) for role, worker in seats.items()}
        self.all.remember(hashes, now(), seats=workers, main_node=node, filtered=filtered, previous=previous)

    async def settle(self) -> None:
        await asyncio.sleep(0.001)


def test_a_prompt_that_extends_a_stored_answer_belongs_to_its_conversation() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1, 2, 3), prefill="p", main_decode="m")
        found = stage.all.find(blocks(1, 2, 3, 4, 5), now())
        assert found is not None
        assert (found.prefill, found.relay_decode, found.main_decode) == ("p", None, "m")
        assert (found.main_node, found.num_blocks, found.num_pinned) == (MAIN, 3, 3)
        assert stage.all.find(blocks(1, 2, 3), now()) is not None
        assert stage.all.find(blocks(1, 2), now()) is None, "it does not extend the answer"
        assert stage.all.find(blocks(1, 2, 4, 5), now()) is None
        assert stage.all.find([], now()) is None

    stage.play(scene)


def test_the_longest_stored_sequence_counts() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1), main_decode="short")
        stage.turn(blocks(1, 2, 3), main_decode="long")
        found = stage.all.find(blocks(1, 2, 3, 4), now())
        assert found is not None
        assert found.main_decode == "long"

    stage.play(scene)


def test_a_turn_takes_the_place_of_the_one_before_and_keeps_whom_it_did_not_need() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1, 2), prefill="p", relay_decode="r", main_decode="m")
        first = stage.all.find(blocks(1, 2, 3), now())
        stage.turn(blocks(1, 2, 3, 4), previous=first, prefill="q", main_decode="m")
        assert stage.all.num_live(now()) == 1
        second = stage.all.find(blocks(1, 2, 3, 4, 5), now())
        assert second is not None
        assert (second.prefill, second.relay_decode, second.main_decode) == ("q", "r", "m")
        assert stage.all.find(blocks(1, 2, 9), now()) is None

    stage.play(scene)


def test_two_branches_of_one_turn_are_two_conversations() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1), main_decode="m")
        first = stage.all.find(blocks(1, 2), now())
        second = stage.all.find(blocks(1, 3), now())
        stage.turn(blocks(1, 2, 2), previous=first)
        stage.turn(blocks(1, 3, 3), previous=second)
        assert stage.all.num_live(now()) == 2
        await stage.settle()
        assert sorted(stage.main.pins.values()) == [tuple(blocks(1, 2, 2)), tuple(blocks(1, 3, 3))]

    stage.play(scene)


def test_the_pin_grows_with_its_conversation() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1, 2))
        await stage.settle()
        stage.turn(blocks(1, 2, 3), previous=stage.all.find(blocks(1, 2), now()))
        await stage.settle()
        assert stage.main.pins == {PinId("conversation-1"): tuple(blocks(1, 2, 3))}

    stage.play(scene)


def test_the_pin_moves_with_its_conversation() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1, 2))
        await stage.settle()
        stage.turn(blocks(1, 2, 3), previous=stage.all.find(blocks(1, 2), now()), node=OTHER)
        await stage.settle()
        assert stage.main.pins == {}
        assert list(stage.other.pins.values()) == [tuple(blocks(1, 2, 3))]

    stage.play(scene)


def test_a_filtered_turn_leaves_pinned_what_was_pinned_and_is_remembered_as_such() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1, 2), main_decode="m")
        stage.turn(blocks(1, 2, 3), previous=stage.all.find(blocks(1, 2), now()), node=None, filtered=True)
        await stage.settle()
        found = stage.all.find(blocks(1, 2, 3), now())
        assert found is not None
        assert found.last_filtered
        assert (found.main_node, found.num_blocks, found.num_pinned) == (MAIN, 3, 2)
        assert list(stage.main.pins.values()) == [tuple(blocks(1, 2))]
        stage.turn(blocks(1, 2, 3, 4), previous=found)
        await stage.settle()
        assert list(stage.main.pins.values()) == [tuple(blocks(1, 2, 3, 4))]
        after = stage.all.find(blocks(1, 2, 3, 4), now())
        assert after is not None
        assert not after.last_filtered

    stage.play(scene)


def test_the_same_turn_again_is_one_conversation_with_one_pin() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1, 2))
        stage.turn(blocks(1, 2))
        await stage.settle()
        assert stage.all.num_live(now()) == 1
        assert len(stage.main.pins) == 1

    stage.play(scene)


def test_a_conversation_that_rests_too_long_is_forgotten_with_its_pin() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1, 2))
        stage.turn(blocks(7, 8))
        await asyncio.sleep(TTL - 1.0)
        assert stage.all.find(blocks(1, 2), now()) is not None, "which keeps it alive"
        await asyncio.sleep(2.0)
        assert stage.all.num_live(now()) == 1
        await stage.settle()
        assert list(stage.main.pins.values()) == [tuple(blocks(1, 2))]
        await asyncio.sleep(TTL)
        assert stage.all.find(blocks(1, 2, 3), now()) is None
        await stage.settle()
        assert stage.main.pins == {}

    stage.play(scene)


def test_a_turn_that_outlasts_its_conversation_begins_a_new_one() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1, 2), main_decode="m")
        previous = stage.all.find(blocks(1, 2), now())
        await asyncio.sleep(TTL + 1.0)
        assert stage.all.num_live(now()) == 0
        stage.turn(blocks(1, 2, 3), previous=previous, main_decode="n")
        await stage.settle()
        assert list(stage.main.pins.values()) == [tuple(blocks(1, 2, 3))]

    stage.play(scene)


def test_of_too_many_the_one_that_rested_longest_goes() -> None:
    stage = Stage(max_conversations=3)

    async def scene() -> None:
        for number in range(5):
            stage.turn(blocks(number))
            assert stage.all.find(blocks(0), now()) is not None
        assert stage.all.num_live(now()) == 3
        assert [stage.all.find(blocks(number), now()) is not None for number in range(5)] == [
            True,
            False,
            False,
            True,
            True,
        ]
        await stage.settle()
        assert len(stage.main.pins) == 3

    stage.play(scene)


def test_a_turn_without_a_full_block_is_nothing_to_remember() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn([])
        assert stage.all.num_live(now()) == 0

    stage.play(scene)
