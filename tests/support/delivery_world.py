"""A model of everything around some deliveries to one node: its queue, the nodes, a clock, their owner, and bad
weather.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from pdd.core.errors import BlocksLost, CapacityExhausted, Incompatible, NodeFailed, PddError
from pdd.core.ids import NodeInstance, OrderId, WatchId
from pdd.core.replication import Readiness, ReplicationProgress
from pdd.core.request import SendClass
from pdd.core.units import Bytes, Seconds
from pdd.protocol import delivery_messages as dm
from pdd.protocol.capacity_queue import Turn
from pdd.protocol.delivery_messages import DeliveryState, Timer
from tests.support.delivery_play import LIMITS, make_spec, owing
from tests.support.delivery_referee import Referee, demand

NO_CAPACITY = CapacityExhausted("full", retry_after_s=Seconds(1.0))
MAX_STEPS = 4000


@dataclass(frozen=True, kw_only=True)
class Weather:
    """Chances per step."""

    full: float = 0.0
    away: float = 0.0
    fatal: float = 0.0
    restarts: float = 0.0
    hostile: float = 0.0
    leaving: float = 0.0
    detaching: float = 0.0
    demoting: float = 0.02
    crashing: float = 0.0
    num_steps: int = 150
    """So long the weather lasts; then all is well, or everybody leaves."""


@dataclass
class Order:
    """At its source. ``missing`` None: the target has not said yet."""

    missing: int | None = None
    acknowledged: int = 0
    begun: bool = False
    standing: bool = True


class Hands:
    """One delivery, and what it holds."""

    def __init__(self, world: World, number: int, **spec: Any) -> None:
        self.world = world
        self.referee = Referee(world.m, make_spec(name=f"d{number}", **spec), LIMITS)
        self.num_blocks = len(self.referee.spec.hashes)
        self.arrived = 0
        self.watch_ready: int | None = None
        self.orders: dict[OrderId, Order] = {}
        self.history: list[dm.Event] = []

    @property
    def is_over(self) -> bool:
        return self.referee.over or self.referee.crashed

    def take(self, event: dm.Event) -> None:
        self.history = [*self.history[-20:], event]
        for command in self.referee.receive(event):
            self.carry_out(command)
        if self.is_over:
            self.world.call(self.world.queue.leave(self))
            self.world.call(self.world.queue.release())

    def tell(self, event: type[Any], **fields: Any) -> None:
        self.take(event(at=self.world.now, **fields))

    def carry_out(self, command: dm.Command) -> None:
        queue = self.world.queue
        match command:
            case dm.AskTurn():
                turn = queue.turn(self)
                demand(len(queue) > 0 or turn is Turn.OPEN, "nobody waits behind nobody")
                self.world.later.insert(0, lambda: self.tell(dm.TurnTold, turn=turn))  # at once
            case dm.JoinQueue():
                queue.join(self)
            case dm.LeaveQueue():
                self.world.call(queue.leave(self))
            case dm.OpenWatch():
                self.watch_ready = None
            case dm.PlaceOrder():
                self.orders[command.order.order] = Order()
            case dm.CancelOrder():
                self.orders[command.order].standing = False
            case _:
                pass

    # What may happen --------------------------------------------------------------------------------------------------

    def happenings(self) -> list[Callable[[], None]]:
        referee = self.referee
        if self.is_over:
            return []
        found: list[Callable[[], None]] = []
        if referee.watch is not None:
            found.append(self.close if referee.closing_watch else self.watch_says)
        for order, state in self.orders.items():
            found.append(lambda order=order, state=state: self.order_says(order, state))
        if referee.checks_source:
            found.append(self.source_answers)
        now = self.world.now
        found += [lambda timer=timer: self.fire(timer) for timer, due in referee.timers.items() if due <= now + 1e-9]
        if not referee.prefilled and referee.begun:
            found.append(lambda: self.tell(dm.PrefillDone))
        return found

    def close(self) -> None:
        assert self.referee.watch is not None
        self.tell(dm.WatchEnded, watch=self.referee.watch)

    def watch_says(self) -> None:
        watch, weather = self.referee.watch, self.world.weather
        assert watch is not None
        if self.world.chance(weather.away):
            self.arrived = 0 if self.world.chance(0.5) else self.arrived
            self.tell(dm.WatchFailed, watch=watch, error=self.world.trouble())
        elif self.watch_ready is None and self.world.chance(weather.full):
            self.arrived = 0  # evicted: nobody keeps them
            self.tell(dm.WatchFailed, watch=watch, error=NO_CAPACITY)
        elif self.watch_ready != self.arrived:
            self.watch_ready = self.arrived
            self.tell(dm.WatchReported, readiness=Readiness(watch=watch, num_ready=self.arrived))

    def order_says(self, name: OrderId, order: Order) -> None:
        if not order.begun:
            order.begun = True
            self.tell(dm.OrderBegun, instance=self.world.instance)
        elif not order.standing:
            del self.orders[name]
            self.tell(dm.OrderEnded, order=name)
        elif self.world.chance(self.world.weather.away):
            order.standing = False
            self.tell(dm.OrderFailed, order=name, error=self.world.trouble())
        else:
            self.advance(name, order)

    def advance(self, name: OrderId, order: Order) -> None:
        if order.missing is None:
            order.missing = self.num_blocks - self.arrived
        elif order.acknowledged < order.missing and self.referee.prefilled:
            order.acknowledged += 1
            self.arrived = min(self.num_blocks, self.arrived + 1)
        done = order.acknowledged >= order.missing
        order.standing = not done
        self.tell(
            dm.OrderProgressed,
            progress=ReplicationProgress(
                order=name,
                num_missing=order.missing,
                num_acknowledged=order.acknowledged,
                sent_bytes=Bytes(order.acknowledged * 10),
                rate=None,
                backlog=Bytes(0),
                done=done,
            ),
        )

    def source_answers(self) -> None:
        self.tell(dm.SourceChecked, instance=None if self.world.chance(0.2) else self.world.instance)

    def fire(self, timer: Timer) -> None:
        if timer is Timer.STANDSTILL:
            moved = self.world.now if self.world.random.random() < 0.5 else Seconds(0.0)
            self.tell(dm.StandstillDue, link=owing(normal=5), link_moved_at=moved, source_is_late=False)
        else:
            self.tell(dm.TimerFired, timer=timer)

    def hostile(self) -> None:
        """Late, foreign, doubled or contradictory: none of it may break a rule."""
        random, now = self.world.random, self.world.now
        watch = WatchId(random.choice(["x.1", "d9.2", f"{self.referee.spec.name}.99"]))
        order = OrderId(random.choice(["x.1", "d9.2", f"{self.referee.spec.name}.99"]))
        error = random.choice([NO_CAPACITY, NodeFailed("away"), Incompatible("format")])
        events: list[dm.Event] = [
            dm.Begun(at=now, turn=random.choice([Turn.OPEN, Turn.BEHIND])),
            dm.TurnChanged(at=now),
            dm.WatchReported(at=now, readiness=Readiness(watch=watch, num_ready=random.choice([0, 99]))),
            dm.WatchFailed(at=now, watch=watch, error=error),
            dm.WatchEnded(at=now, watch=watch),
            dm.OrderFailed(at=now, order=order, error=error),
            dm.OrderEnded(at=now, order=order),
            dm.PrefillDone(at=now),
            dm.Demoted(at=now),
        ]
        if not self.referee.checks_source:
            events.append(dm.SourceChecked(at=now, instance=NodeInstance("foreign")))
        events += [dm.TimerFired(at=now, timer=timer) for timer in Timer if timer not in self.referee.timers]
        late = [event for event in self.history if isinstance(event, dm.WatchEnded | dm.OrderEnded | dm.OrderFailed)]
        repeated = [type(event)(**{**fields_of(event), "at": now}) for event in late]
        event = random.choice([*events, *repeated])
        if isinstance(event, dm.Begun) and self.referee.delivery.phase == "New":
            return
        if isinstance(event, dm.TurnChanged) and self.referee.asks_turn:
            return
        self.take(event)


def fields_of(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for kind in type(event).__mro__ for name in getattr(kind, "__slots__", ())}


class World:
    """Deliveries to one node from another, or within it."""

    def __init__(self, m: Any, random: Random, weather: Weather, *, num_deliveries: int = 1, **spec: Any) -> None:
        self.m = m
        self.random = random
        self.weather = weather
        self.now = Seconds(0.0)
        self.num_lives = 1
        self.later: list[Callable[[], None]] = []
        self.queue: Any = m.CapacityQueue()
        fields = {"send_class": random.choice([SendClass.NORMAL, SendClass.NORMAL, SendClass.BACKGROUND])} | spec
        self.hands = [Hands(self, number, **fields) for number in range(num_deliveries)]

    @property
    def instance(self) -> NodeInstance:
        return NodeInstance(f"life {self.num_lives}")

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def trouble(self) -> PddError:
        if self.chance(self.weather.fatal):
            return self.random.choice([Incompatible("format"), BlocksLost("evicted")])
        return NodeFailed("away")

    def call(self, waiter: Hands | None) -> None:
        if waiter is not None:
            self.later.append(lambda: waiter.tell(dm.TurnChanged))

    def run(self) -> None:
        """Until nothing is held any more."""
        for hands in self.hands:
            self.begin(hands)
        for _ in range(self.weather.num_steps):
            self.step()
        self.weather = Weather(demoting=0.0)
        for _ in range(MAX_STEPS):
            if all(each.referee.delivery.settled or each.referee.delivery.released for each in self.hands):
                break
            self.step()
        demand(
            all(h.referee.delivery.settled or h.referee.delivery.released for h in self.hands), "all settle some day"
        )
        for hands in self.hands:
            if not hands.is_over:
                hands.tell(self.random.choice([dm.Released, dm.Detached]))
        for _ in range(MAX_STEPS):
            self.step()
            if all(each.is_over for each in self.hands):
                break
        demand(all(each.is_over for each in self.hands), "all end some day")
        demand(len(self.queue) == 0, "nobody is left in the queue")

    def begin(self, hands: Hands) -> None:
        if self.chance(self.weather.leaving):
            hands.tell(dm.Released)
        else:
            hands.tell(dm.Begun, turn=self.queue.turn(hands))

    def step(self) -> None:
        while self.later:
            self.later.pop(0)()
        for hands in self.hands:
            self.bad_weather(hands)
            if self.later:
                return
        self.num_lives += self.chance(self.weather.restarts)
        happenings = [each for hands in self.hands for each in hands.happenings()]
        if not happenings or self.chance(0.3):
            self.now = Seconds(self.now + self.random.choice([0.01, 0.1, 0.25]))
        if happenings:
            self.random.choice(happenings)()

    def bad_weather(self, hands: Hands) -> None:
        weather = self.weather
        if hands.is_over:
            if self.chance(weather.hostile / 10):
                hands.hostile()
            return
        if self.chance(weather.hostile):
            hands.hostile()
        elif self.chance(weather.leaving / 10):
            hands.tell(dm.Released)
        elif self.chance(weather.detaching / 10):
            hands.tell(dm.Detached)
        elif self.chance(weather.demoting / 10):
            hands.tell(dm.Demoted)
        elif self.chance(weather.crashing / 10):
            hands.tell(dm.Crashed)

    @property
    def states(self) -> list[DeliveryState]:
        return [hands.referee.delivery.state for hands in self.hands]
