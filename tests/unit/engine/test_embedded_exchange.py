import pytest

from pdd.engine.catalog import find_model
from pdd.engine.embedded.exchange import NodeExchange
from pdd.engine.node_link import NodeLink
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
        self.bytes = Bytes()
        self.exchange = NodeExchange(NodeLink(self.store.connect), self.bytes)

    def export(self, *named_blocks) -> int | None:
        return self.exchange.export(lambda epoch: dict(named_blocks))


@pytest.fixture
def world():
    world = World()
    world.exchange.connect()
    return world


def test_exported_blocks_can_be_imported_elsewhere(world):
    world.export((named(1), 11), (named(2), 12))
    other = World(world.store)
    assert other.exchange.import_prefix([named(1), named(2), named(3)], [5, 6, 7]) == 2
    assert other.bytes.written == {5: bytes([11]) * FORMAT.block_bytes, 6: bytes([12]) * FORMAT.block_bytes}
    assert other.exchange.num_imported == 2
    assert not world.store.leases


def test_blocks_that_the_node_has_are_not_copied_again(world):
    world.export((named(1), 11))
    world.export((named(1), 99), (named(2), 12))
    assert world.store.block(named(1))[0] == 11
    assert world.exchange.num_exported == 2


def test_an_exchange_is_connected_as_long_as_its_node_lives(world):
    assert world.exchange.connected
    world.store.down = True
    assert not world.exchange.connected
    assert world.export((named(1), 11)) is None
