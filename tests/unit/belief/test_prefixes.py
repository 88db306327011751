"""What the router believes of nodes, beside what a node that does just that would really hold."""

from __future__ import annotations

import random

import pytest

from pdd.belief.prefixes import Prefixes
from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, NodeInstance
from pdd.core.replication import NodeStats
from pdd.core.units import Bytes

NODE = NodeId("node")


def stats(capacity: int, instance: str = "first") -> NodeStats:
    return NodeStats(
        node=NODE,
        instance=NodeInstance(instance),
        capacity_blocks=capacity,
        held_blocks=0,
        leased_blocks=0,
        reserved_blocks=0,
        writing_blocks=0,
        orders=0,
        watches=0,
        block_bytes=Bytes(1),
        sent_bytes={},
        received_bytes={},
        evictions=0,
        digest_failures=0,
    )


def chain(*path: int) -> list[BlockHash]:
    """One name for each beginning of a path, as block hashes are."""
    return [BlockHash(repr(path[:end]).encode()) for end in range(1, len(path) + 1)]


def test_it_knows_how_much_of_a_sequence_has_landed() -> None:
    directory = Prefixes({NODE: stats(100)})
    directory.landed(NODE, chain(1, 2, 3))
    assert directory.prefix_at(NODE, chain(1, 2, 3, 4)) == 3
    assert directory.prefix_at(NODE, chain(1, 2, 9)) == 2
    assert directory.prefix_at(NODE, chain(7)) == 0
    assert directory.prefix_at(NODE, []) == 0


def test_it_knows_nothing_of_a_node_that_does_not_answer_and_remembers_when_it_does_again() -> None:
    books = {NODE: stats(100)}
    directory = Prefixes(books)
    directory.landed(NODE, chain(1, 2))
    del books[NODE]
    assert directory.prefix_at(NODE, chain(1, 2)) == 0
    directory.landed(NODE, chain(3))
    books[NODE] = stats(100)
    assert directory.prefix_at(NODE, chain(1, 2)) == 2
    assert directory.prefix_at(NODE, chain(3)) == 0


def test_a_restarted_node_has_nothing() -> None:
    books = {NODE: stats(100)}
    directory = Prefixes(books)
    directory.landed(NODE, chain(1, 2))
    books[NODE] = stats(100, "second")
    assert directory.prefix_at(NODE, chain(1, 2)) == 0
    directory.landed(NODE, chain(5))
    assert directory.num_blocks(NODE) == 1


def test_what_is_forgotten_on_purpose_is_gone() -> None:
    directory = Prefixes({NODE: stats(100)})
    directory.landed(NODE, chain(1, 2))
    directory.forget(NODE)
    assert directory.prefix_at(NODE, chain(1, 2)) == 0


def test_the_least_recently_used_goes_first_and_an_end_before_its_beginning() -> None:
    directory = Prefixes({NODE: stats(6)})
    directory.landed(NODE, chain(1, 2, 3))
    directory.landed(NODE, chain(4, 5))
    directory.landed(NODE, chain(6, 7))
    assert directory.prefix_at(NODE, chain(1, 2, 3)) == 2
    directory.landed(NODE, chain(1))
    directory.landed(NODE, chain(8, 9))
    assert [directory.prefix_at(NODE, chain(*path)) for path in ((1, 2, 3), (4, 5), (6, 7), (8, 9))] == [1, 1, 2, 2]


def test_a_sequence_longer_than_the_node_is_held_as_far_as_it_fits() -> None:
    directory = Prefixes({NODE: stats(3)})
    directory.landed(NODE, chain(1, 2, 3, 4, 5))
    assert directory.prefix_at(NODE, chain(1, 2, 3, 4, 5)) == 3


@pytest.mark.parametrize("seed", range(20))
def test_it_believes_what_a_node_would_hold_that_evicts_block_by_block(seed: int) -> None:
    chance = random.Random(seed)
    capacity = chance.choice([1, 5, 40, 200])
    directory = Prefixes({NODE: stats(capacity)})
    held: dict[BlockHash, None] = {}  # the least recently used first
    for _ in range(400):
        path = chain(*(chance.randrange(3) for _ in range(chance.randrange(1, 8))))
        directory.landed(NODE, path)
        for block in reversed(path[:capacity]):
            held.pop(block, None)
            held[block] = None
        while len(held) > capacity:
            del held[next(iter(held))]
        assert directory.num_blocks(NODE) == len(held)
        asked = chain(*(chance.randrange(3) for _ in range(8)))
        known = next((index for index, block in enumerate(asked) if block not in held), len(asked))
        assert directory.prefix_at(NODE, asked) == known


def test_its_memory_is_bounded_by_the_node_not_by_how_often_something_lands() -> None:
    directory = Prefixes({NODE: stats(50)})
    for turn in range(20_000):
        directory.landed(NODE, chain(*range(turn % 40)))
    (blocks,) = directory._nodes.values()
    assert len(blocks._uses) <= 2 * 50 + 1024
    assert sum(len(use.hashes) for use in blocks._uses) == blocks._num_names <= 2 * 50 + 1024 + 50
