"""An engine's link to a node that is absent, dies, hangs and comes back."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pdd.core.errors import CapacityExhausted, Incompatible, NodeFailed, RemoteProtocolError
from pdd.core.units import Seconds
from pdd.engine.block_store import ConnectStore
from pdd.engine.node_link import NodeLink, OfferedBlocks, Pauses, knock_in_thread
from tests.unit.engine.scripted_support import MemoryNode, MemoryStore
from tests.unit.engine.test_embedded_block_pool import named

HASHES = tuple(named(number) for number in range(40))


class World:
    """A link with its node; what is written in a block is the first byte of its name."""

    def __init__(self, *, up: bool = True) -> None:
        self.time = 0.0
        self.node = MemoryNode(up=up)
        pauses = Pauses(first=Seconds(1.0), last=Seconds(3.0))
        self.link = NodeLink(self.node.connect, pauses=pauses, now=lambda: self.time, knock=self.knock)
        self.filled: list[int] = []
        self.knocks: list[Future[Any]] = []
        self.answers_knocks = True

    def knock(self, connect: ConnectStore) -> Future[Any]:
        self.knocks.append(Future())
        if self.answers_knocks:
            self.answer(connect)
        return self.knocks[-1]

    def answer(self, connect: ConnectStore | None = None) -> None:
        """The last knock ends, as the node now is."""
        try:
            self.knocks[-1].set_result((connect or self.node.connect)())
        except NodeFailed as error:
            self.knocks[-1].set_exception(error)

    def hang(self) -> None:
        """What a call does at a stopped node."""
        self.time += 2.0
        raise NodeFailed("no answer in 2 seconds")

    def offer(self, count: int) -> int | None:
        """Offers the first ``count`` blocks of a sequence of which the node was offered nothing yet."""
        return self.link.offer(lambda epoch: dict.fromkeys(HASHES[:count]), self.fill)

    def fill(self, _source: object, target: memoryview) -> None:
        self.filled.append(len(target))

    def read(self, count: int) -> int:
        return self.link.read_prefix(HASHES[:count], lambda index, content: None)

    def held(self) -> int:
        return len(self.node.committed)


@pytest.fixture
def world() -> World:
    """Connected, used, and then idle for a long time."""
    world = World()
    world.link.connect()
    assert world.offer(3) == 1
    world.time = 1000.0
    world.filled.clear()
    return world


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message.split()[0] for record in caplog.records]


# A node that was restarted while nobody asked -------------------------------------------------------------------------


def test_an_idle_connection_to_a_restarted_node_is_replaced_before_it_is_used(world: World):
    world.node.restart()
    calls_before = world.node.num_failed_calls
    assert world.read(3) == 0
    assert world.offer(5) == 2
    assert world.held() == 5
    assert world.node.num_failed_calls == calls_before


def test_a_call_that_fails_on_a_connection_that_had_stood_is_tried_again_on_a_new_one(world: World):
    world.node.notices_death = False
    world.node.restart()
    assert world.offer(5) == 2
    assert world.held() == 5
    world.time = 2000.0
    world.node.restart(keep=True)
    assert world.read(5) == 5


def test_a_call_that_failed_slowly_but_did_not_hang_is_tried_again_too(world: World):
    def take_a_moment() -> None:
        world.time += 0.01

    world.node.notices_death = False
    world.node.restart()
    world.node.on_call = take_a_moment
    assert world.offer(5) == 2


def test_lost_connections_are_closed(world: World):
    for _ in range(5):
        world.node.restart()
        world.time += 100.0
        world.offer(5)
    assert world.node.num_open == 1
    world.link.close()
    assert world.node.num_open == 0


def test_it_is_tried_again_only_once(world: World):
    world.node.notices_death = False
    world.node.fail_calls = True
    connects = world.node.num_connects
    assert world.offer(5) is None
    assert world.node.num_connects == connects + 1
    assert not world.link.connected
    assert world.read(5) == 0
    assert world.node.num_connects == connects + 2


def test_what_was_offered_to_an_earlier_life_is_offered_again():
    world = World()
    offered = OfferedBlocks()

    def offer(count: int) -> None:
        epoch = world.link.offer(lambda epoch: dict.fromkeys(HASHES[offered.count(epoch) : count]), world.fill)
        if epoch is not None:
            offered.mark(count, epoch=epoch)

    offer(20)
    offer(21)
    assert len(world.filled) == 21
    world.node.up = False
    world.time = 10.0
    offer(22)
    world.node.restart()
    world.node.up = True
    world.time = 20.0
    offer(23)
    assert tuple(world.node.committed) == HASHES[:23]


def test_a_node_that_is_lost_and_found_within_an_offer_is_asked_about_everything(world: World):
    """The blocks that the first life was given before are not in the second."""
    world.node.notices_death = False
    chosen: list[int] = []

    def choose(epoch: int) -> dict[bytes, None]:
        chosen.append(epoch)
        return dict.fromkeys(HASHES)

    world.node.on_commit = lambda: world.node.restart() if world.held() == 16 and world.node.num_lives == 1 else None
    assert world.link.offer(choose, world.fill) == 2
    assert chosen == [1, 2]
    assert set(world.node.committed) == set(HASHES)


def test_long_offers_become_visible_in_batches(world: World):
    sizes: list[int] = []
    world.node.on_commit = lambda: sizes.append(world.held())
    world.offer(40)
    assert sizes == [3, 16, 32]


# A node that is away --------------------------------------------------------------------------------------------------


def test_an_absent_node_is_no_error_and_is_asked_again_after_growing_pauses(caplog: pytest.LogCaptureFixture):
    world = World(up=False)
    world.link.connect()
    for tenth in range(101):
        world.time = tenth / 10
        assert world.offer(1) is None
    assert world.node.num_connects == 1 + 4  # at 1, 1 + 2, then every 3 seconds: 3, 6, 9
    assert messages(caplog) == ["engine_node_lost"]


def test_a_sequence_that_begins_finds_a_node_that_came_back_within_the_pause():
    world = World(up=False)
    world.link.connect()
    world.node.up = True
    world.time = 0.1
    assert world.offer(1) is None
    assert world.read(1) == 0
    assert world.offer(1) == 1


def test_it_is_said_once_that_a_node_was_lost_and_once_that_it_is_back(caplog: pytest.LogCaptureFixture):
    world = World(up=False)
    world.link.connect()
    for moment in range(1, 100):
        world.time = moment
        world.node.up = moment > 50
        world.read(1)
        world.offer(1)
    assert messages(caplog) == ["engine_node_lost", "engine_node_back"]


def test_a_node_that_takes_connections_but_no_calls_is_warned_of_once_and_asked_ever_less_often(
    caplog: pytest.LogCaptureFixture,
):
    world = World()
    world.link.connect()
    world.node.fail_calls = True
    for tenth in range(1001):
        world.time = tenth / 10
        assert world.offer(1) is None
    assert 30 <= world.node.num_connects <= 36
    assert messages(caplog) == ["engine_node_lost"]


def test_the_pause_begins_anew_once_a_call_has_succeeded(world: World):
    world.node.up = False
    for moment in (1000.0, 1001.0, 1003.0):
        world.time = moment
        assert world.offer(4) is None
    world.node.up = True
    world.time = 1006.0
    assert world.offer(4) is not None
    world.time = 1020.0
    world.node.up = False
    assert world.offer(5) is None
    world.node.up = True
    world.time = 1021.0
    assert world.offer(5) is not None


def test_a_node_that_hangs_whenever_it_is_used_takes_at_most_a_tenth_of_the_time(world: World):
    hung: list[float] = []

    def hang() -> None:
        hung.append(world.time)
        world.hang()

    world.node.on_call = hang
    started = world.time
    while world.time < started + 200.0:
        world.read(4)
        world.offer(4)
        world.time += 0.25
    assert 10 <= len(hung) <= 11  # a tenth of the time, and the second that is forgiven


def test_a_node_that_hung_for_a_moment_is_used_again_as_soon_as_it_answers():
    world = World()
    world.link.connect()
    world.offer(3)
    world.time = 1000.0
    world.answers_knocks = False
    world.node.on_call = world.hang
    assert world.offer(5) is None
    world.node.on_call = lambda: None
    world.time += 10.0  # what it took costs ten times as much, of which ten seconds are forgiven
    for _ in range(20):
        world.time += 0.1
        assert world.offer(5) is None
        assert world.read(5) == 0
    assert len(world.knocks) == 1, "it is asked once, and costs no time until it answers"
    world.answer()
    assert world.offer(5) == 2
    assert world.held() == 5


def test_a_short_hang_is_forgiven_at_once():
    world = World()
    world.link.connect()

    def hang() -> None:
        world.time += 0.5
        raise NodeFailed("no answer in half a second")

    world.node.on_call = hang
    assert world.offer(5) is None
    world.node.on_call = lambda: None
    world.time += 1.0  # the pause between two tries
    assert world.offer(5) == 2


def test_a_node_that_dies_while_it_is_asked_whether_it_is_back_is_looked_for_again(world: World):
    world.answers_knocks = False
    world.node.on_call = world.hang
    assert world.offer(5) is None
    world.time += 20.0
    assert world.offer(5) is None
    world.node.up = False
    world.answer()
    assert world.offer(5) is None
    world.node.restart()
    world.node.up, world.answers_knocks, world.node.on_call = True, True, lambda: None
    world.time += 3.0
    assert world.offer(5) == 2
    assert [knock.done() for knock in world.knocks] == [True, True]


def test_a_link_that_is_closed_while_it_asks_keeps_no_connection(world: World):
    world.answers_knocks = False
    world.node.on_call = world.hang
    assert world.offer(5) is None
    world.time += 20.0
    world.offer(5)
    world.link.close()
    world.answer()
    assert world.node.num_open == 0


def test_a_node_that_hangs_while_it_connects_costs_the_engine_that_time_only_once():
    world = World()

    def hang() -> MemoryStore:
        world.node.num_connects += 1
        world.time += 2.0
        raise NodeFailed("no welcome in 2 seconds")

    world.answers_knocks = False
    link = NodeLink(hang, now=lambda: world.time, knock=world.knock)
    link.connect()
    assert world.time == 2.0
    for _ in range(100):
        assert link.read_prefix(HASHES, lambda index, content: None) == 0
        world.time += 0.25
    assert (world.node.num_connects, len(world.knocks)) == (1, 1)


def test_knocking_takes_place_on_another_thread():
    world, gate = World(), threading.Event()

    def connect() -> MemoryStore:
        assert gate.wait(10)
        return world.node.connect()

    outcome = knock_in_thread(connect)
    assert not outcome.done()
    gate.set()
    outcome.result(10).close()

    def refuse() -> MemoryStore:
        raise Incompatible("another format")

    assert isinstance(knock_in_thread(refuse).exception(10), Incompatible)


# Wrong nodes, full nodes, wrong bytes ---------------------------------------------------------------------------------


def refusing(world: World) -> Callable[[], MemoryStore]:
    def refuse() -> MemoryStore:
        world.node.num_connects += 1
        raise Incompatible("another format")

    return refuse


def test_an_incompatible_node_is_refused_at_the_start():
    with pytest.raises(Incompatible):
        NodeLink(refusing(World())).connect()


def test_a_node_that_returns_with_another_format_is_left_alone_for_good(world: World, caplog: pytest.LogCaptureFixture):
    world.node.restart()
    world.node.connect = refusing(world)
    world.link._connect = world.node.connect
    connects = world.node.num_connects
    for moment in (1005.0, 1050.0, 1500.0):
        world.time = moment
        assert world.read(1) == 0
        assert world.offer(1) is None
    assert world.node.num_connects == connects + 1
    assert messages(caplog) == ["engine_node_lost", "engine_node_refused"]


def test_a_node_that_garbles_its_welcome_is_as_good_as_absent():
    def garble() -> MemoryStore:
        raise RemoteProtocolError("not a welcome")

    link = NodeLink(garble)
    link.connect()
    assert link.read_prefix(HASHES, lambda index, content: None) == 0


def test_a_full_node_is_no_failure(world: World):
    def refuse() -> None:
        raise CapacityExhausted("full", retry_after_s=Seconds(1))

    world.node.on_call = refuse
    assert world.offer(5) == 1
    assert world.link.connected
    assert world.held() == 3


def test_blocks_whose_lease_ended_unseen_are_not_trusted(world: World):
    """The node may have given their slots to others while they were copied."""
    world.node.notices_death = False
    world.node.up = True
    seen: list[int] = []

    def read(index: int, _content: memoryview) -> None:
        seen.append(index)
        if len(seen) == 2:
            world.node.restart()

    assert world.link.read_prefix(HASHES[:3], read) == 0
    assert seen == [0, 1, 2]
    assert world.link.num_read == 0


def test_an_error_of_the_reader_passes_and_leaves_nothing_leased(world: World):
    def read(_index: int, _content: memoryview) -> None:
        raise RemoteProtocolError("wrong bytes")

    with pytest.raises(RemoteProtocolError):
        world.link.read_prefix(HASHES[:3], read)
    assert world.node.num_leases == 0
    assert world.link.connected


def test_an_error_while_a_block_is_filled_passes_and_leaves_nothing_half_written(world: World):
    def fill(_source: object, _target: memoryview) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.link.offer(lambda epoch: dict.fromkeys(HASHES[:5]), fill)
    assert world.node.num_writes == 0
    assert world.held() == 3
    assert world.offer(5) == 1


def test_blocks_read_and_written_are_counted(world: World):
    world.read(3)
    world.offer(5)
    assert (world.link.num_read, world.link.num_written) == (3, 5)


def test_after_closing_the_node_is_looked_for_again(world: World):
    world.link.close()
    assert not world.link.connected
    assert world.read(3) == 3


# Asking and looking ---------------------------------------------------------------------------------------------------


def test_what_is_held_is_counted_without_keeping_it_or_reading_it(world: World):
    assert world.link.count_held(HASHES[:5]) == 3
    assert world.link.count_held(()) == 0
    assert world.node.num_leases == 0
    assert world.link.num_read == 0


def test_an_absent_node_holds_nothing(world: World):
    world.node.up = False
    assert world.link.count_held(HASHES[:5]) == 0


def test_looking_finds_a_node_before_the_pause_is_over(world: World):
    world.node.up = False
    assert world.offer(4) is None
    world.node.up = True
    world.node.restart()
    assert world.offer(4) is None
    world.link.look()
    assert world.offer(4) == 2
