"""Transfers at a full node, and the hands that carry them out: streams, timers and the queue, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, WorkerId
from pdd.core.replication import Readiness, Watch
from pdd.core.request import Role, Route
from pdd.protocol.delivery_messages import DeliveryState
from pdd.router.base import Steering
from pdd.router.driver.transfers.spec import TransferSpec
from pdd.router.driver.transfers.transfer import Transfer
from pdd.sim.loop import run
from tests.support.worlds import World, WorldSpec, ask, make_request, running_world

P, MD = Role.PREFILL, Role.MAIN_DECODE
DELAY_S = 0.005
SMALL = WorldSpec(main_capacity=20, line_delay=DELAY_S)
"""Main decode's node holds 20 blocks."""


@dataclass(slots=True)
class Listener:
    """Writes down what it is told, and when."""

    told: list[tuple[float, DeliveryState]] = field(default_factory=list)

    def on_change(self, transfer: Transfer) -> None:
        self.told.append((asyncio.get_running_loop().time(), transfer.delivery.state))

    def on_informed(self, transfer: Transfer) -> None:
        pass

    @property
    def states(self) -> list[DeliveryState]:
        return [state for _, state in self.told]


def place(world: World, name: str, *, reserve: int, listener: Listener | None = None) -> Transfer:
    """Of one block that prefill never computes."""
    worker = world.driver.beliefs.workers.worker
    spec = TransferSpec(
        name=name,
        attempt=1,
        role=MD,
        source=worker(WorkerId("prefill-0")),
        target=worker(WorkerId("main_decode-0")),
        hashes=(BlockHash(name.encode().ljust(32)[:32]),),
        reserve_blocks=reserve,
    )
    return world.driver._desk.place(spec, listener or Listener())


async def release_all(world: World, *transfers: Transfer) -> None:
    for transfer in transfers:
        transfer.release()
    for transfer in transfers:
        await transfer.ended()
    await world.check_idle()


def moving(transfers: list[Transfer]) -> list[str]:
    return [transfer.spec.name for transfer in transfers if transfer.delivery.state is DeliveryState.MOVING]


def note_watches(world: World) -> list[tuple[float, str]]:
    """Who asks main decode's node, and when."""
    asked: list[tuple[float, str]] = []
    node = world.nodes[MD]
    watch = node.watch

    def noting(wanted: Watch) -> AsyncGenerator[Readiness]:
        asked.append((asyncio.get_running_loop().time(), wanted.watch.partition(".")[0]))
        return watch(wanted)

    node.watch = noting
    return asked


# The queue ------------------------------------------------------------------------------------------------------------


def test_while_there_is_room_nobody_waits_for_anybody() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            transfers = [place(world, str(number), reserve=2) for number in range(10)]
            await asyncio.sleep(2 * DELAY_S + 0.001)
            assert len(moving(transfers)) == 10
            await release_all(world, *transfers)

    run(main())


def test_many_who_wait_ask_no_more_often_than_one() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            holder = place(world, "holder", reserve=15)
            await asyncio.sleep(0.1)
            asked = note_watches(world)
            waiting = [place(world, "first", reserve=10)]
            await asyncio.sleep(0.1)
            waiting += [place(world, f"other {number}", reserve=10) for number in range(100)]
            await asyncio.sleep(10)
            assert {name for _, name in asked} == {"first"}
            assert 30 <= len(asked) <= 40
            await release_all(world, *waiting, holder)

    run(main())


def test_what_is_let_go_is_asked_for_in_order() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            holders = [place(world, "a holder", reserve=12), place(world, "another holder", reserve=8)]
            waiting: list[Transfer] = []
            for number in range(5):
                await asyncio.sleep(0.1)
                waiting.append(place(world, str(number), reserve=4))
            await asyncio.sleep(0.1)
            holders[0].release()
            await asyncio.sleep(0.2)
            assert moving(waiting) == ["0", "1", "2"]
            holders[1].release()
            await asyncio.sleep(0.2)
            assert moving(waiting) == ["0", "1", "2", "3", "4"]
            await release_all(world, *waiting, *holders)

    run(main())


def test_a_large_reservation_is_not_passed_by_small_ones() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            holders = [place(world, f"holder {number}", reserve=5) for number in range(4)]
            await asyncio.sleep(0.1)
            waiting = [place(world, "large", reserve=15)]
            await asyncio.sleep(0.1)
            waiting += [place(world, f"small {number}", reserve=2) for number in range(2)]
            for holder in holders[:3]:
                assert moving(waiting) == []
                holder.release()
                await asyncio.sleep(1)
            assert moving(waiting) == ["large"]
            holders[3].release()
            await asyncio.sleep(1)
            assert moving(waiting) == ["large", "small 0", "small 1"]
            await release_all(world, *waiting, *holders)

    run(main())


def test_who_gets_capacity_lets_the_next_one_ask_at_once() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            holder = place(world, "holder", reserve=15)
            await asyncio.sleep(0.1)
            waiting = [place(world, name, reserve=6) for name in ("one", "two", "three")]
            await asyncio.sleep(0.3)
            holder.release()
            await asyncio.sleep(0.2)
            assert moving(waiting) == ["one", "two", "three"]
            await release_all(world, *waiting, holder)

    run(main())


def test_who_gives_up_lets_the_next_one_ask() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            holder = place(world, "holder", reserve=15)
            await asyncio.sleep(0.1)
            large = place(world, "large", reserve=10)
            await asyncio.sleep(0.1)
            small = place(world, "small", reserve=5)
            await asyncio.sleep(0.3)
            assert moving([large, small]) == []
            large.release()
            await asyncio.sleep(0.1)
            assert moving([large, small]) == ["small"]
            await release_all(world, small, large, holder)

    run(main())


def test_who_gives_up_while_it_asks_lets_the_next_one_ask() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            holder = place(world, "holder", reserve=15)
            await asyncio.sleep(0.1)
            asked = note_watches(world)
            waiting = [place(world, "one", reserve=10)]
            await asyncio.sleep(0.1)
            waiting.append(place(world, "two", reserve=10))
            while len(asked) < 2:  # noqa: ASYNC110 - on virtual time asking again costs nothing
                await asyncio.sleep(0.001)
            assert [name for _, name in asked] == ["one", "one"]
            waiting[0].release()
            holder.release()
            await asyncio.sleep(0.2)
            assert moving(waiting) == ["two"]
            await release_all(world, *waiting, holder)

    run(main())


def test_what_ends_at_a_full_node_lets_the_first_one_ask_at_once() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            holder = place(world, "holder", reserve=15)
            await asyncio.sleep(0.1)
            waiting = place(world, "one", reserve=10)
            asked = note_watches(world)
            await asyncio.sleep(0.3)
            before = len(asked)
            holder.release()
            await asyncio.sleep(4 * DELAY_S)
            assert len(asked) == before + 1
            await release_all(world, waiting, holder)

    run(main())


# The hands ------------------------------------------------------------------------------------------------------------


def test_one_that_is_released_before_it_ran_ends() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world, asyncio.timeout(1.0):
            transfer = place(world, "one", reserve=5)
            await release_all(world, transfer)

    run(main())


def test_a_transfer_that_crashes_has_failed_and_holds_nothing() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            heard = Listener()

            async def crash(_: Watch) -> AsyncGenerator[Readiness]:
                await asyncio.sleep(0.1)
                raise RuntimeError("this is a defect")
                yield

            world.nodes[MD].watch = crash
            transfer = place(world, "one", reserve=5, listener=heard)
            async with asyncio.timeout(1.0):
                await transfer.ended()
            assert heard.states == [DeliveryState.FAILED]
            await world.check_idle()

    run(main())


def test_what_has_ended_owes_the_link_nothing() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            transfer = place(world, "one", reserve=5)
            await asyncio.sleep(0.1)

            def num_orders() -> int:
                return world.driver.beliefs.links.view(
                    *transfer.spec.ends, asyncio.get_running_loop().time()
                ).num_orders

            assert num_orders() == 1
            await release_all(world, transfer)
            assert num_orders() == 0

    run(main())


def test_the_end_does_not_wait_for_timers() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            transfer = place(world, "one", reserve=5)
            transfer.prefill_done()
            await asyncio.sleep(0.5)
            async with asyncio.timeout(0.1):
                transfer.release()
                await transfer.ended()

    run(main())


def test_a_standstill_ends_it_and_is_told() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            heard = Listener()
            transfer = place(world, "one", reserve=5, listener=heard)
            transfer.prefill_done()
            await transfer.ended()
            assert heard.states == [DeliveryState.MOVING, DeliveryState.FAILED]
            assert 3.0 <= asyncio.get_running_loop().time() < 3.5
            await world.check_idle()

    run(main())


def test_a_source_that_restarted_ends_it() -> None:
    async def main() -> None:
        async with running_world(SMALL) as world:
            heard = Listener()
            transfer = place(world, "one", reserve=5, listener=heard)
            await asyncio.sleep(0.5)
            world.nodes[P].kill()
            world.nodes[P].restart()
            async with asyncio.timeout(1.0):
                await transfer.ended()
            assert heard.states == [DeliveryState.MOVING, DeliveryState.FAILED]
            assert "restarted" in str(transfer.delivery.error)

    run(main())


def test_what_arrives_after_its_request_is_known() -> None:
    async def main() -> None:
        async with running_world(replace(WorldSpec(), blocks_per_s=2.0)) as world:
            request = make_request(1, prompt_tokens=160, max_tokens=5, steering=Steering(route=Route.RELAY))
            _ = await ask(world, request)
            (transfer,) = world.driver._desk._running
            hashes, prefixes = transfer.spec.hashes, world.driver.beliefs.prefixes
            assert prefixes.prefix_at(NodeId("node-md"), hashes) < len(hashes)
            await world.settle()
            assert prefixes.prefix_at(NodeId("node-md"), hashes) == len(hashes)
            await world.check_idle()

    run(main())
