"""The arena: sealed, whole from the start, the same memory for all who map it."""

from __future__ import annotations

import fcntl
import os

import pytest

from pdd.core.errors import ConfigError
from pdd.core.units import Bytes
from pdd.kvnode.arena import Arena, MappedArena

BLOCK = Bytes(8192)


@pytest.fixture
def arena():
    arena = Arena(arena_bytes=Bytes(4 * BLOCK + 100), block_bytes=BLOCK)
    yield arena
    arena.close()


def test_it_holds_whole_blocks_only_and_never_more_than_it_was_given(arena: Arena):
    assert arena.memory.capacity == 4
    assert os.fstat(arena.descriptor).st_size == 4 * BLOCK


def test_all_its_pages_are_there_from_the_start(arena: Arena):
    assert os.fstat(arena.descriptor).st_blocks * 512 >= 4 * BLOCK


def test_it_can_neither_shrink_nor_grow_nor_be_unsealed(arena: Arena):
    for size in (0, 5 * BLOCK):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_two_mappings_see_the_same_bytes(arena: Arena):
    other = MappedArena(arena.descriptor, block_bytes=BLOCK, capacity=4)
    arena.memory.view(2)[:4] = b"abcd"
    assert bytes(other.view(2)[:4]) == b"abcd"
    assert bytes(other.view(1)[:4]) == bytes(4)
    other.close()


@pytest.mark.parametrize("slot", [-1, 4])
def test_slots_outside_are_refused(arena: Arena, slot: int):
    with pytest.raises(IndexError):
        arena.memory.view(slot)


def test_closing_under_a_view_that_is_still_used_is_safe(arena: Arena):
    other = MappedArena(arena.descriptor, block_bytes=BLOCK, capacity=4)
    view = other.view(0)
    other.close()
    other.close()
    view[0] = 7
    assert arena.memory.view(0)[0] == 7


@pytest.mark.parametrize("size", [0, BLOCK - 1, 1 << 50])
def test_an_arena_that_can_not_be_is_refused(size: int):
    with pytest.raises(ConfigError):
        Arena(arena_bytes=Bytes(size), block_bytes=BLOCK)
