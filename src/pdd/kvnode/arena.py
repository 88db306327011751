"""The memory that holds a node's blocks: one memfd, allocated and touched at start, sealed, mapped by node and engines.

A memfd and not ``multiprocessing.shared_memory``, whose tracker unlinks attached segments before Python 3.13, and not
a file in /dev/shm, which may be small: a page that can't be had there is a SIGBUS in mid-copy.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from pdd.core.errors import ConfigError
from pdd.core.units import Bytes


class MappedArena:
    """``capacity`` slots of ``block_bytes`` bytes, mapped into this process. Owns the mapping, not the descriptor."""

    def __init__(self, descriptor: int, *, block_bytes: Bytes, capacity: int) -> None:
        self.block_bytes = block_bytes
        self.capacity = capacity
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._mapping = mmap.mmap(descriptor, block_bytes * capacity, flags=flags)
        self._view = memoryview(self._mapping)

    def view(self, slot: int) -> memoryview:
        """The slot's bytes, writable: ``[block_bytes]``. Valid until ``close``; keep no view beyond it."""
        if not 0 <= slot < self.capacity:
            raise IndexError(f"slot {slot} of {self.capacity}")
        start = slot * self.block_bytes
        return self._view[start : start + self.block_bytes]

    def close(self) -> None:
        """Unmaps, unless views are still about: then the mapping goes with the last of them. Idempotent."""
        self._view.release()
        try:
            self._mapping.close()
        except BufferError:
            return


class Arena:
    """The node's own arena: creates the memory, keeps the descriptor that engines are given."""

    def __init__(self, *, arena_bytes: Bytes, block_bytes: Bytes) -> None:
        """Raises ConfigError: less than one block, or more than this machine has."""
        capacity = arena_bytes // block_bytes
        if capacity < 1:
            raise ConfigError(f"an arena of {arena_bytes} bytes holds no block: one is {block_bytes} bytes")
        self.descriptor = _allocate(Bytes(capacity * block_bytes))
        self.memory = MappedArena(self.descriptor, block_bytes=block_bytes, capacity=capacity)

    def close(self) -> None:
        """Engines that have it mapped keep their mapping."""
        self.memory.close()
        os.close(self.descriptor)


def _allocate(num_bytes: Bytes) -> int:
    """A sealed memfd with all its pages."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if num_bytes > physical:
        # Asked for, the kernel would begin to allocate it, and kill somebody half-way.
        raise ConfigError(f"an arena of {num_bytes} bytes can't be had: this machine has {physical} bytes of memory")
    descriptor = os.memfd_create("pdd-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(f"an arena of {num_bytes} bytes can't be had on this machine: {error}") from error
    return descriptor
