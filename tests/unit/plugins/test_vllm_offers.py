"""Each block of a running sequence is offered to the node once in each of its lives."""

from pdd.engine.node_link import NodeLink
from pdd.plugins.vllm.offers import CachedBlock, Offers
from pdd.plugins.vllm.orders import SaveOrder, StepOrders
from tests.unit.engine.scripted_support import MemoryNode
from tests.unit.engine.test_embedded_block_pool import named

NAMES = tuple(named(number) for number in range(20))


class World:
    def __init__(self) -> None:
        self.node = MemoryNode()
        self.time = 0.0
        self.offers = Offers(NodeLink(self.node.connect, now=lambda: self.time))
        self.filled: list[CachedBlock] = []

    def step(self, *saves: SaveOrder, forgotten: tuple[str, ...] = ()) -> list[int]:
        """The numbers of the blocks that were filled."""
        self.time += 10
        self.filled.clear()
        orders = StepOrders(saves=saves, forgotten=forgotten)
        self.offers.make(orders, lambda block, target: self.filled.append(block))
        return [block.block for block in self.filled]


def save(first: int, end: int, request_id: str = "r", *, offset: int = 0) -> SaveOrder:
    return SaveOrder(
        request_id=request_id,
        first_block=first,
        hashes=NAMES[offset + first : offset + end],
        cache_blocks=tuple(range(offset + 100, offset + 100 + end)),
    )


def test_a_block_is_offered_once():
    world = World()
    assert world.step(save(0, 3)) == [0, 1, 2]
    world.node.committed.clear()  # it has evicted all
    assert world.step(save(3, 4)) == [3]
    assert world.step() == []


def test_a_restarted_node_is_offered_all_that_runs_with_the_next_block():
    world = World()
    world.step(save(0, 3), save(0, 2, "s", offset=10))
    world.node.restart()
    assert world.step() == []
    assert world.step(save(3, 4)) == [0, 1, 2, 3, 0, 1]
    assert {block.cache_blocks for block in world.filled} == {(100, 101, 102, 103), (110, 111)}


def test_what_was_offered_to_nobody_is_offered_later():
    world = World()
    world.node.up = False
    assert world.step(save(0, 3)) == []
    world.node.up = True
    assert world.step(save(3, 4)) == [0, 1, 2, 3]


def test_what_was_forgotten_is_never_offered_again():
    world = World()
    world.step(save(0, 3))
    world.node.restart()
    assert world.step(save(0, 2, "s", offset=10), forgotten=("r",)) == [0, 1]
    assert world.offers.num_running == 1
    world.step(forgotten=("s", "unknown"))
    assert world.offers.num_running == 0


def test_a_sequence_that_begins_anew_in_the_step_that_forgets_it_is_offered_from_its_new_blocks():
    world = World()
    world.step(save(0, 3))
    world.node.restart()
    again = SaveOrder(request_id="r", first_block=0, hashes=NAMES[:2], cache_blocks=(7, 8))
    assert world.step(again, forgotten=("r",)) == [0, 1]
    assert {block.cache_blocks for block in world.filled} == {(7, 8)}


def test_a_sequence_that_begins_finds_a_node_that_came_back_within_the_pause():
    world = World()
    world.step(save(0, 1))
    world.node.up = False
    world.step(save(1, 2))
    world.time -= 10  # no time passes until the next step
    world.node.up = True
    world.node.restart()
    assert world.step(save(0, 2, "s", offset=10))[-2:] == [0, 1]
