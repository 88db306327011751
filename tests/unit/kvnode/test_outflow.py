"""What a node owes a target, on whatever line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, NodeInstance
from pdd.core.request import SendClass
from pdd.core.units import Bytes
from pdd.index.blocks import Owner
from pdd.kvnode.outflow import Outflow
from pdd.kvnode.store import NodeStore
from pdd.protocol.orders import OrderFailure, OrderKey, Standing
from pdd.protocol.peer import ErrorKind, FromSource, Offer, OfferAnswer, Stored
from pdd.sim.loop import run
from tests.support.worlds import BLOCK_BYTES, KV_FORMAT

ENGINE = Owner("engine")


def chain(num_blocks: int) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(n.to_bytes(32, "big")) for n in range(num_blocks))


@dataclass(slots=True)
class Recorder:
    """Places an order and remembers what it was told."""

    standings: list[Standing] = field(default_factory=list[Standing])
    end: tuple[Standing, OrderFailure | None] | None = None

    def changed(self, standing: Standing) -> None:
        self.standings.append(standing)

    def ended(self, standing: Standing, failure: OrderFailure | None) -> None:
        self.end = (standing, failure)


class Line:
    """An outflow, the clock in hand, and what it said to its target."""

    def __init__(self, *, capacity: int = 16, target_capacity: int = 16) -> None:
        self.now = 0.0
        self.num_orders = 0
        self.said: list[FromSource] = []
        self.store = NodeStore(node=NodeId("a"), instance=NodeInstance("1"), kv_format=KV_FORMAT, capacity=capacity)
        self.outflow = Outflow(
            target=NodeId("b"),
            store=self.store,
            window_bytes=Bytes(99 * BLOCK_BYTES),
            now=lambda: self.now,
            send=self.said.append,
            wake=lambda: None,
        )
        self.store.outlets[NodeId("b")] = self.outflow
        self.outflow.opened(NodeInstance("1"), target_capacity)

    def write(self, blocks: tuple[BlockHash, ...]) -> None:
        self.store.commit(ENGINE, self.store.begin_write(ENGINE, blocks))

    def place(self, blocks: tuple[BlockHash, ...], send_class: SendClass = SendClass.NORMAL) -> Recorder:
        """The target lacks all of them."""
        recorder, num_said = Recorder(), len(self.said)
        self.num_orders += 1
        self.outflow.place(OrderKey(f"order {self.num_orders}"), blocks, send_class, recorder)
        for message in self.said[num_said:]:
            assert isinstance(message, Offer)
            indices = tuple(range(len(message.hashes)))
            self.outflow.received([OfferAnswer(offer=message.offer, lacked=indices, elsewhere=())])
        return recorder

    def send(self) -> list[BlockHash]:
        sent: list[BlockHash] = []
        while (block := self.outflow.begin_send()) is not None:
            self.outflow.end_send(block)
            sent.append(block.hash)
        return sent


def on_a_loop(test: Callable[[], None]) -> None:
    async def main() -> None:
        test()

    run(main())


def test_background_keeps_a_quarter_of_a_second_on_the_line_and_one_block_while_nobody_knows_how_fast_it_is() -> None:
    def test() -> None:
        line = Line()
        line.write(chain(9))
        line.place(chain(9), SendClass.BACKGROUND)
        assert line.send() == [chain(9)[0]]
        line.now = 0.1
        line.outflow.received([Stored(hash=chain(9)[0])])
        assert line.outflow.rate() == 10 * BLOCK_BYTES
        assert line.send() == [*chain(9)[1:3]]
        line.now = 0.15
        line.outflow.received([Stored(hash=chain(9)[1]), Stored(hash=chain(9)[2])])
        assert line.send() == [*chain(9)[3:8]]

    on_a_loop(test)


def test_what_the_target_wants_stays_until_it_has_it() -> None:
    def test() -> None:
        line = Line(capacity=4)
        line.write(chain(2))
        order = line.place(chain(2))
        assert line.store.index.num_leased == 2
        line.write(chain(9)[4:9])
        assert line.send() == [*chain(2)]
        line.outflow.received([Stored(hash=block) for block in chain(2)])
        assert line.store.index.num_leased == 0
        assert order.end == (Standing(num_missing=2, num_acknowledged=2, sent_bytes=Bytes(2 * BLOCK_BYTES)), None)

    on_a_loop(test)


def test_a_block_that_may_not_be_leased_now_goes_when_there_is_room_again() -> None:
    async def main() -> None:
        line = Line(capacity=2)
        line.write(chain(1))
        line.store.start_watch(Owner("watch"), chain(3)[1:], 2, lambda _: None)
        line.place(chain(1))
        assert line.send() == []
        line.store.end_watch(Owner("watch"))
        await asyncio.sleep(0)
        assert line.send() == [*chain(1)]

    run(main())


def test_an_order_that_could_never_fit_is_refused_whether_the_target_is_known_already_or_not() -> None:
    def test() -> None:
        line = Line(target_capacity=3)
        order = line.place(chain(4))
        assert order.end is not None
        assert order.end[1] is not None
        assert order.end[1].error is ErrorKind.CONTEXT_TOO_LONG
        line.outflow.closed()
        large, fits = line.place(chain(3)), line.place(chain(2))
        line.outflow.opened(NodeInstance("2"), 2)
        assert large.end is not None
        assert fits.end is None

    on_a_loop(test)


def test_one_more_order_than_is_worth_its_memory_is_refused() -> None:
    def test() -> None:
        line = Line(target_capacity=100_000)
        many = tuple(BlockHash(n.to_bytes(32, "big")) for n in range(100_000))
        line.outflow.closed()
        orders = [line.place(many) for _ in range(21)]
        assert [order.end is None for order in orders] == [True] * 20 + [False]
        refusal = orders[-1].end
        assert refusal is not None
        assert refusal[1] is not None
        assert refusal[1].error is ErrorKind.CAPACITY_EXHAUSTED

    on_a_loop(test)
