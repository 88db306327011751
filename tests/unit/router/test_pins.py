"""Nodes are told of pins, whatever becomes of them or of the connection with them."""

from __future__ import annotations

import asyncio

from tests.unit.belief.test_conversations import MAIN, OTHER, TTL, Stage, blocks, now


def test_a_node_that_is_away_is_told_all_that_is_still_wanted_when_it_is_back() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1))
        await stage.settle()
        stage.main.fails = True
        stage.main.lose_connection()
        stage.turn(blocks(2))
        stage.turn(blocks(3))
        stage.turn(blocks(3, 4), previous=stage.all.find(blocks(3), now()), node=OTHER)
        await asyncio.sleep(30.0)
        stage.main.fails = False
        await asyncio.sleep(1.1)
        assert sorted(stage.main.pins.values()) == [tuple(blocks(1)), tuple(blocks(2))]

    stage.play(scene)


def test_a_node_that_hangs_keeps_nobody_else_waiting_and_hears_it_later() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.main.hangs = True
        stage.turn(blocks(1))
        stage.turn(blocks(2), node=OTHER)
        await stage.settle()
        assert len(stage.other.pins) == 1
        await asyncio.sleep(20.0)
        stage.main.hangs = False
        await asyncio.sleep(5.0)
        assert list(stage.main.pins.values()) == [tuple(blocks(1))]

    stage.play(scene)


def test_a_node_that_hung_hears_of_every_pin_that_was_dropped_meanwhile() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1))
        stage.turn(blocks(2))
        await stage.settle()
        stage.main.hangs = True
        stage.turn(blocks(3))
        await asyncio.sleep(TTL + 1.0)
        assert stage.all.num_live(now()) == 0
        stage.main.hangs = False
        await asyncio.sleep(5.0)
        assert stage.main.pins == {}

    stage.play(scene)


def test_a_pin_that_could_not_be_taken_back_is_taken_back_later() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1))
        await stage.settle()
        stage.main.fails = True
        await asyncio.sleep(TTL + 1.0)
        assert stage.all.num_live(now()) == 0
        await asyncio.sleep(10.0)
        stage.main.fails = False
        await asyncio.sleep(5.0)
        assert stage.main.pins == {}

    stage.play(scene)


def test_what_a_node_never_heard_of_need_not_be_taken_back() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.main.fails = True
        for number in range(50):
            stage.turn(blocks(number))
        await asyncio.sleep(TTL + 1.0)
        assert stage.all.num_live(now()) == 0
        stage.main.fails = False
        await asyncio.sleep(5.0)
        assert len(stage.main.told) <= 1

    stage.play(scene)


def test_a_connection_that_was_lost_unnoticed_is_made_up_for_at_the_next_word() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1))
        await stage.settle()
        stage.main.lose_connection()
        stage.nodes.returns += 1
        stage.turn(blocks(2))
        await stage.settle()
        assert sorted(stage.main.pins.values()) == [tuple(blocks(1)), tuple(blocks(2))]
        told = len(stage.main.told)
        await asyncio.sleep(10.0)
        assert len(stage.main.told) == told, "once is enough"

    stage.play(scene)


def test_what_changes_twice_before_it_is_told_is_told_once() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.turn(blocks(1))
        stage.turn(blocks(1, 2), previous=stage.all.find(blocks(1), now()))
        await stage.settle()
        assert stage.main.told == ["+conversation-1"]
        assert stage.pins.num_wanted(MAIN) == 1

    stage.play(scene)
