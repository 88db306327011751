"""Which block goes next: pins put it off, and take no room from anybody."""

from __future__ import annotations

import pytest

from pdd.core.blocks import BlockHash
from pdd.index.blocks import BlockIndex, Owner

ENGINE, WATCH = Owner("engine"), Owner("watch")
FIRST, SECOND = Owner("first pin"), Owner("second pin")


def chain(num_blocks: int, start: int = 0) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(n.to_bytes(32, "big")) for n in range(start, start + num_blocks))


def write(index: BlockIndex, blocks: tuple[BlockHash, ...]) -> list[BlockHash]:
    """Writes block by block; returns what had to go, in order."""
    evicted: list[BlockHash] = []
    for block in blocks:
        allocation = index.begin_write(ENGINE, (block,))
        evicted += allocation.evicted
        for slot in allocation.writes:
            index.commit(ENGINE, slot)
    index.check_integrity()
    return evicted


def full_index(*pins: tuple[Owner, tuple[BlockHash, ...]]) -> BlockIndex:
    """Eight blocks, 0 the least recently used one."""
    index = BlockIndex(8)
    write(index, chain(8))
    for owner, hashes in pins:
        index.pin(owner, hashes)
    index.check_integrity()
    return index


def test_unpinned_blocks_go_first_and_then_those_of_the_oldest_pin_from_its_end():
    index = full_index((FIRST, chain(3)), (SECOND, chain(2, start=3)))
    evicted = index.begin_write(ENGINE, chain(8, start=20)).evicted
    assert evicted == (*chain(3, start=5), *reversed(chain(3)), *reversed(chain(2, start=3)))


def test_a_block_of_two_pins_counts_as_one_of_the_newer():
    index = full_index((FIRST, chain(4)), (SECOND, chain(2)))
    assert index.begin_write(ENGINE, chain(6, start=20)).evicted == (*chain(4, start=4), *reversed(chain(2, start=2)))


def test_when_the_newer_pin_ends_the_older_one_still_keeps_what_both_named():
    index = full_index((FIRST, chain(4)), (SECOND, chain(2)))
    index.unpin(SECOND)
    index.check_integrity()
    assert write(index, chain(4, start=20)) == list(chain(4, start=4))
    assert index.num_pinned == 4


def test_a_pin_that_is_made_again_is_the_newest():
    index = full_index((FIRST, chain(2)), (SECOND, chain(2, start=2)), (FIRST, chain(2)))
    assert index.begin_write(ENGINE, chain(6, start=20)).evicted[4:] == tuple(reversed(chain(2, start=2)))


def test_unpinned_blocks_are_the_next_to_go_the_deepest_first():
    index = full_index((FIRST, chain(3, start=5)))
    index.unpin(FIRST)
    assert write(index, chain(3, start=20)) == list(reversed(chain(3, start=5)))


def test_when_their_owner_is_lost_pinned_blocks_count_as_just_used():
    index = full_index((FIRST, chain(3)))
    index.release_owner(FIRST)
    index.check_integrity()
    assert index.num_pinned == 0
    assert write(index, chain(5, start=20)) == list(chain(5, start=3))


def test_a_pin_covers_blocks_that_come_later():
    index = BlockIndex(8)
    index.pin(FIRST, chain(2))
    assert index.num_pinned == 0
    write(index, chain(8))
    assert index.num_pinned == 2
    assert write(index, chain(6, start=20)) == list(chain(6, start=2))


def test_pins_take_no_room_from_writers_reservations_and_leases():
    index = full_index((FIRST, chain(8)))
    assert index.has_room_for_arrival(BlockHash(bytes([9]) * 32))
    assert index.reserve(WATCH, chain(8, start=20), 8) == 0
    for block in chain(8, start=20):
        (slot,) = index.begin_arrival(ENGINE, block).writes
        index.commit(ENGINE, slot)
        index.check_integrity()
    assert index.num_ready(WATCH) == 8
    assert index.num_pinned == 0


def test_leased_blocks_stay_pinned_or_not_and_are_pinned_again_when_they_are_released():
    index = full_index((FIRST, chain(4)))
    index.lease(ENGINE, chain(4))
    index.check_integrity()
    assert index.begin_write(ENGINE, chain(5, start=20)).refused == chain(1, start=24)
    index.release_owner(ENGINE)
    write(index, chain(4, start=30))
    assert all(index.holds(block) for block in chain(4))


def test_a_pin_whose_blocks_were_all_leased_when_others_went_is_still_the_oldest():
    index = full_index((FIRST, chain(2)), (SECOND, chain(6, start=2)))
    index.lease(ENGINE, chain(2))
    assert write(index, chain(1, start=20)) == list(chain(1, start=7))
    index.release(ENGINE, chain(2))
    index.check_integrity()
    assert index.begin_write(ENGINE, chain(4, start=30)).evicted == (
        *chain(1, start=20),
        *reversed(chain(2)),
        *chain(1, start=6),
    )


def test_a_used_pinned_block_goes_later_than_others_of_its_pin():
    index = full_index((FIRST, chain(8)))
    index.touch(chain(1, start=7))
    assert write(index, chain(1, start=20)) == list(chain(1, start=6))


@pytest.mark.parametrize("num_pins", [4, 5, 50])
def test_pins_may_name_four_times_what_the_arena_holds(num_pins: int):
    """Made again and again without any eviction, too: nothing grows."""
    index = BlockIndex(4)
    for n in range(num_pins):
        index.pin(Owner(f"pin {n}"), chain(4, start=10 * n))
    write(index, (*chain(4), *chain(4, start=10 * (num_pins - 1))))
    assert index.num_pinned == 4
    assert bool(index.unpin(Owner("pin 0"))) == (num_pins <= 4)


def test_a_pin_of_more_than_the_arena_is_one_of_its_beginning():
    index = BlockIndex(4)
    index.pin(FIRST, chain(9))
    assert index.unpin(FIRST) == chain(4)


def test_ending_a_pin_that_is_none_changes_nothing():
    index = full_index()
    assert index.unpin(FIRST) == ()
    assert write(index, chain(1, start=20)) == list(chain(1))


def test_many_short_pins_leave_nothing_behind():
    index = full_index()
    for n in range(1000):
        index.pin(Owner(f"pin {n % 7}"), chain(2, start=n % 5))
    index.check_integrity()
    for n in range(200):
        index.pin(Owner(f"short pin {n}"), chain(1, start=n % 8))
    for n in range(200):
        index.unpin(Owner(f"short pin {n}"))
        index.check_integrity()
    for n in range(7):
        index.unpin(Owner(f"pin {n}"))
    index.check_integrity()
    assert index.num_pinned == 0
    assert len(write(index, chain(8, start=20))) == 8
