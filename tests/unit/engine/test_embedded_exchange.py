import logging

import pytest

from pdd.core.errors import CapacityExhausted, Incompatible, NodeFailed
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.engine.embedded.exchange import Backoff, NodeExchange
from tests.support.embedded import FakeStore
from tests.unit.engine.test_embedded_block_pool import named

FORMAT = find_model("scripted").kv_format(4)


class Bytes:
    """Blocks filled with their own number."""

    def __init__(self) -> None:
        self.written: dict[int, bytes] = {}

    def read_block(self, block, target):
        target[:] = bytes([block]) * len(target)

    def write_block(self, block, source):
        self.written[block] = bytes(source)


class World:
    def __init__(self, store: FakeStore | None = None) -> None:
        self.store = store or FakeStore(FORMAT)
        self.time = 0.0
        self.bytes = Bytes()
        backoff = Backoff(first=Seconds(1.0), last=Seconds(3.0))
        self.exchange = NodeExchange(self.store.connect, self.bytes, backoff=backoff, now=lambda: self.time)


@pytest.fixture
def world():
    world = World()
    world.exchange.connect()
    return world


def test_exported_blocks_can_be_imported_elsewhere(world):
    world.exchange.export([(named(1), 11), (named(2), 12)])
    other = World(world.store)
    assert other.exchange.import_prefix([named(1), named(2), named(3)], [5, 6, 7]) == 2
    assert other.bytes.written == {5: bytes([11]) * FORMAT.block_bytes, 6: bytes([12]) * FORMAT.block_bytes}
    assert not world.store.leases


def test_blocks_that_the_node_has_are_not_copied_again(world):
    world.exchange.export([(named(1), 11)])
    world.exchange.export([(named(1), 99), (named(2), 12)])
    assert world.store.block(named(1))[0] == 11
    assert world.exchange.num_exported == 2


def test_long_exports_become_visible_in_batches(world):
    batches = []
    commit = world.store.commit
    world.store.commit = lambda slots: (batches.append(len(slots)), commit(slots))
    world.exchange.export([(named(number), number) for number in range(40)])
    assert batches == [16, 16, 8]


def test_a_full_node_is_no_failure(world):
    def refuse(hashes):
        raise CapacityExhausted("full", retry_after_s=Seconds(1))

    world.store.begin_write = refuse
    world.exchange.export([(named(1), 1)])
    assert world.exchange.connected


def test_an_absent_node_is_no_error_and_is_asked_again_after_growing_pauses(caplog):
    world = World()
    world.store.down = True
    with caplog.at_level(logging.WARNING):
        world.exchange.connect()
        for tenth in range(101):
            world.time = tenth / 10
            assert world.exchange.import_prefix([named(1)], [0]) == 0
    assert world.store.connects == 1 + 4  # at 1, 1 + 2, then every 3 seconds: 3, 6, 9
    assert [record.message.split()[0] for record in caplog.records] == ["engine_node_lost"]


def test_a_node_that_comes_back_is_used_and_said_to_be_back(caplog):
    world = World()
    world.store.down = True
    world.exchange.connect()
    world.store.down = False
    world.time = 2.0
    caplog.clear()
    world.exchange.export([(named(1), 1)])
    assert named(1) in world.store.held
    assert [record.message for record in caplog.records] == ["engine_node_back"]
    world.store.down = True
    world.exchange.export([(named(2), 2)])
    assert not world.exchange.connected
    world.store.down = False
    world.time = 3.1  # the pause began anew at its first length
    world.exchange.export([(named(2), 2)])
    assert named(2) in world.store.held


def test_a_node_that_dies_in_mid_import_yields_what_was_copied_whole(world):
    world.exchange.export([(named(number), number) for number in range(3)])
    view = world.store.view

    def failing(slot):
        if slot == 2:
            raise NodeFailed("gone")
        return view(slot)

    world.store.view = failing
    assert world.exchange.import_prefix([named(number) for number in range(3)], [7, 8, 9]) == 2
    assert set(world.bytes.written) == {7, 8}
    assert not world.exchange.connected


def test_a_node_that_hangs_takes_at_most_a_tenth_of_the_time(world):
    def hang(hashes):
        world.time += 2.0
        raise NodeFailed("no answer in 2 seconds")

    world.store.begin_write = hang
    before = world.store.connects
    assert not world.exchange.export([(named(1), 1)])
    world.time = 21.9
    assert not world.exchange.export([(named(1), 1)])
    assert world.store.connects == before
    world.time = 22.1
    world.exchange.export([(named(1), 1)])
    assert world.store.connects == before + 1


def test_each_life_of_the_node_is_another_epoch(world):
    assert world.exchange.epoch == 0
    world.store.down = True
    world.exchange.export([(named(1), 1)])
    world.store.down = False
    world.time = 10.0
    assert world.exchange.export([(named(1), 1)])
    assert world.exchange.epoch == 1


def test_a_node_that_returns_with_another_format_is_left_alone_for_good(caplog):
    world = World()
    world.store.down = True
    world.exchange.connect()

    def refuse():
        world.store.connects += 1
        raise Incompatible("another format")

    world.exchange._connect = refuse
    before = world.store.connects
    for moment in (5.0, 50.0, 500.0):
        world.time = moment
        world.exchange.export([(named(1), 1)])
    assert world.store.connects == before + 1


def test_an_incompatible_node_is_refused_at_the_start():
    def refuse():
        raise Incompatible("another format")

    with pytest.raises(Incompatible):
        NodeExchange(refuse, Bytes()).connect()
