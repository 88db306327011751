"""The index under hostile sequences: its books always agree, and its promises always hold."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from pdd.core.blocks import BlockHash
from pdd.core.errors import CapacityExhausted, ContextTooLong, LocalProtocolError
from pdd.index.blocks import BlockIndex, Owner, WriteSlot

HASHES = [BlockHash(bytes([n]) * 32) for n in range(12)]
hashes = st.lists(st.sampled_from(HASHES), max_size=6).map(tuple)
owners = st.sampled_from([Owner("engine"), Owner("peer"), Owner("router")])


class IndexMachine(RuleBasedStateMachine):
    """Engines write, peers deliver, routers watch, everybody leases, anybody dies."""

    writes = Bundle("writes")

    @initialize(capacity=st.integers(1, 8))
    def start(self, capacity: int) -> None:
        self.index = BlockIndex(capacity)
        self.leases: dict[Owner, list[BlockHash]] = {}
        self.ready: dict[Owner, tuple[tuple[BlockHash, ...], int]] = {}
        self.finished: set[WriteSlot] = set()
        self.pins: dict[Owner, tuple[BlockHash, ...]] = {}

    @rule(target=writes, owner=owners, blocks=hashes)
    def an_engine_writes(self, owner: Owner, blocks: tuple[BlockHash, ...]):
        unknown = {b for b in blocks if not self.index.holds(b) and not self.index.is_writing(b)}
        evictable = self.evictable()
        allocation = self.index.begin_write(owner, blocks)
        self.check_order(evictable, allocation.evicted)
        assert {w.hash for w in allocation.writes} | set(allocation.refused) >= unknown - set(allocation.evicted)
        assert not any(self.index.holds(block) for block in allocation.evicted)
        return multiple(*((owner, write) for write in allocation.writes))

    @rule(target=writes, owner=owners, block=st.sampled_from(HASHES))
    def a_block_arrives(self, owner: Owner, block: BlockHash):
        is_new = not self.index.holds(block) and not self.index.is_writing(block)
        has_room = self.index.has_room_for_arrival(block)
        is_promised = any(block in chain for chain, _ in self.ready.values())
        evictable = self.evictable()
        allocation = self.index.begin_arrival(owner, block)
        self.check_order(evictable, allocation.evicted)
        assert bool(allocation.writes) == (is_new and has_room)
        assert has_room or not (is_new and is_promised), "a promised block found no room"
        return multiple(*((owner, write) for write in allocation.writes))

    def evictable(self) -> set[BlockHash]:
        leased = {block for blocks in self.leases.values() for block in blocks}
        watched = {block for blocks, _ in self.ready.values() for block in blocks}
        return {block for block in HASHES if self.index.holds(block)} - leased - watched

    def age_of_pin(self, block: BlockHash) -> int:
        """0: not pinned; the larger, the newer."""
        return max((n for n, blocks in enumerate(self.pins.values(), start=1) if block in blocks), default=0)

    def check_order(self, evictable: set[BlockHash], evicted: tuple[BlockHash, ...]) -> None:
        """Each block went while only blocks of pins at least as new were left."""
        left = set(evictable)
        for block in evicted:
            assert block in left
            left.discard(block)
            assert self.age_of_pin(block) <= min(map(self.age_of_pin, left), default=self.age_of_pin(block))

    @rule(owner=owners, blocks=hashes)
    def a_conversation_is_pinned(self, owner: Owner, blocks: tuple[BlockHash, ...]) -> None:
        pinner = Owner(f"pin of {owner}")
        self.index.pin(pinner, blocks)
        self.pins.pop(pinner, None)
        self.pins[pinner] = tuple(dict.fromkeys(blocks))[: self.index.capacity]
        while sum(map(len, self.pins.values())) > 4 * self.index.capacity:
            del self.pins[next(iter(self.pins))]

    @rule(owner=owners, is_lost=st.booleans())
    def a_pin_ends(self, owner: Owner, *, is_lost: bool) -> None:
        pinner = Owner(f"pin of {owner}")
        self.pins.pop(pinner, None)
        if is_lost:
            self.index.release_owner(pinner)
        else:
            self.index.unpin(pinner)

    @rule(pair=writes)
    def a_write_is_committed(self, pair: tuple[Owner, WriteSlot]) -> None:
        owner, write = pair
        counted = self.index.commit(owner, write)
        assert not (counted and write in self.finished), "a write was committed after its end"
        self.finished.add(write)

    @rule(pair=writes)
    def a_write_is_aborted(self, pair: tuple[Owner, WriteSlot]) -> None:
        owner, write = pair
        counted = self.index.abort(owner, write)
        assert not (counted and write in self.finished)
        self.finished.add(write)

    @rule(pair=writes, other=owners)
    def a_stranger_commits(self, pair: tuple[Owner, WriteSlot], other: Owner) -> None:
        owner, write = pair
        if other != owner:
            assert not self.index.commit(other, write)

    @rule(slot=st.integers(-3, 12), generation=st.integers(0, 3), block=st.sampled_from(HASHES))
    def an_invented_write_is_committed(self, slot: int, generation: int, block: BlockHash) -> None:
        invented = WriteSlot(hash=block, slot=slot, generation=generation)
        assert not self.index.commit(Owner("nobody"), invented)

    @rule(owner=owners, blocks=hashes)
    def a_prefix_is_leased(self, owner: Owner, blocks: tuple[BlockHash, ...]) -> None:
        slots = self.index.lease(owner, blocks)
        taken = blocks[: len(slots)]
        assert [self.index.slot_of(block) for block in taken] == list(slots)
        self.leases.setdefault(owner, []).extend(taken)

    @rule(owner=owners, data=st.data())
    def a_lease_is_released(self, owner: Owner, data: st.DataObject) -> None:
        held = self.leases.get(owner, [])
        count = data.draw(st.integers(0, len(held)))
        self.index.release(owner, tuple(held[:count]))
        del held[:count]

    @rule(owner=owners, blocks=hashes, num_blocks=st.integers(0, 10))
    def a_watch_reserves(self, owner: Owner, blocks: tuple[BlockHash, ...], num_blocks: int) -> None:
        watcher = Owner(f"watch of {owner}")
        try:
            num_ready = self.index.reserve(watcher, blocks, num_blocks)
        except ContextTooLong:
            assert max(num_blocks, len(set(blocks))) > self.index.capacity
        except CapacityExhausted:
            assert watcher not in self.ready
        except LocalProtocolError:
            assert watcher in self.ready
        else:
            self.ready[watcher] = (blocks, num_ready)

    @rule(owner=owners)
    def an_owner_ends(self, owner: Owner) -> None:
        self.index.release_owner(owner)
        self.leases.pop(owner, None)

    @rule(owner=owners)
    def a_watch_ends(self, owner: Owner) -> None:
        watcher = Owner(f"watch of {owner}")
        self.index.release_owner(watcher)
        self.ready.pop(watcher, None)

    @invariant()
    def the_books_agree(self) -> None:
        self.index.check_integrity()
        assert self.index.num_held + self.index.num_writing <= self.index.capacity
        assert self.index.num_pinned == sum(self.index.holds(b) and self.age_of_pin(b) > 0 for b in HASHES)

    @invariant()
    def leased_blocks_stay_and_readiness_never_decreases(self) -> None:
        for blocks in self.leases.values():
            assert all(self.index.holds(block) for block in blocks)
        for watcher, (blocks, num_ready) in self.ready.items():
            now = self.index.num_ready(watcher)
            assert now >= num_ready
            assert all(self.index.holds(block) for block in blocks[:now])
            self.ready[watcher] = (blocks, now)

    def teardown(self) -> None:
        if not hasattr(self, "index"):
            return
        for owner in ("engine", "peer", "router"):
            self.index.release_owner(Owner(owner))
            self.index.release_owner(Owner(f"watch of {owner}"))
        self.index.check_integrity()
        assert (self.index.num_leased, self.index.num_writing, self.index.num_reserved) == (0, 0, 0)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
