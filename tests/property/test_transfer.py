"""Replication under hostile schedules: no order is forgotten, no block stays undelivered, nothing crosses in vain."""

from __future__ import annotations

from itertools import zip_longest

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pdd.core.blocks import BlockHash
from pdd.core.request import SendClass
from pdd.index.blocks import Owner
from pdd.protocol.orders import OrderKey
from tests.support.transfer_world import ENGINE, TransferWorld

HASHES = tuple(BlockHash(bytes([n]) * 32) for n in range(8))
blocks = st.lists(st.sampled_from(HASHES), min_size=1, max_size=6).map(tuple)
names = st.sampled_from(["s", "t"])
one_in_four = st.integers(0, 3)
classes = st.sampled_from(SendClass)
turn = st.tuples(names, st.sampled_from(["send", "send", "damage", "target", "target", "source", "source"]))
turns = st.lists(turn, min_size=2, max_size=10)


class TransferMachine(RuleBasedStateMachine):
    """Orders come and go, blocks appear, lines break, the target restarts, payloads are damaged, room is short."""

    @initialize(source_capacity=st.integers(2, 8), target_capacity=st.integers(2, 8), window=st.integers(1, 3))
    def start(self, source_capacity: int, target_capacity: int, window: int) -> None:
        self.world = TransferWorld(
            source_capacity=source_capacity, target_capacity=target_capacity, window_blocks=window
        )
        self.num_orders = 0
        self.standing: dict[tuple[str, str], tuple[BlockHash, ...]] = {}
        self.writing: list[tuple[BlockHash, object]] = []
        for name in self.world.sources:
            self.world.connect(name)

    @rule(name=names, chain=blocks, send_class=classes, then=turns)
    def an_order_is_placed(
        self, name: str, chain: tuple[BlockHash, ...], send_class: SendClass, then: list[tuple[str, str]]
    ) -> None:
        self.num_orders += 1
        key = f"order-{self.num_orders}"
        self.standing[name, key] = chain
        self.world.place(name, key, chain, send_class)
        self.let_flow(then)

    @rule(data=st.data(), send_class=classes)
    def an_order_changes_its_class(self, data: st.DataObject, send_class: SendClass) -> None:
        if self.standing:
            name, key = data.draw(st.sampled_from(sorted(self.standing)))
            self.world.reclassify(name, key, send_class)

    @rule(data=st.data())
    def an_order_is_cancelled(self, data: st.DataObject) -> None:
        if self.standing:
            name, key = data.draw(st.sampled_from(sorted(self.standing)))
            del self.standing[name, key]
            self.world.cancel(name, key)

    @rule(name=names, chain=blocks, then=turns)
    def blocks_appear(self, name: str, chain: tuple[BlockHash, ...], then: list[tuple[str, str]]) -> None:
        self.world.write(name, chain)
        self.let_flow(then)

    @rule(name=names)
    def a_line_opens(self, name: str) -> None:
        self.world.connect(name)

    @rule(name=names, chance=one_in_four)
    def a_line_breaks(self, name: str, chance: int) -> None:
        if chance == 0:
            self.world.disconnect(name)

    @rule(chance=one_in_four)
    def the_target_restarts(self, chance: int) -> None:
        if chance == 0:
            self.world.restart_target()
            self.writing.clear()

    @rule(name=names, is_damaged=st.sampled_from([False, False, False, True]))
    def a_block_is_sent(self, name: str, is_damaged: bool) -> None:
        self.world.send_block(name, is_damaged=is_damaged)

    @rule(then=turns)
    def traffic_flows(self, then: list[tuple[str, str]]) -> None:
        self.let_flow(then)

    def let_flow(self, then: list[tuple[str, str]]) -> None:
        for name, what in then:
            match what:
                case "target":
                    self.world.step_target(name)
                case "source":
                    self.world.step_source(name)
                case _:
                    self.world.send_block(name, is_damaged=what == "damage")
            self.world.check_integrity()

    @rule(name=names)
    def one_side_catches_up(self, name: str) -> None:
        while self.world.step_target(name) or self.world.step_source(name):
            self.world.check_integrity()

    @rule(seconds=st.sampled_from([1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        at_hand = {
            name: {block for block in HASHES if source.index.holds(block) or source.index.is_writing(block)}
            for name, source in self.world.sources.items()
        }
        ended = {name: set(source.ended) for name, source in self.world.sources.items()}
        self.world.time_passes(seconds)
        for name, key in self.standing:
            if OrderKey(key) in set(self.world.sources[name].ended) - ended[name]:
                assert set(self.standing[name, key]) - at_hand[name], f"{key} failed with every block at hand"

    @rule()
    def the_loop_turns(self) -> None:
        self.world.settle()

    @rule(block=st.sampled_from(HASHES))
    def the_targets_engine_begins_a_write(self, block: BlockHash) -> None:
        for write in self.world.target.begin_write(ENGINE, (block,)).writes:
            self.writing.append((block, write))

    @rule(commits=st.booleans())
    def the_targets_engine_ends_its_write(self, commits: bool) -> None:
        if not self.writing:
            return
        block, write = self.writing.pop(0)
        if commits:
            self.world.target.commit(ENGINE, write)
            self.world.arrivals.block_held(block)
        else:
            self.world.target.abort(ENGINE, write)
        self.world.deliver()

    @rule(num_blocks=st.integers(1, 3))
    def a_watch_takes_room(self, num_blocks: int) -> None:
        if self.world.target.num_reserved == 0 and len(self.world.target.begin_write(Owner("probe"), ()).writes) == 0:
            self.world.target.release_owner(Owner("watch"))
            room = self.world.target.capacity - self.world.target.num_leased - self.world.target.num_writing
            if num_blocks <= room:
                self.world.target.reserve(Owner("watch"), (), num_blocks)

    @invariant()
    def all_books_agree(self) -> None:
        self.world.check_integrity()

    @invariant()
    def whatever_the_target_holds_was_written_by_somebody(self) -> None:
        for source in self.world.sources.values():
            assert source.transfer.queue.backlog >= 0
            assert source.transfer.queue.background_backlog >= 0
            assert source.num_overtaken == 0
            assert source.transfer.queue.num_in_flight <= 3

    def teardown(self) -> None:
        """When peace returns and every block is at hand, every order ends, and well unless its line damaged blocks."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.target.release_owner(ENGINE)
        world.target.release_owner(Owner("watch"))
        for name in world.sources:
            world.connect(name)
        for block in HASHES:
            for name in world.sources:
                world.run_until_quiet()
                world.write(name, (block,))
        world.run_until_quiet()
        for name, key in self.standing:
            source = world.sources[name]
            assert OrderKey(key) in source.ended, f"{key} never ended"
            failure = source.ended[OrderKey(key)]
            is_excused = source.num_damaged >= 3 or source.num_refused > 0 or "evicted" in (failure or "")
            assert failure is None or is_excused
        for source in world.sources.values():
            assert source.transfer.num_orders == 0
            assert source.transfer.queue.backlog == source.transfer.queue.background_backlog == 0
            assert not source.transfer.awaits_answer
            assert not source.pinned
            assert source.index.num_leased == 0
        assert world.arrivals.num_open == 0
        assert (world.target.num_leased, world.target.num_writing) == (0, 0)
        world.check_integrity()


TestTransfer = TransferMachine.TestCase
TestTransfer.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)

steps = st.lists(st.tuples(st.integers(0, 5), names, st.integers(0, len(HASHES) - 1)), max_size=120)


@given(chains=st.lists(st.tuples(names, st.integers(1, len(HASHES))), min_size=1, max_size=5), schedule=steps)
@settings(max_examples=300, deadline=None)
def test_without_faults_every_block_crosses_exactly_once_whoever_wants_it(
    chains: list[tuple[str, int]], schedule: list[tuple[int, str, int]]
):
    """Both sources hold everything from the start, orders overlap, and messages interleave in any way."""
    world = TransferWorld(source_capacity=16, target_capacity=8, window_blocks=2)
    for name in world.sources:
        world.connect(name)
        world.write(name, HASHES)
    orders = iter([(name, f"order-{n}", HASHES[:length]) for n, (name, length) in enumerate(chains)])
    for action, name, _ in schedule:
        match action:
            case 0:
                if (order := next(orders, None)) is not None:
                    world.place(*order)
            case 1:
                world.send_block(name)
            case 2:
                world.step_target(name)
            case 3:
                world.step_source(name)
            case _:
                world.settle()
    for order in orders:
        world.place(*order)
    world.run_until_quiet()
    wanted = set(HASHES[: max(length for _, length in chains)])
    assert {block for block in HASHES if world.target.holds(block)} == wanted
    assert dict(world.frames_sent) == dict.fromkeys(wanted, 1)
    assert all(failure is None for source in world.sources.values() for failure in source.ended.values())


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_one_source_sends_each_block_once_while_blocks_still_appear(data: st.DataObject):
    world = TransferWorld(source_capacity=16, target_capacity=8, window_blocks=2, names=("s",))
    world.connect("s")
    lengths = data.draw(st.lists(st.integers(1, len(HASHES)), min_size=1, max_size=4))
    appearing = data.draw(st.permutations(HASHES))
    actions = data.draw(st.permutations(["order"] * len(lengths) + ["block"] * len(HASHES) + ["step"] * 30))
    for action in actions:
        if action == "order":
            world.place("s", f"order-{len(lengths)}", HASHES[: lengths.pop()])
        elif action == "block":
            world.write("s", (appearing.pop(),))
        else:
            step = data.draw(st.sampled_from([world.send_block, world.step_target, world.step_source]))
            step("s")
    world.run_until_quiet()
    assert all(count == 1 for count in world.frames_sent.values())
    assert world.sources["s"].transfer.num_orders == 0


@given(capacity=st.integers(1, 3), chain=blocks, written=st.lists(st.sampled_from(HASHES), max_size=12), then=turns)
@settings(max_examples=300, deadline=None)
def test_no_order_outlives_the_eviction_of_its_blocks(
    capacity: int, chain: tuple[BlockHash, ...], written: list[BlockHash], then: list[tuple[str, str]]
):
    """What the source never had may yet be computed; what it had and lost will not come back by itself."""
    world = TransferWorld(source_capacity=capacity, target_capacity=8, window_blocks=1, names=("s",))
    world.connect("s")
    source, key = world.sources["s"], OrderKey("order")
    world.place("s", key, chain)
    flow = {"send": world.send_block, "damage": world.send_block, "target": world.step_target}
    for block, (_, what) in zip_longest(written, then[: len(written)], fillvalue=("s", "rest")):
        world.write("s", (block,))
        if what != "rest":
            flow.get(what, world.step_source)("s")
    world.run_until_quiet()
    lost = {b for b in chain if b in source.seen and not source.index.holds(b) and not world.target.holds(b)}
    world.time_passes(4.0)
    world.run_until_quiet()
    has_failed = source.ended.get(key) is not None
    assert has_failed or not lost
    assert lost or source.num_refused > 0 or not has_failed
    assert source.transfer.queue.backlog == 0
