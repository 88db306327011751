"""Who gets a request: the real pool, directory and books of lines, engines that only answer health checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from pdd.belief.beliefs import PlacementQuestion
from pdd.belief.conversations import Conversation
from pdd.belief.links import Links
from pdd.belief.worker_state import Seat
from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, OrderId, WatchId, WorkerId
from pdd.core.replication import ReplicationProgress, Watch
from pdd.core.request import Role
from pdd.core.topology import PlacementRule, PolicyTable
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.request.seats import RequestSeats, take_best
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.worker import Worker
from pdd.sim.loop import run
from pdd.sim.memory.network import MemoryNetwork
from pdd.sim.memory.node import MemoryNode
from tests.support.beliefs import beliefs_around
from tests.support.worlds import KV_FORMAT
from tests.unit.router.test_pool import SwitchedEngine

now = LoopClock().now

P, RLD, MD = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE
BLOCK_BYTES = Bytes(1_000_000)
WAN = BytesPerSecond(10e6)
"""Ten blocks a second."""


def blocks(*path: int) -> list[BlockHash]:
    return [BlockHash(repr(path[:end]).encode().rjust(32, b"-")[-32:]) for end in range(1, len(path) + 1)]


LONG = blocks(*range(100))


class Stage:
    """Workers p0, p1 (nodes of their own), r0 (p0's node), r1 (its own) in cluster A, m0, m1 in B, each 100 blocks."""

    def __init__(self, rule: PlacementRule = PlacementRule.PREFIX) -> None:
        network = MemoryNetwork(KV_FORMAT)
        self.nodes: dict[str, MemoryNode] = {
            name: network.add(NodeId(name), capacity=1000) for name in ("np0", "np1", "nr1", "nm0", "nm1")
        }
        places = {"p0": "np0", "p1": "np1", "r0": "np0", "r1": "nr1", "m0": "nm0", "m1": "nm1"}
        roles = {"p": P, "r": RLD, "m": MD}
        self.engines = {name: SwitchedEngine(name) for name in places}
        self.pool = Pool(
            [
                Worker(
                    engine=self.engines[name],
                    node=self.nodes[node],
                    role=roles[name[0]],
                    cluster="B" if name[0] == "m" else "A",
                    max_batch=4,
                )
                for name, node in places.items()
            ],
            DriverSettings(),
            LoopClock(),
        )
        self.links = Links({("A", "B"): WAN}, local_rate=BytesPerSecond(1e9), block_bytes=BLOCK_BYTES)
        self.beliefs = beliefs_around(self.pool, links=self.links, block_bytes=BLOCK_BYTES)
        self.settings = PolicyTable(placement=rule)

    def play(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await self.pool.check_all()
            async with asyncio.TaskGroup() as tasks:
                self.pool.start(tasks)
                await scene()
                self.pool.stop()

        run(main())

    def sit(
        self,
        role: Role,
        hashes: Sequence[BlockHash] = (),
        *,
        conversation: Conversation | None = None,
        near: str | None = None,
        num_blocks: int = 0,
        lost_at: frozenset[WorkerId] = frozenset(),
    ) -> Seat[Worker]:
        question = PlacementQuestion(
            role=role,
            hashes=hashes,
            num_blocks=num_blocks,
            conversation=conversation,
            lost_at=lost_at,
            source=None if near is None else self.pool.workers.worker(WorkerId(near)).site,
        )
        seat = take_best(self.beliefs, question, self.settings, now())
        assert seat is not None
        return seat

    def take(self, role: Role, hashes: Sequence[BlockHash] = (), **choices: Any) -> str:
        return self.sit(role, hashes, **choices).worker.name

    def landed(self, node: str, hashes: Sequence[BlockHash]) -> None:
        self.beliefs.prefixes.landed(NodeId(node), hashes)

    def pace(self, role: Role, **seconds: float) -> None:
        """Each worker did a hundred units of work within so long, again and again."""
        for _ in range(20):
            for name, duration in seconds.items():
                self.pool.workers.pace(role).record(
                    WorkerId(name), work=100, seconds=Seconds(duration), now=Seconds(0.0)
                )


def talk(**workers: str) -> Conversation:
    return Conversation(
        tip=LONG[-1],
        workers={Role(role): WorkerId(worker) for role, worker in workers.items()},
        main_node=None,
        num_blocks=len(LONG),
        num_pinned=0,
        last_filtered=False,
        last_turn_at=Seconds(0.0),
        pin=None,
    )


# Prefill --------------------------------------------------------------------------------------------------------------


def test_prefill_is_chosen_with_its_nodes_prefix() -> None:
    stage = Stage()

    async def scene() -> None:
        assert stage.take(P, LONG) == "p0"
        stage.landed("np1", LONG[:50])
        assert stage.sit(P, LONG).worker.name == "p1"
        assert stage.pool.workers.status(now())[3].running == 1

    stage.play(scene)


def test_a_hot_prefix_spreads_once_waiting_for_it_takes_longer_than_computing_it_again() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.landed("np0", LONG[:80])
        requests = [[*LONG[:80], *blocks(*range(80), 1000 + number)[80:]] for number in range(60)]
        chosen = [stage.take(P, request) for request in requests]
        assert chosen[:20] == ["p0"] * 20
        assert "p1" in chosen[20:45]

    stage.play(scene)


def test_blocks_ahead_count_not_requests() -> None:
    stage = Stage()

    async def scene() -> None:
        assert stage.take(P, LONG) == "p0"
        assert [stage.take(P, blocks(7)) for _ in range(10)] == ["p1"] * 10

    stage.play(scene)


def test_a_seat_given_back_takes_its_blocks_along() -> None:
    stage = Stage()

    async def scene() -> None:
        seat = stage.sit(P, LONG)
        stage.pool.workers.release(seat)
        stage.pool.workers.release(seat)
        assert [state.num_missing for state in stage.pool.workers.candidates(P)] == [0, 0]
        assert stage.take(P, blocks(7)) == "p0"

    stage.play(scene)


def test_a_slow_prefill_gets_less() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.pace(P, p0=10.0, p1=1.0)
        chosen = [stage.take(P, blocks(number, *range(20))) for number in range(22)]
        assert 1 <= chosen.count("p0") <= 3

    stage.play(scene)


def test_prefill_is_measured_by_what_it_computed_in_the_time_it_was_busy() -> None:
    stage = Stage()

    async def scene() -> None:
        first, second = stage.sit(P, LONG[:9]), stage.sit(P, LONG[:19])
        await asyncio.sleep(1.0)
        stage.pool.workers.prefilled(first, now(), whole=True)
        await asyncio.sleep(1.0)
        stage.pool.workers.prefilled(second, now(), whole=True)
        assert (first.worker.name, second.worker.name) == ("p0", "p1")
        assert stage.pool.workers.pace(P).unit_s == pytest.approx(3.0 / 30)
        assert stage.pool.workers.pace(P).slowness(WorkerId("p0"), Seconds(2.0)) == pytest.approx(1.0, abs=0.05)
        third = stage.sit(P, LONG[:39])
        await asyncio.sleep(1.0)
        stage.pool.workers.prefilled(third, now(), whole=True)
        assert stage.pool.workers.pace(P).slowness(third.worker.name, Seconds(3.0)) < 1.0

    stage.play(scene)


def test_prompts_that_are_computed_side_by_side_do_not_make_each_other_look_slow() -> None:
    stage = Stage()

    async def scene() -> None:
        seats = [stage.pool.workers.take(WorkerId("p0"), now(), num_missing=9) for _ in range(4)]
        await asyncio.sleep(4.0)
        for seat in seats:
            stage.pool.workers.prefilled(seat, now(), whole=True)
        assert stage.pool.workers.pace(P).unit_s == pytest.approx(4.0 / 40)

    stage.play(scene)


# Decode ---------------------------------------------------------------------------------------------------------------


def test_main_decode_is_chosen_by_the_time_that_the_missing_bytes_take() -> None:
    """Ninety blocks are nine seconds of this line: more than a request that runs there costs, less than a
    full batch.
    """
    stage = Stage()

    async def scene() -> None:
        stage.pace(MD, m0=4.0, m1=4.0)
        stage.landed("nm1", LONG[:90])
        assert [stage.take(MD, LONG, near="p0") for _ in range(4)] == ["m1"] * 4
        chosen = [stage.take(MD, LONG, near="p0") for _ in range(12)]
        assert "m0" in chosen, "in the end a queue is longer than the line"

    stage.play(scene)


def test_without_prefixes_main_decodes_share_the_load() -> None:
    stage = Stage()

    async def scene() -> None:
        assert [stage.take(MD, LONG, near="p0") for _ in range(6)] == ["m0", "m1"] * 3

    stage.play(scene)


def test_a_line_that_is_slow_just_now_makes_a_prefix_dearer() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.pace(MD, m0=8.0, m1=8.0)
        stage.landed("nm1", LONG[:2])
        for _ in range(2):
            stage.pool.workers.take(WorkerId("m1"), now())
        seat = stage.sit(MD, LONG, near="p0")
        assert seat.worker.name == "m0", "two blocks are a fifth of a second"
        stage.pool.workers.release(seat)
        for second in range(4):
            stage.links.record(
                stage.pool.workers.worker(WorkerId("p0")).site,
                stage.pool.workers.worker(WorkerId("m0")).site,
                ReplicationProgress(
                    order=OrderId("o"),
                    num_missing=1000,
                    num_acknowledged=second,
                    sent_bytes=Bytes(0),
                    rate=BytesPerSecond(WAN / 100),
                    backlog=Bytes(1000 * BLOCK_BYTES),
                    done=False,
                ),
                now=LoopClock().now(),
                all_there=True,
            )
            await asyncio.sleep(1.0)
        assert stage.take(MD, LONG, near="p0") == "m1", "by now they are many seconds"

    stage.play(scene)


def test_a_slow_decoder_gets_less() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.pace(MD, m0=10.0, m1=5.0)
        chosen = [stage.take(MD) for _ in range(8)]
        assert chosen[:4] == ["m1"] * 4
        assert "m0" in chosen, "but it gets some, when the others are full"

    stage.play(scene)


def test_decoders_that_a_crowd_slows_down_much_share_it_before_their_batches_are_full() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.landed("nm0", LONG[:20])
        assert [stage.take(MD, LONG[:20], near="p0") for _ in range(2)] == ["m0", "m0"]
        for beside in (0, 4):
            for name in ("m0", "m1"):
                stage.pool.workers.pace(MD).record(
                    WorkerId(name), work=100, seconds=Seconds(2.0 + 4 * beside), now=Seconds(0.0), beside=beside
                )
        assert stage.take(MD, LONG[:20], near="p0") == "m1"

    stage.play(scene)


def test_relay_decode_on_prefills_own_node_needs_no_copy() -> None:
    stage = Stage()

    async def scene() -> None:
        assert stage.take(RLD, LONG, near="p1") == "r0"
        assert stage.take(RLD, LONG, near="p1") == "r1"
        seat = stage.sit(RLD, LONG, near="p0")
        assert (seat.worker.name, seat.num_missing) == ("r0", 0)

    stage.play(scene)


def test_a_decoder_whose_node_has_no_room_is_passed_over_unless_all_are_full() -> None:
    stage = Stage()

    async def scene() -> None:
        watch = Watch(watch=WatchId("w"), hashes=(), reserve_blocks=950)
        reading = stage.nodes["nm0"].watch(watch)
        await anext(reading)
        await asyncio.sleep(1.5)
        stage.landed("nm0", LONG)
        assert stage.take(MD, LONG, near="p0", num_blocks=51) == "m1"
        assert stage.take(MD, LONG, near="p0", num_blocks=50) == "m0"
        assert stage.take(MD, LONG, near="p0", num_blocks=1001) == "m0"
        await reading.aclose()

    stage.play(scene)


def test_room_that_was_promised_since_the_books_were_read_is_taken() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.landed("nm0", LONG)
        assert stage.take(MD, LONG, near="p0", num_blocks=600) == "m0"
        second = stage.sit(MD, LONG, near="p0", num_blocks=600)
        assert second.worker.name == "m1"
        stage.pool.workers.release(second)
        assert stage.take(MD, LONG, near="p0", num_blocks=400) == "m0"
        assert stage.take(MD, LONG, near="p0", num_blocks=1000) == "m1", "what was given back is free"

    stage.play(scene)


@pytest.mark.parametrize(("role", "node", "other"), [(P, "np0", "p1"), (RLD, "np0", "r1"), (MD, "nm0", "m1")])
def test_a_worker_whose_node_does_not_answer_is_passed_over(role: Role, node: str, other: str) -> None:
    stage = Stage()

    async def scene() -> None:
        stage.nodes[node].kill()
        await asyncio.sleep(1.5)
        assert [stage.take(role, LONG) for _ in range(3)] == [other] * 3

    stage.play(scene)


@pytest.mark.parametrize("what", ["engine", "node"])
def test_a_worker_that_is_late_with_an_answer_is_passed_over_long_before_it_counts_as_down(what: str) -> None:
    stage = Stage()

    async def scene() -> None:
        stage.landed("nm0", LONG)
        if what == "engine":
            stage.engines["m0"].hangs = True
        else:
            stage.nodes["nm0"].hang()
        for wait in (2.1, 1.1):
            await asyncio.sleep(wait)  # the second time it has just been asked again
            assert len(stage.pool.workers.candidates(MD)) == 2
            seat = stage.sit(MD, LONG, near="p0", conversation=talk(main_decode="m0"))
            assert seat.worker.name == "m1"
            stage.pool.workers.release(seat)
        stage.engines["m0"].hangs = False
        stage.nodes["nm0"].resume()
        await asyncio.sleep(3.0)
        assert stage.take(MD, LONG, near="p0", conversation=talk(main_decode="m0")) == "m0"

    stage.play(scene)


def test_an_engine_whose_tokens_come_is_not_late_whatever_its_check_does() -> None:
    stage = Stage()

    async def scene() -> None:
        seat = stage.sit(MD)
        stage.engines["m0"].hangs = True
        for _ in range(21):
            await asyncio.sleep(0.4)
            assert stage.take(MD, conversation=talk(main_decode="m0")) == "m0"
            seat.lifetime.heard = True
            for taken in [s for state in stage.pool.workers.candidates(MD) for s in state.seats]:
                stage.pool.workers.release(taken)

    stage.play(scene)


# Conversations --------------------------------------------------------------------------------------------------------


def test_a_conversation_goes_back_to_its_workers_even_when_another_has_less_to_do() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.landed("np1", LONG[:99])
        stage.landed("nm1", LONG[:99])
        before = talk(prefill="p1", main_decode="m1", relay_decode="r1")
        for _ in range(2):
            assert stage.take(P, LONG, conversation=before) == "p1"
            assert stage.take(MD, LONG, conversation=before, near="p1") == "m1"
        assert stage.take(RLD, LONG, conversation=before, near="p1") == "r1"

    stage.play(scene)


def test_a_conversation_leaves_a_home_that_is_down_or_overloaded() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.landed("nm1", LONG)
        stage.pace(MD, m0=20.0, m1=20.0)
        before = talk(main_decode="m1")
        for _ in range(4):
            assert stage.take(MD, LONG, conversation=before, near="p0") == "m1"
        chosen = [stage.take(MD, LONG, conversation=before, near="p0") for _ in range(8)]
        assert "m0" in chosen
        stage.engines["m1"].up = False
        await asyncio.sleep(1.5)
        assert stage.take(MD, LONG, conversation=before, near="p0") == "m0"

    stage.play(scene)


def test_the_naive_rule_balances_whatever_is_where() -> None:
    stage = Stage(PlacementRule.LEAST_LOADED)

    async def scene() -> None:
        stage.landed("np1", LONG)
        chosen = [stage.take(P, LONG, conversation=talk(prefill="p1")) for _ in range(4)]
        assert chosen == ["p0", "p1"] * 2

    stage.play(scene)


def test_nobody_up_is_nobody_chosen() -> None:
    stage = Stage()

    async def scene() -> None:
        for engine in stage.engines.values():
            engine.up = False
        await asyncio.sleep(1.5)
        question = PlacementQuestion(role=MD, hashes=LONG, num_blocks=0)
        assert take_best(stage.beliefs, question, stage.settings, now()) is None

    stage.play(scene)


# One request's seats --------------------------------------------------------------------------------------------------


def seats_of(stage: Stage, *, num_blocks: int = 0, conversation: Conversation | None = None) -> RequestSeats:
    return RequestSeats(
        stage.beliefs, LONG, conversation, num_blocks=num_blocks, settings=stage.settings, clock=LoopClock()
    )


def name(seat: Seat | None) -> str | None:
    return None if seat is None else seat.worker.name


def test_a_request_leaves_a_worker_whose_process_is_gone_and_goes_elsewhere_after_a_loss() -> None:
    stage = Stage()

    async def scene() -> None:
        seats = seats_of(stage)
        first = seats.take(MD)
        assert first is not None
        assert seats.take(MD) is first
        stage.engines["m0"].life = 2
        await asyncio.sleep(1.5)
        second = seats.take(MD)
        assert second is not None
        assert second is not first
        seats.lose(second)
        assert name(seats.take(MD)) == ("m1" if second.worker.name == "m0" else "m0")
        seats.give_up_all()
        assert all(status.running == 0 for status in stage.pool.workers.status(now()))

    stage.play(scene)


def test_a_seat_that_was_lost_long_ago_does_not_cost_the_one_taken_since() -> None:
    stage = Stage()

    async def scene() -> None:
        seats = seats_of(stage)
        first = seats.take(MD)
        assert first is not None
        seats.lose(first)
        second = seats.take(MD)
        seats.lose(first)
        assert seats.take(MD) is second

    stage.play(scene)


def test_decoders_are_sought_near_prefill_even_after_it_has_left() -> None:
    stage = Stage()

    async def scene() -> None:
        seats = seats_of(stage)
        assert name(seats.take(P)) == "p0"
        seats.give_up(P)
        relay = seats.take(RLD)
        assert relay is not None
        assert (relay.worker.name, relay.num_missing) == ("r0", 0), "their node is the same"

    stage.play(scene)


def test_decoders_need_room_for_all_that_the_request_may_become() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.landed("nm0", LONG)
        for chosen in ("m0", "m1"):
            seats = seats_of(stage, num_blocks=501)
            seats.take(P)
            assert name(seats.take(MD)) == chosen

    stage.play(scene)


def test_a_conversations_seats_are_at_its_workers() -> None:
    stage = Stage()

    async def scene() -> None:
        seats = seats_of(stage, conversation=talk(prefill="p1", relay_decode="r1", main_decode="m1"))
        assert [name(seats.take(role)) for role in (P, RLD, MD)] == ["p1", "r1", "m1"]

    stage.play(scene)
