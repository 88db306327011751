"""The books of a modelled engine's cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdd.sim.engine_cache import EngineCache

A, B, C, D, E = (letter.encode() * 32 for letter in "ABCDE")


def test_what_one_sequence_filled_the_next_finds_while_it_runs_and_afterwards():
    cache = EngineCache(10)
    first = cache.claim((A, B, C), 4)
    assert first is not None
    assert first.num_hits == 0
    cache.fill(first, (A, B))
    second = cache.claim((A, B, D), 3)
    assert second is not None
    assert second.num_hits == 2
    assert cache.num_claimed == 5  # A and B are shared
    cache.release(first)
    assert cache.num_claimed == 3
    cache.release(second)
    assert cache.num_claimed == 0
    third = cache.claim((A, B, C), 3)
    assert third is not None
    assert third.num_hits == 2


def test_there_is_no_room_beyond_what_runs():
    cache = EngineCache(4)
    assert cache.claim((A,), 3) is not None
    assert cache.claim((B,), 2) is None
    assert cache.claim((B,), 1) is not None


def test_idle_blocks_go_for_new_ones_the_end_of_a_sequence_first():
    cache = EngineCache(4)
    claim = cache.claim((A, B, C), 3)
    assert claim is not None
    cache.fill(claim, (A, B, C))
    cache.release(claim)
    other = cache.claim((D,), 2)
    assert other is not None
    cache.release(other)
    again = cache.claim((A, B, C), 3)
    assert again is not None
    assert again.num_hits == 2


def test_hits_count_as_room_that_is_taken():
    cache = EngineCache(3)
    claim = cache.claim((A, B), 2)
    assert claim is not None
    cache.fill(claim, (A, B))
    cache.release(claim)
    assert cache.claim((A, B), 4) is None
    assert cache.claim((A, B), 3) is not None


def test_a_block_that_two_compute_at_once_has_one_name_and_both_rooms():
    cache = EngineCache(4)
    one, other = cache.claim((A,), 1), cache.claim((A,), 1)
    assert one is not None
    assert other is not None
    cache.fill(one, (A,))
    cache.fill(other, (A,))
    assert cache.num_claimed == 2
    cache.release(one)
    cache.release(other)
    assert cache.num_claimed == 0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 5))),
    st.integers(1, 12),
)
def test_the_books_always_agree(calls, capacity):
    """Each call ends the claim of its number, if any, and makes a new one."""
    cache = EngineCache(capacity)
    claims = {}
    for number, path, num_filled in calls:
        if number in claims:
            cache.release(claims.pop(number))
        names = tuple(bytes(path[: index + 1]) for index in range(len(path)))
        claim = cache.claim(names, len(names) + 1)
        if claim is None:
            continue
        claims[number] = claim
        cache.fill(claim, names[claim.num_hits : claim.num_hits + num_filled])
        assert cache.num_claimed + len(cache._idle) <= capacity
        assert not set(cache._idle) & set(cache._used)
    for claim in claims.values():
        cache.release(claim)
    assert cache.num_claimed == 0
