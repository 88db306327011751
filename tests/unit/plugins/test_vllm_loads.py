"""Loads on threads: each is reported once, with what could not be filled."""

import threading

import pytest

from pdd.engine.node_link import NodeLink
from pdd.plugins.vllm.loads import EndedLoads, Loads
from pdd.plugins.vllm.orders import LoadOrder
from tests.unit.engine.scripted_support import MemoryNode
from tests.unit.engine.test_embedded_block_pool import named

NAMES = tuple(named(number) for number in range(6))
CACHE_BLOCKS = (10, 11, 12, 13, 14, 15)


class World:
    """Wire blocks of 4 tokens, cache blocks of 8 or 2; a node that holds some of NAMES."""

    def __init__(self, *, held: int, cache_block_tokens: int = 4) -> None:
        self.node = MemoryNode()
        store = self.node.connect()
        store.commit(store.begin_write(NAMES[:held]))
        store.close()
        self.written: list[int] = []
        self.loads = Loads(
            lambda: NodeLink(self.node.connect),
            self.write,
            block_tokens=4,
            cache_block_tokens=cache_block_tokens,
            num_threads=2,
        )

    def write(self, order: LoadOrder, block: int, content: memoryview) -> None:
        self.written.append(block)

    def run(self, *orders: LoadOrder) -> EndedLoads:
        for order in orders:
            self.loads.start(order)
        self.loads.close()
        return self.loads.take_ended()


def order_of(first_token: int, end_token: int, request_id: str = "r") -> LoadOrder:
    first_block, end_block = first_token // 4, -(-end_token // 4)
    return LoadOrder(
        request_id=request_id,
        first_block=first_block,
        hashes=NAMES[first_block:end_block],
        first_token=first_token,
        end_token=end_token,
        cache_blocks=CACHE_BLOCKS,
    )


def test_what_the_node_holds_is_copied_and_reported():
    world = World(held=6)
    assert world.run(order_of(8, 20)) == EndedLoads(request_ids=frozenset({"r"}))
    assert world.written == [2, 3, 4]
    assert world.node.num_leases == 0
    assert world.node.num_open == 0


@pytest.mark.parametrize(
    ("held", "first", "end", "cache_block_tokens", "failed"),
    [
        (3, 0, 20, 4, {13, 14}),
        (3, 0, 20, 8, {11, 12}),
        (3, 0, 10, 2, set()),
        (2, 0, 11, 2, {14, 15}),
        (0, 8, 20, 4, {12, 13, 14}),
        (0, 8, 19, 8, {11, 12}),
    ],
)
def test_what_is_missing_fails_from_the_first_cache_block_that_is_not_full(
    held: int, first: int, end: int, cache_block_tokens: int, failed: set[int]
):
    ended = World(held=held, cache_block_tokens=cache_block_tokens).run(order_of(first, end))
    assert ended == EndedLoads(request_ids=frozenset({"r"}), failed_blocks=frozenset(failed))


def test_each_load_is_reported_once():
    world = World(held=6)
    ended = world.run(order_of(0, 8, "a"), order_of(0, 8, "b"), order_of(0, 24, "c"))
    assert ended.request_ids == {"a", "b", "c"}
    assert world.loads.take_ended() == EndedLoads()


def test_an_absent_node_fails_the_whole_load():
    world = World(held=6)
    world.node.up = False
    assert world.run(order_of(4, 12)).failed_blocks == {11, 12}


def test_a_copy_that_goes_wrong_fails_its_load_and_not_the_thread(monkeypatch: pytest.MonkeyPatch):
    def fail(order: LoadOrder, block: int, content: memoryview) -> None:
        raise RuntimeError("out of memory")

    world = World(held=6)
    world.loads._write = fail
    ended = world.run(order_of(0, 8, "a"), order_of(0, 8, "b"), order_of(0, 8, "c"))
    assert ended == EndedLoads(request_ids=frozenset("abc"), failed_blocks=frozenset({10, 11}))


def test_one_long_load_does_not_hold_up_another():
    may_end, seen = threading.Event(), threading.Event()

    def write(order: LoadOrder, block: int, content: memoryview) -> None:
        if order.request_id == "long":
            assert may_end.wait(10)
        else:
            seen.set()

    world = World(held=6)
    world.loads._write = write
    world.loads.start(order_of(0, 24, "long"))
    world.loads.start(order_of(0, 4, "short"))
    assert seen.wait(10)
    may_end.set()
    assert world.run().request_ids == {"long", "short"}
