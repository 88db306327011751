"""The index's rules, one by one."""

from __future__ import annotations

import pytest

from pdd.core.blocks import BlockHash
from pdd.core.errors import CapacityExhausted, ContextTooLong, LocalProtocolError
from pdd.index.blocks import BlockIndex, Owner

ENGINE, OTHER, WATCH, PEER = Owner("engine"), Owner("other"), Owner("watch"), Owner("peer")


def h(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32, "big"))


def chain(count: int, start: int = 0) -> tuple[BlockHash, ...]:
    return tuple(h(n) for n in range(start, start + count))


def fill(index: BlockIndex, blocks: tuple[BlockHash, ...]) -> None:
    for write in index.begin_write(ENGINE, blocks).writes:
        assert index.commit(ENGINE, write)


def test_blocks_are_invisible_until_they_are_committed():
    index = BlockIndex(4)
    (write,) = index.begin_write(ENGINE, [h(1)]).writes
    assert not index.holds(h(1))
    assert index.lease(OTHER, [h(1)]) == ()
    assert index.commit(ENGINE, write)
    assert index.lease(OTHER, [h(1)]) == (write.slot,)


def test_a_block_that_is_held_or_being_written_is_not_written_again():
    index = BlockIndex(4)
    fill(index, (h(1),))
    index.begin_write(ENGINE, [h(2)])
    allocation = index.begin_write(OTHER, [h(1), h(2), h(3)])
    assert [write.hash for write in allocation.writes] == [h(3)]
    assert allocation.refused == ()


def test_a_full_index_evicts_the_block_unused_for_longest():
    index = BlockIndex(3)
    for number in range(3):
        fill(index, (h(number),))
    index.release(OTHER, chain(len(index.lease(OTHER, [h(0)]))))
    assert index.begin_write(ENGINE, [h(9)]).evicted == (h(1),)
    assert index.evictions == 1


def test_a_chain_loses_its_end_first():
    index = BlockIndex(3)
    fill(index, chain(3))
    index.lease(OTHER, chain(3))
    index.release(OTHER, chain(3))
    evicted = [index.begin_write(ENGINE, [h(n)]).evicted for n in (7, 8, 9)]
    assert evicted == [(h(2),), (h(1),), (h(0),)]


def test_a_chain_loses_its_end_first_after_its_owner_died():
    index = BlockIndex(3)
    fill(index, chain(3))
    index.reserve(WATCH, chain(3), 3)
    index.release_owner(WATCH)
    assert index.begin_write(ENGINE, [h(9)]).evicted == (h(2),)


def test_a_lease_covers_the_longest_held_prefix_only():
    index = BlockIndex(4)
    fill(index, (h(0), h(1), h(3)))
    assert len(index.lease(OTHER, chain(4))) == 2
    assert index.num_leased == 2


def test_leases_are_counted():
    index = BlockIndex(1)
    fill(index, (h(0),))
    index.lease(ENGINE, [h(0)])
    index.lease(ENGINE, [h(0)])
    index.release(ENGINE, [h(0)])
    assert index.begin_write(OTHER, [h(1)]).refused == (h(1),)
    index.release(ENGINE, [h(0)])
    assert index.begin_write(OTHER, [h(1)]).evicted == (h(0),)


def test_releasing_more_than_is_leased_is_our_own_mistake_and_changes_nothing():
    index = BlockIndex(2)
    fill(index, chain(2))
    index.lease(ENGINE, chain(2))
    with pytest.raises(LocalProtocolError):
        index.release(ENGINE, (h(0), h(1), h(1)))
    assert index.num_leased == 2


def test_an_old_generation_of_a_slot_is_ignored():
    index = BlockIndex(1)
    (old,) = index.begin_write(ENGINE, [h(0)]).writes
    index.abort(ENGINE, old)
    (new,) = index.begin_write(ENGINE, [h(0)]).writes
    assert not index.commit(ENGINE, old)
    assert not index.abort(ENGINE, old)
    assert index.commit(ENGINE, new)


def test_an_owner_that_ends_frees_its_unfinished_writes_and_leases():
    index = BlockIndex(3)
    fill(index, (h(0),))
    index.lease(OTHER, [h(0)])
    (write,) = index.begin_write(OTHER, [h(1)]).writes
    assert index.release_owner(OTHER) == (h(1),)
    assert (index.num_leased, index.num_writing, index.num_held) == (0, 0, 1)
    assert not index.commit(OTHER, write)


def test_a_reservation_counts_the_blocks_it_holds_already():
    index = BlockIndex(4)
    fill(index, chain(3))
    assert index.reserve(WATCH, chain(4), 4) == 3
    assert index.num_reserved == 1


def test_a_reservation_is_all_or_nothing():
    index = BlockIndex(4)
    fill(index, chain(2))
    index.lease(ENGINE, chain(2))
    with pytest.raises(CapacityExhausted):
        index.reserve(WATCH, chain(3, start=10), 3)
    assert index.num_reserved == 0
    index.check_integrity()


def test_a_reservation_beyond_the_arena_can_never_be_met():
    with pytest.raises(ContextTooLong):
        BlockIndex(4).reserve(WATCH, chain(2), 5)


def test_an_owner_has_one_reservation():
    index = BlockIndex(4)
    index.reserve(WATCH, chain(1), 1)
    with pytest.raises(LocalProtocolError):
        index.reserve(WATCH, chain(1), 1)


def test_reserved_room_is_kept_from_other_arrivals_but_not_from_the_blocks_it_names():
    index = BlockIndex(3)
    index.reserve(WATCH, chain(1), 3)
    assert not index.has_room_for_arrival(h(9))
    assert index.begin_arrival(PEER, h(9)).refused == (h(9),)
    (write,) = index.begin_arrival(PEER, h(0)).writes
    index.commit(PEER, write)
    assert index.num_ready(WATCH) == 1


def test_local_writers_may_use_an_output_budget_but_not_room_for_named_blocks():
    index = BlockIndex(3)
    index.reserve(WATCH, chain(1), 3)
    allocation = index.begin_write(ENGINE, chain(3, start=10))
    assert len(allocation.writes) == 2
    assert allocation.refused == (h(12),)
    assert index.begin_arrival(PEER, h(0)).writes


def test_leases_stop_short_of_promised_room():
    index = BlockIndex(3)
    fill(index, chain(3))
    index.reserve(WATCH, chain(2, start=10), 2)
    assert len(index.lease(ENGINE, chain(3))) == 1


def test_watched_blocks_are_leased_the_moment_they_are_committed():
    index = BlockIndex(2)
    index.reserve(WATCH, chain(2), 2)
    for block in reversed(chain(2)):
        (write,) = index.begin_arrival(PEER, block).writes
        index.commit(PEER, write)
    assert index.num_ready(WATCH) == 2
    assert index.begin_write(ENGINE, [h(9)]).refused == (h(9),)
    index.release_owner(WATCH)
    assert index.begin_write(ENGINE, [h(9)]).writes


def test_blocks_that_two_watches_share_are_reserved_once():
    index = BlockIndex(3)
    index.reserve(WATCH, chain(2), 2)
    index.reserve(OTHER, chain(3), 3)
    assert index.num_reserved == 3


def test_an_index_of_no_slots_is_our_own_mistake():
    with pytest.raises(LocalProtocolError):
        BlockIndex(0)
