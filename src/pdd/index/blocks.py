"""Which blocks a node holds: slots, leases, reservations and eviction, as plain bookkeeping that moves no bytes.

Every slot is *free*, *writing* (someone fills it) or *held* (complete and visible). Held blocks that nobody leases are
evictable (``index.eviction`` says in which order); a chain is always touched from its end to its start, so that deeper
blocks go before their parents. *Room* is what a writer could get: free slots and evictable ones.

A reservation names hashes it waits for and may ask for more slots beyond them (an output budget). The named part is a
guarantee, kept by every operation: there is room for each named block that is neither held nor being written. The
unnamed part only keeps further reservations out: local writers may use it, since what they write is evictable at once.

A pin is a wish, not a guarantee: its blocks go after all others. So it takes no room from anybody.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from pdd.core.blocks import BlockHash
from pdd.core.errors import CapacityExhausted, ContextTooLong, LocalProtocolError
from pdd.core.units import Seconds
from pdd.index.eviction import EvictionOrder, Owner
from pdd.index.slots import Allocation, Reservation, Slot, SlotState, WriteSlot

__all__ = ["RETRY_AFTER", "Allocation", "BlockIndex", "Owner", "WriteSlot"]

RETRY_AFTER = Seconds(1.0)
"""What a refused reservation suggests: room appears when a running request ends, about once a second on a busy node."""

_PIN_NAMES_PER_SLOT = 4
"""Pins may name so many blocks in all, held or not; beyond that the oldest is forgotten."""


class BlockIndex:
    """The books of one arena of ``capacity`` slots."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise LocalProtocolError(f"an index needs at least one slot, got {capacity}")
        self.capacity = capacity
        self.evictions = 0
        self._slots: list[Slot] = []  # those ever used: the others cost nothing where arenas are only counted
        self._free = deque[int]()
        self._held: dict[BlockHash, int] = {}
        self._writing: dict[BlockHash, int] = {}
        self._evictable = EvictionOrder()
        self._leases: dict[Owner, dict[BlockHash, int]] = {}
        """How often each owner leases a block."""
        self._writes: dict[Owner, set[int]] = {}
        self._reservations: dict[Owner, Reservation] = {}
        self._wanted: dict[BlockHash, set[Owner]] = {}
        self._num_unnamed = 0
        self._num_wanted_writing = 0
        self.num_pinned = 0  # held blocks that a pin names

    # --- questions

    def holds(self, block: BlockHash) -> bool:
        return block in self._held

    def is_writing(self, block: BlockHash) -> bool:
        return block in self._writing

    def has_room_for_arrival(self, block: BlockHash) -> bool:
        """Whether ``begin_arrival`` would find a slot for it."""
        return block in self._wanted or self._room - self._num_promised - self._num_unnamed >= 1

    def slot_of(self, block: BlockHash) -> int:
        """The slot of a held block."""
        return self._held[block]

    def waiting_for(self, block: BlockHash) -> tuple[Owner, ...]:
        """Whose reservations name the block and don't have it yet."""
        waiting = self._wanted.get(block)
        return () if waiting is None else tuple(sorted(waiting))

    def num_ready(self, owner: Owner) -> int:
        """How many of the reservation's first hashes are held (and leased by it)."""
        return self._reservations[owner].num_ready

    @property
    def num_held(self) -> int:
        return len(self._held)

    @property
    def num_leased(self) -> int:
        return len(self._held) - len(self._evictable)

    @property
    def num_writing(self) -> int:
        return len(self._writing)

    @property
    def num_reserved(self) -> int:
        """Slots promised to reservations and not filled yet."""
        return len(self._wanted) + self._num_unnamed

    @property
    def _room(self) -> int:
        return self.capacity - len(self._held) - len(self._writing) + len(self._evictable)

    @property
    def _num_promised(self) -> int:
        """Named blocks still to come. Those being written have their slot already."""
        return len(self._wanted) - self._num_wanted_writing

    # --- writing

    def begin_write(self, owner: Owner, hashes: Iterable[BlockHash]) -> Allocation:
        """A local engine's write: slots for those of ``hashes`` neither held nor being written, as far as room goes."""
        chain = tuple(hashes)
        self.touch(chain)
        return self._allocate(owner, chain, num_kept_back=0)

    def begin_arrival(self, owner: Owner, block: BlockHash) -> Allocation:
        """A peer's write: unless a reservation names the block it must leave alone all that is reserved."""
        return self._allocate(owner, (block,), num_kept_back=self._num_unnamed)

    def _allocate(self, owner: Owner, hashes: Iterable[BlockHash], *, num_kept_back: int) -> Allocation:
        writes: list[WriteSlot] = []
        evicted: list[BlockHash] = []
        refused: list[BlockHash] = []
        spare = self._room - self._num_promised - num_kept_back
        for block in hashes:
            if block in self._held or block in self._writing:
                continue
            is_promised = block in self._wanted
            if not is_promised and spare < 1:
                refused.append(block)
                continue
            spare -= not is_promised
            writes.append(self._start_writing(owner, block, self._find_slot(evicted)))
        return Allocation(writes=tuple(writes), evicted=tuple(evicted), refused=tuple(refused))

    def _find_slot(self, evicted: list[BlockHash]) -> int:
        if self._free:
            return self._free.popleft()
        if len(self._slots) < self.capacity:
            self._slots.append(Slot())
            return len(self._slots) - 1
        return self._evict_oldest(evicted)

    def _evict_oldest(self, evicted: list[BlockHash]) -> int:
        block = self._evictable.pop()
        evicted.append(block)
        self.evictions += 1
        self.num_pinned -= self._evictable.is_pinned(block)
        return self._held.pop(block)

    def _start_writing(self, owner: Owner, block: BlockHash, index: int) -> WriteSlot:
        slot = self._slots[index]
        slot.state, slot.hash, slot.writer = SlotState.WRITING, block, owner
        slot.generation += 1
        self._writing[block] = index
        self._num_wanted_writing += block in self._wanted
        self._writes.setdefault(owner, set()).add(index)
        return WriteSlot(hash=block, slot=index, generation=slot.generation)

    def commit(self, owner: Owner, write: WriteSlot) -> bool:
        """Makes a filled block visible, leased to every reservation that names it. False: a stale write, ignored."""
        if not self._end_writing(owner, write):
            return False
        slot = self._slots[write.slot]
        slot.state = SlotState.HELD
        self._held[write.hash] = write.slot
        self._evictable.add(write.hash)
        self.num_pinned += self._evictable.is_pinned(write.hash)
        for waiting in sorted(self._wanted.pop(write.hash, ())):
            self._lease_slot(waiting, write.hash, write.slot)
            self._reservations[waiting].missing.discard(write.hash)
            self._reservations[waiting].count_ready()
        return True

    def abort(self, owner: Owner, write: WriteSlot) -> bool:
        """Gives an unfinished slot back. False: a stale write, ignored."""
        if not self._end_writing(owner, write):
            return False
        self._slots[write.slot].state = SlotState.FREE
        self._slots[write.slot].hash = None
        self._free.append(write.slot)
        return True

    def _end_writing(self, owner: Owner, write: WriteSlot) -> bool:
        if not 0 <= write.slot < len(self._slots):
            return False
        slot = self._slots[write.slot]
        expected = (SlotState.WRITING, write.hash, write.generation, owner)
        if (slot.state, slot.hash, slot.generation, slot.writer) != expected:
            return False
        slot.writer = None
        del self._writing[write.hash]
        self._num_wanted_writing -= write.hash in self._wanted
        self._forget_write(owner, write.slot)
        return True

    def _forget_write(self, owner: Owner, index: int) -> None:
        self._writes[owner].discard(index)
        if not self._writes[owner]:
            del self._writes[owner]

    # --- leases

    def lease(self, owner: Owner, hashes: Sequence[BlockHash]) -> tuple[int, ...]:
        """Leases the longest held prefix of ``hashes``, once more for each call; returns its slots in order.

        The prefix ends early where one more lease would take room that is promised to a reservation.
        """
        spare = self._room - self._num_promised
        slots: list[int] = []
        for block in hashes:
            slot = self._held.get(block)
            if slot is None:
                break
            if not self._slots[slot].num_leases:
                spare -= 1
                if spare < 0:
                    break
            slots.append(slot)
            self._lease_slot(owner, block, slot)
        return tuple(slots)

    def _lease_slot(self, owner: Owner, block: BlockHash, index: int) -> None:
        leases = self._leases.get(owner)
        if leases is None:
            leases = self._leases[owner] = {}
        leases[block] = leases.get(block, 0) + 1
        slot = self._slots[index]
        if not slot.num_leases:
            self._evictable.discard(block)
        slot.num_leases += 1

    def release(self, owner: Owner, hashes: Sequence[BlockHash]) -> None:
        """Ends one lease of each of ``hashes``.

        Raises:
            LocalProtocolError: the owner leases one of them less often; none is released then.
        """
        leases = self._leases.get(owner, {})
        released = Counter(hashes) if len(hashes) > 1 else dict.fromkeys(hashes, 1)
        if any(leases.get(block, 0) < count for block, count in released.items()):
            raise LocalProtocolError(f"{owner} releases what it does not lease")
        for block in reversed(hashes):
            if leases[block] == 1:
                del leases[block]
            else:
                leases[block] -= 1
            self._end_leases(block, 1)
        if not leases:
            self._leases.pop(owner, None)

    def _end_leases(self, block: BlockHash, count: int) -> None:
        slot = self._slots[self._held[block]]
        slot.num_leases -= count
        if not slot.num_leases:
            self._evictable.add(block)

    def touch(self, hashes: Sequence[BlockHash]) -> None:
        """Marks a chain as just used; its first block becomes the last to go."""
        for block in reversed(hashes):
            self._evictable.touch(block)

    # --- pins

    def pin(self, owner: Owner, hashes: Sequence[BlockHash]) -> None:
        """Evict all others before these blocks, now or when they come; replaces the pin that this owner had."""
        self.unpin(owner)
        chain = tuple(dict.fromkeys(hashes))[: self.capacity]
        self.num_pinned += sum(block in self._held and not self._evictable.is_pinned(block) for block in chain)
        self._evictable.pin(owner, chain)
        while self._evictable.num_named > _PIN_NAMES_PER_SLOT * self.capacity:
            self.unpin(self._evictable.oldest_pin())

    def unpin(self, owner: Owner) -> tuple[BlockHash, ...]:
        """Ends the owner's pin, if it has one; its blocks are the next to go. Returns what it named."""
        chain = self._evictable.unpin(owner)
        self.num_pinned -= sum(block in self._held and not self._evictable.is_pinned(block) for block in chain)
        return chain

    # --- reservations

    def reserve(self, owner: Owner, hashes: Sequence[BlockHash], num_blocks: int) -> int:
        """Promises room for ``num_blocks`` blocks in all, the ones named by ``hashes`` among them; all or nothing.

        Named blocks that are held are leased to the owner now, the others when they are committed. Returns how many of
        the first ones are ready.

        Raises:
            ContextTooLong: more than the whole arena.
            CapacityExhausted: not now.
            LocalProtocolError: this owner has a reservation already.
        """
        if owner in self._reservations:
            raise LocalProtocolError(f"{owner} has a reservation already")
        named = dict.fromkeys(hashes)
        num_wanted = max(num_blocks, len(named))
        if num_wanted > self.capacity:
            raise ContextTooLong(
                f"{num_wanted} blocks are more than the node's arena of {self.capacity}", code="context_length_exceeded"
            )
        self._check_room(named, num_wanted)
        reservation = Reservation(hashes=tuple(hashes), num_unnamed=num_wanted - len(named))
        self._reservations[owner] = reservation
        self._num_unnamed += reservation.num_unnamed
        self._claim(owner, reservation, named)
        return reservation.num_ready

    def _check_room(self, named: Iterable[BlockHash], num_wanted: int) -> None:
        named = tuple(named)
        slots = [self._held.get(block) for block in named]
        num_taken = sum(slot is not None and not self._slots[slot].num_leases for slot in slots)
        num_new = sum(
            slot is None and block not in self._writing and block not in self._wanted
            for block, slot in zip(named, slots, strict=True)
        )
        num_unnamed = self._num_unnamed + num_wanted - len(named)
        if self._room - num_taken < self._num_promised + num_new + num_unnamed:
            raise CapacityExhausted(
                f"{num_wanted} blocks can't be reserved now: {self._room} of {self.capacity} are free or evictable, "
                f"{self.num_reserved} of them promised",
                retry_after_s=RETRY_AFTER,
            )

    def _claim(self, owner: Owner, reservation: Reservation, named: Iterable[BlockHash]) -> None:
        for block in named:
            slot = self._held.get(block)
            if slot is not None:
                self._lease_slot(owner, block, slot)
            else:
                reservation.missing.add(block)
                self._num_wanted_writing += block in self._writing and block not in self._wanted
                self._wanted.setdefault(block, set()).add(owner)
        reservation.count_ready()

    # --- the end of an owner

    def release_owner(self, owner: Owner) -> tuple[BlockHash, ...]:
        """Ends all that an owner has, a pin among it, and counts its blocks as just used.

        Returns the hashes that it was writing and that nobody writes any more.
        """
        aborted = tuple(self._abort_index(owner, index) for index in sorted(self._writes.get(owner, ())))
        reservation = self._reservations.pop(owner, None)
        chain = self.unpin(owner)
        if reservation is not None:
            chain = reservation.hashes
            self._num_unnamed -= reservation.num_unnamed
            self._unwant(owner, reservation)
        for block, count in reversed(self._leases.pop(owner, {}).items()):
            self._end_leases(block, count)
        self.touch(chain)
        return aborted

    def _abort_index(self, owner: Owner, index: int) -> BlockHash:
        slot = self._slots[index]
        assert slot.hash is not None
        block = slot.hash
        self.abort(owner, WriteSlot(hash=block, slot=index, generation=slot.generation))
        return block

    def _unwant(self, owner: Owner, reservation: Reservation) -> None:
        for block in reservation.missing:
            waiting = self._wanted[block]
            waiting.discard(owner)
            if not waiting:
                del self._wanted[block]
                self._num_wanted_writing -= block in self._writing

    # --- self-check

    def check_integrity(self) -> None:
        """Recomputes every book from the slots and asserts that they agree. For tests and idle moments; O(capacity)."""
        states = [slot.state for slot in self._slots]
        assert sorted(self._free) == [i for i, state in enumerate(states) if state is SlotState.FREE]
        assert self._held == {s.hash: i for i, s in enumerate(self._slots) if s.state is SlotState.HELD}
        assert self._writing == {s.hash: i for i, s in enumerate(self._slots) if s.state is SlotState.WRITING}
        leased = sum((Counter(leases) for leases in self._leases.values()), Counter[BlockHash]())
        for block, index in self._held.items():
            assert self._slots[index].num_leases == leased[block]
            assert (block in self._evictable) == (leased[block] == 0)
        assert set(leased) <= set(self._held)
        assert len(self._evictable) + len(leased) == len(self._held)
        assert self.num_pinned == sum(self._evictable.is_pinned(block) for block in self._held)
        assert self._evictable.num_named <= _PIN_NAMES_PER_SLOT * self.capacity
        self._evictable.check_integrity()
        assert {i for indices in self._writes.values() for i in indices} == set(self._writing.values())
        self._check_reservations()

    def _check_reservations(self) -> None:
        wanted: dict[BlockHash, set[Owner]] = {}
        for owner, reservation in self._reservations.items():
            for block in reservation.missing:
                wanted.setdefault(block, set()).add(owner)
                assert block not in self._held
            for block in set(reservation.hashes) - reservation.missing:
                assert self._leases[owner][block] > 0
            assert all(block in self._held for block in reservation.hashes[: reservation.num_ready])
        assert wanted == self._wanted
        assert self._num_wanted_writing == sum(block in self._writing for block in wanted)
        assert self._num_unnamed == sum(r.num_unnamed for r in self._reservations.values())
        assert self._room >= self._num_promised, "a promised block has no room"
