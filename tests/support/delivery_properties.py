"""What holds for deliveries in any weather: each property plays some at random and raises if a rule is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from pdd.core.ids import NodeId
from pdd.core.request import SendClass
from pdd.protocol.delivery_messages import DeliveryState
from tests.support.delivery_referee import demand
from tests.support.delivery_world import Weather, World

Property = Callable[[Any, Random], None]


def in_fair_weather_all_arrive(m: Any, random: Random) -> None:
    world = World(m, random, Weather(), num_deliveries=3)
    world.run()
    demand(all(state is DeliveryState.READY for state in world.states), "all are ready")


def some_are_ready_before_all_blocks_are(m: Any, random: Random) -> None:
    world = World(m, random, Weather(away=0.02), goal=random.choice([1, 2]))
    world.run()


def within_a_node_nothing_is_sent(m: Any, random: Random) -> None:
    world = World(m, random, Weather(full=0.3, away=0.05, hostile=0.2), target=NodeId("s"), num_deliveries=2)
    for hands in world.hands:
        hands.arrived = hands.num_blocks
    world.run()
    demand(all(not hands.orders for hands in world.hands), "no order was placed")


def a_full_node_is_waited_for(m: Any, random: Random) -> None:
    World(m, random, Weather(full=0.6, num_steps=300), num_deliveries=3, send_class=SendClass.NORMAL).run()


def a_target_that_is_full_and_away_by_turns(m: Any, random: Random) -> None:
    World(m, random, Weather(full=0.4, away=0.3, detaching=0.05), num_deliveries=3).run()


def nodes_that_come_and_go(m: Any, random: Random) -> None:
    World(m, random, Weather(away=random.choice([0.1, 0.6, 0.95]), restarts=0.01, num_steps=400)).run()


def what_cannot_be_helped_ends_it(m: Any, random: Random) -> None:
    World(m, random, Weather(away=0.2, fatal=0.5, full=0.2), num_deliveries=2).run()


def hostile_events_change_nothing(m: Any, random: Random) -> None:
    world = World(m, random, Weather(hostile=0.6), num_deliveries=2)
    world.run()
    demand(DeliveryState.FAILED not in world.states, "all are ready")


def hostile_events_and_losses_together(m: Any, random: Random) -> None:
    World(m, random, Weather(hostile=0.4, away=0.2, full=0.3, fatal=0.1, restarts=0.02), num_deliveries=3).run()


def whoever_leaves_at_any_moment_leaves_nothing(m: Any, random: Random) -> None:
    weather = Weather(leaving=0.3, detaching=0.3, full=0.3, away=0.1, hostile=0.2, demoting=0.3)
    World(m, random, weather, num_deliveries=3).run()


def hands_that_fail_leave_no_delivery_behind(m: Any, random: Random) -> None:
    World(m, random, Weather(crashing=0.3, full=0.3, away=0.1, hostile=0.2, detaching=0.1), num_deliveries=3).run()


PROPERTIES: tuple[Property, ...] = (
    in_fair_weather_all_arrive,
    some_are_ready_before_all_blocks_are,
    within_a_node_nothing_is_sent,
    a_full_node_is_waited_for,
    a_target_that_is_full_and_away_by_turns,
    nodes_that_come_and_go,
    what_cannot_be_helped_ends_it,
    hostile_events_change_nothing,
    hostile_events_and_losses_together,
    whoever_leaves_at_any_moment_leaves_nothing,
    hands_that_fail_leave_no_delivery_behind,
)
