"""What the router believes of a link, on virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from pdd.belief.links import Links
from pdd.core.ids import NodeId, OrderId
from pdd.core.replication import ReplicationProgress
from pdd.core.request import Role, Route, SendClass
from pdd.core.units import Bytes, BytesPerSecond
from pdd.core.view import Site
from pdd.router.clock import LoopClock
from pdd.sim.loop import run
from tests.support.worlds import BLOCK_BYTES, World, WorldSpec, ask, make_request, running_world

DECLARED = BytesPerSecond(1000.0)
BLOCK = 100


P, RLD, MD = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE
SITES = {role: Site(node=NodeId(f"node-{role}"), cluster="B" if role is MD else "A") for role in Role}
now = LoopClock().now


@dataclass(kw_only=True)
class Lines:
    """A book, and orders of 20 blocks from prefill's and relay decode's nodes to main decode's."""

    declared: dict[tuple[str, str], BytesPerSecond] = field(default_factory=lambda: {("A", "B"): DECLARED})

    def __post_init__(self) -> None:
        self.book = Links(self.declared, local_rate=BytesPerSecond(1e9), block_bytes=Bytes(BLOCK))

    def record(
        self,
        rate: float | None,
        *,
        arrived: int = 0,
        backlog: float = 0,
        order: str = "o",
        source: Role = P,
        all_there: bool = False,
        sent: float = 0,
        send_class: SendClass = SendClass.NORMAL,
    ) -> None:
        progress = ReplicationProgress(
            order=OrderId(order),
            num_missing=20,
            num_acknowledged=arrived,
            sent_bytes=Bytes(int(sent)),
            rate=None if rate is None else BytesPerSecond(rate),
            backlog=Bytes(int(backlog)),
            done=arrived == 20,
        )
        self.book.record(SITES[source], SITES[MD], progress, now=now(), all_there=all_there, send_class=send_class)

    def end(self, order: str = "o", source: Role = P) -> None:
        self.book.ended(SITES[source], SITES[MD], OrderId(order), now())

    @property
    def rate(self) -> float | None:
        return self.book.view(SITES[P], SITES[MD], now()).rate

    @property
    def measured_rate(self) -> float | None:
        return self.book.view(SITES[P], SITES[MD], now()).measured_rate

    @property
    def num_orders(self) -> int:
        return self.book.view(SITES[P], SITES[MD], now()).num_orders

    @property
    def backlog(self) -> int:
        return self.book.view(SITES[P], SITES[MD], now()).backlog

    async def learn(self, rate: float) -> None:
        """Three seconds with a queue."""
        for arrived in range(1, 5):
            self.record(rate, arrived=arrived, backlog=10_000)
            await asyncio.sleep(1.0)


def test_a_lines_rate_is_the_declared_one_until_a_sender_had_a_queue_for_a_while() -> None:
    async def main() -> None:
        lines = Lines()
        assert lines.rate == DECLARED
        lines.record(None, backlog=10_000)
        assert lines.rate == DECLARED
        lines.record(300.0, arrived=1, backlog=10_000)
        assert lines.rate == DECLARED
        await asyncio.sleep(2.5)
        lines.record(300.0, arrived=2, backlog=10_000)
        assert lines.rate == 300.0

    run(main())


def test_a_trickle_says_nothing_about_how_fast_a_line_is() -> None:
    async def main() -> None:
        lines = Lines()
        for arrived in range(5):
            lines.record(10.0, arrived=arrived, backlog=1)
            await asyncio.sleep(1.0)
        assert lines.rate == DECLARED

    run(main())


def test_a_measured_rate_holds_while_its_orders_stand_however_rare_the_reports() -> None:
    async def main() -> None:
        lines = Lines()
        lines.record(10.0, arrived=1, backlog=10_000)
        await asyncio.sleep(60.0)
        assert lines.rate == 10.0
        assert lines.backlog == 10_000

    run(main())


def test_a_measured_rate_is_half_forgotten_after_half_a_minute_and_nearly_after_minutes() -> None:
    async def main() -> None:
        lines = Lines()
        await lines.learn(10.0)
        lines.end()
        await asyncio.sleep(29.0)  # learned a second ago
        assert lines.rate == pytest.approx(100.0), "a hundredth of the declared rate is a tenth now"
        await asyncio.sleep(30.0)
        assert lines.rate == pytest.approx(1000.0 * 0.1**0.5)
        await asyncio.sleep(600.0)
        assert lines.rate == pytest.approx(DECLARED, rel=0.01)

    run(main())


def test_a_line_that_was_faster_than_declared_drifts_back_too() -> None:
    async def main() -> None:
        lines = Lines()
        await lines.learn(4000.0)
        assert lines.rate == 4000.0
        lines.end()
        await asyncio.sleep(29.0)
        assert lines.rate == pytest.approx(2000.0)

    run(main())


def test_a_line_that_delivers_more_than_is_believed_is_believed_at_once() -> None:
    async def main() -> None:
        lines = Lines()
        await lines.learn(10.0)
        lines.end()
        lines.record(500.0, order="p", arrived=1, backlog=0)
        assert lines.rate == 500.0
        lines.end("p")
        assert lines.rate == pytest.approx(500.0)
        lines.record(5000.0, order="q", arrived=1, backlog=0)
        assert lines.rate == DECLARED, "without a queue that is no measurement: at most what was declared"

    run(main())


def test_a_block_that_does_not_arrive_bounds_the_rate_from_above() -> None:
    async def main() -> None:
        lines = Lines()
        lines.record(None, backlog=10_000, all_there=True)
        assert lines.rate == DECLARED
        await asyncio.sleep(4.0)
        assert lines.rate == BLOCK / 4.0
        assert lines.measured_rate == DECLARED
        lines.record(None, backlog=10_000, all_there=True)
        assert lines.rate == BLOCK / 4.0, "a report without an arrival changes nothing"
        lines.record(None, arrived=1, backlog=9_900, all_there=True)
        assert lines.rate == BLOCK / 4.0, "what took so long to arrive says how fast the line is"
        await asyncio.sleep(6.0)
        assert lines.rate == pytest.approx(BLOCK / 6.0)

    run(main())


def test_the_bound_counts_from_the_last_arrival_on_the_line_and_once_for_each_sender() -> None:
    async def main() -> None:
        lines = Lines()
        lines.record(None, backlog=2000, all_there=True)
        await asyncio.sleep(3.0)
        lines.record(None, order="r", source=RLD, backlog=2000, all_there=True)
        await asyncio.sleep(1.0)
        assert lines.rate == 2 * BLOCK / 4.0
        lines.record(None, order="r", source=RLD, arrived=1, backlog=1900, all_there=True)
        await asyncio.sleep(2.0)
        assert lines.rate == pytest.approx(2 * BLOCK / 4.0 * (1000.0 / 50.0) ** (1 - 0.5 ** (2.0 / 30.0)), rel=0.01)
        await asyncio.sleep(6.0)
        assert lines.rate == 2 * BLOCK / 8.0

    run(main())


def test_silence_says_nothing_while_blocks_are_still_computed_or_the_target_has_no_room() -> None:
    async def main() -> None:
        lines = Lines()
        lines.record(None, backlog=2000)
        await asyncio.sleep(10.0)
        assert lines.rate == DECLARED
        lines.record(None, backlog=2000, all_there=True)
        await asyncio.sleep(0.5)
        assert lines.rate == DECLARED
        await asyncio.sleep(1.5)
        assert lines.rate == BLOCK / 2.0
        lines.end()
        assert lines.rate == DECLARED

    run(main())


def test_the_backlog_of_a_line_is_that_of_all_its_senders_as_long_as_orders_stand() -> None:
    async def main() -> None:
        lines = Lines()
        lines.record(300.0, backlog=10_000)
        lines.record(None, order="r", source=RLD, backlog=500)
        assert lines.backlog == 10_500
        lines.end()
        lines.end("unknown")
        assert lines.backlog == 500
        lines.end("r", RLD)
        lines.end("r", RLD)
        assert lines.backlog == 0

    run(main())


def test_nodes_of_one_cluster_are_joined_by_a_fast_line() -> None:
    async def main() -> None:
        lines = Lines()
        assert lines.book.view(SITES[P], SITES[RLD], now()).rate == 1e9

    run(main())


def test_a_line_of_which_nothing_is_declared_is_as_fast_as_last_measured() -> None:
    async def main() -> None:
        lines = Lines(declared={})
        lines.record(None, backlog=2000, all_there=True)
        await asyncio.sleep(5.0)
        assert lines.rate is None
        lines.record(40.0, arrived=1, backlog=0)
        lines.end()
        await asyncio.sleep(100.0)
        assert lines.rate == BLOCK / 5.0

    run(main())


def test_orders_count_while_something_of_them_has_yet_to_arrive_unless_they_are_sent_in_the_background() -> None:
    async def main() -> None:
        lines = Lines()
        lines.record(None, order="one")
        lines.record(None, order="two", source=RLD)
        lines.record(None, order="spare", send_class=SendClass.BACKGROUND)
        assert lines.num_orders == 2
        lines.record(100.0, order="one", arrived=20)
        assert lines.num_orders == 1
        lines.record(100.0, order="two", source=RLD, arrived=3, send_class=SendClass.BACKGROUND)
        assert lines.num_orders == 0
        for order, source in (("one", P), ("two", RLD), ("spare", P)):
            lines.end(order, source)
        assert lines.num_orders == 0

    run(main())


def test_an_order_that_was_never_heard_of_may_end_too() -> None:
    async def main() -> None:
        lines = Lines()
        lines.end("unknown")
        lines.record(None, order="one")
        lines.end("unknown", RLD)
        lines.end("unknown")
        assert lines.num_orders == 1

    run(main())


def test_each_link_between_two_clusters_is_read_whether_it_was_declared_or_seen() -> None:
    async def main() -> None:
        lines = Lines(declared={("C", "D"): DECLARED})
        lines.record(None, backlog=500)
        lines.record(None, backlog=300, source=RLD, order="two")
        lines.book.record(SITES[P], SITES[RLD], progress_within_a_cluster(), now=now(), all_there=False)
        seen, declared = lines.book.readings(now())
        assert (seen.source, seen.target, seen.rate) == ("A", "B", None)
        assert seen.backlog == {SendClass.NORMAL: 800, SendClass.BACKGROUND: 0}
        assert (declared.source, declared.target, declared.rate) == ("C", "D", DECLARED)
        assert declared.backlog == {SendClass.NORMAL: 0, SendClass.BACKGROUND: 0}

    run(main())


def progress_within_a_cluster() -> ReplicationProgress:
    return ReplicationProgress(
        order=OrderId("local"),
        num_missing=1,
        num_acknowledged=0,
        sent_bytes=Bytes(0),
        rate=None,
        backlog=Bytes(BLOCK),
        done=False,
    )


def test_a_young_transfer_shows_how_fast_a_line_is_at_least() -> None:
    async def main() -> None:
        lines = Lines()
        await lines.learn(20.0)
        lines.end()
        lines.record(20.0, order="young")
        await asyncio.sleep(1.0)
        lines.record(20.0, order="young", arrived=5, sent=5 * BLOCK)
        assert lines.rate == pytest.approx(500.0)

    run(main())


@pytest.mark.parametrize(("age", "sent"), [(2.5, 5 * BLOCK), (1.0, 0)])
def test_an_old_transfer_or_what_others_sent_shows_nothing(age: float, sent: float) -> None:
    async def main() -> None:
        lines = Lines()
        await lines.learn(20.0)
        lines.end()
        lines.record(20.0, order="young")
        await asyncio.sleep(age)
        lines.record(20.0, order="young", arrived=5, sent=sent)
        assert lines.rate is not None
        assert lines.rate < 40.0

    run(main())


def test_silence_of_the_background_counts_only_while_it_has_the_line_to_itself() -> None:
    async def main() -> None:
        for backlog, rate in ((0, BLOCK / 4.0), (20 * BLOCK, BLOCK / 4.0), (21 * BLOCK, DECLARED)):
            lines = Lines()
            lines.record(None, backlog=backlog, all_there=True, send_class=SendClass.BACKGROUND)
            await asyncio.sleep(4.0)
            assert lines.rate == rate

    run(main())


# In a whole world -----------------------------------------------------------------------------------------------------


def set_rate(world: World, blocks_per_s: float) -> None:
    world.line.rate = BytesPerSecond(blocks_per_s * BLOCK_BYTES)


async def route_of(world: World, number: int) -> Route | None:
    """Of a request with six blocks that goes on for a little."""
    outcome = await ask(world, make_request(number, max_tokens=5))
    return outcome.report.route


def test_a_line_slowed_to_seconds_a_block_is_learned_and_one_sped_up_again_is_too() -> None:
    async def main() -> None:
        async with running_world(WorldSpec(blocks_per_s=1000.0)) as world:
            assert await route_of(world, 0) is Route.DIRECT
            set_rate(world, 1 / 7)
            first = await ask(world, make_request(1, max_tokens=5))
            assert first.report.route is Route.RELAY, "nobody knew, so it waited a little"
            for number in range(2, 5):
                outcome = await ask(world, make_request(number, max_tokens=5))
                chosen = next(event for event in outcome.report.events if event.name == "route_chosen")
                assert chosen.fields["route"] is Route.RELAY, "the one before had shown it"
                await asyncio.sleep(7.0)
            await world.settle()
            assert await route_of(world, 5) is Route.RELAY, "still known when nothing is under way"
            await world.settle()
            set_rate(world, 1000.0)
            assert await route_of(world, 6) is Route.RELAY, "nobody knows yet"
            await world.settle()
            assert await route_of(world, 7) is Route.DIRECT, "its blocks had shown it"
            await world.settle()

    run(main())


def test_a_line_nobody_used_since_it_was_slow_is_tried_again_after_a_while() -> None:
    async def main() -> None:
        async with running_world(replace(WorldSpec(), blocks_per_s=30.0)) as world:
            set_rate(world, 1 / 3)
            await ask(world, make_request(0, max_tokens=5))
            await world.settle()
            set_rate(world, 30.0)
            assert await route_of(world, 0) is Route.DIRECT, "all is there"
            await asyncio.sleep(120.0)
            assert await route_of(world, 1) is Route.DIRECT

    run(main())
