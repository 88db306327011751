"""Two source nodes and one target, made of the real state machines and indexes; lines are queues under a
test's hand.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeInstance
from pdd.core.request import SendClass
from pdd.core.units import Bytes, Seconds
from pdd.index.blocks import BlockIndex, Owner
from pdd.protocol.arrivals import Arrivals, SourceKey
from pdd.protocol.orders import Keep, LetGo, OrderChanged, OrderEnded, OrderKey, Send, Standing
from pdd.protocol.peer import FromSource, FromTarget, Offer, Withdraw
from pdd.protocol.transfer import SourceTransfer

BLOCK_BYTES = Bytes(10)
LINE = Owner("line")
PINS = Owner("pins")
ENGINE = Owner("engine")
EVICTION_GRACE = Seconds(3.0)


@dataclass(frozen=True, slots=True)
class Frame:
    """A block on the line."""

    hash: BlockHash
    is_damaged: bool


@dataclass(slots=True)
class Source:
    """One node with orders to the target. ``to_target`` and ``to_source`` are its line, empty while it is down."""

    name: str
    index: BlockIndex
    transfer: SourceTransfer
    key: SourceKey | None = None
    to_target: deque[FromSource | Frame] = field(default_factory=deque["FromSource | Frame"])
    to_source: deque[FromTarget] = field(default_factory=deque["FromTarget"])
    pinned: set[BlockHash] = field(default_factory=set["BlockHash"])
    standings: dict[OrderKey, Standing] = field(default_factory=dict["OrderKey", "Standing"])
    ended: dict[OrderKey, str | None] = field(default_factory=dict["OrderKey", "str | None"])
    classes: dict[OrderKey, SendClass] = field(default_factory=dict["OrderKey", "SendClass"])
    num_overtaken: int = 0
    """Background blocks that went while a normal one waited that was neither on its way nor held back."""
    num_damaged: int = 0
    num_refused: int = 0
    seen: set[BlockHash] = field(default_factory=set["BlockHash"])
    """What an engine here wrote since the last order was placed, or was held then."""


class TransferWorld:
    """Moves messages and blocks one step at a time, so that a test chooses every interleaving."""

    def __init__(
        self, *, source_capacity: int, target_capacity: int, window_blocks: int, names: tuple[str, ...] = ("s", "t")
    ) -> None:
        self.target = BlockIndex(target_capacity)
        self.target_capacity = target_capacity
        self.arrivals = Arrivals(self.target)
        self.instance = NodeInstance("1")
        self.frames_sent: Counter[BlockHash] = Counter()
        self.num_connections = 0
        self.now = 0.0
        self.sources = {name: self._source(name, source_capacity, window_blocks) for name in names}

    @staticmethod
    def _source(name: str, capacity: int, window_blocks: int) -> Source:
        index = BlockIndex(capacity)
        window = Bytes(window_blocks * BLOCK_BYTES)
        return Source(
            name=name,
            index=index,
            transfer=SourceTransfer(
                block_bytes=BLOCK_BYTES, window_bytes=window, holds=index.holds, is_writing=index.is_writing
            ),
        )

    # --- sources

    def write(self, name: str, blocks: tuple[BlockHash, ...]) -> None:
        """An engine at a source writes blocks."""
        source = self.sources[name]
        allocation = source.index.begin_write(ENGINE, blocks)
        for block in allocation.evicted:
            source.transfer.block_gone(block)
        for write in allocation.writes:
            source.index.commit(ENGINE, write)
            source.transfer.block_held(write.hash)
            source.seen.add(write.hash)
        source.num_refused += len(allocation.refused)
        for block in allocation.refused:
            source.transfer.block_refused(block)
        self.carry_out(source)

    def place(
        self, name: str, key: str, blocks: tuple[BlockHash, ...], send_class: SendClass = SendClass.NORMAL
    ) -> None:
        source = self.sources[name]
        source.seen = {block for block in blocks if source.index.holds(block)}
        source.transfer.place(OrderKey(key), blocks, send_class)
        source.classes[OrderKey(key)] = send_class
        self.carry_out(source)

    def reclassify(self, name: str, key: str, send_class: SendClass) -> None:
        source = self.sources[name]
        source.transfer.reclassify(OrderKey(key), send_class)
        source.classes[OrderKey(key)] = send_class
        self.carry_out(source)

    def cancel(self, name: str, key: str) -> None:
        source = self.sources[name]
        source.transfer.cancel(OrderKey(key))
        source.standings.pop(OrderKey(key), None)
        self.carry_out(source)

    def carry_out(self, source: Source) -> None:
        for command in source.transfer.take_commands():
            match command:
                case Send(message=message):
                    assert source.key is not None, "a message without a line"
                    source.to_target.append(message)
                case Keep(hash=block):
                    if block not in source.pinned and source.index.lease(PINS, (block,)):
                        source.pinned.add(block)
                case LetGo(hash=block):
                    if block in source.pinned:
                        source.pinned.discard(block)
                        source.index.release(PINS, (block,))
                case OrderChanged(order=order, standing=standing):
                    self._check_standing(standing)
                    source.standings[order] = standing
                case OrderEnded(order=order, standing=standing, failure=failure):
                    self._check_standing(standing)
                    assert order not in source.ended, "an order ended twice"
                    source.ended[order] = None if failure is None else failure.reason
                    source.standings.pop(order, None)

    @staticmethod
    def _check_standing(standing: Standing) -> None:
        assert standing.num_acknowledged >= 0
        assert standing.num_missing is None or standing.num_acknowledged <= standing.num_missing

    def send_block(self, name: str, *, is_damaged: bool = False) -> bool:
        """Puts the next block, if there is one, on the line."""
        source = self.sources[name]
        if source.key is None:
            return False
        transfer = source.transfer
        has_normal = not transfer.holds_back and transfer.queue.backlog > transfer.queue.num_in_flight * BLOCK_BYTES
        sent = source.transfer.next_block()
        if sent is None:
            return False
        is_background = source.classes[sent.order] is SendClass.BACKGROUND
        source.num_overtaken += has_normal and is_background
        if not source.index.lease(LINE, (sent.hash,)):
            source.transfer.put_back(sent)
            if not source.index.holds(sent.hash):
                source.transfer.block_gone(sent.hash)
            self.carry_out(source)
            return False
        source.index.release(LINE, (sent.hash,))
        source.to_target.append(Frame(sent.hash, is_damaged))
        source.num_damaged += is_damaged
        self.frames_sent[sent.hash] += 1
        return True

    def time_passes(self, seconds: float) -> None:
        """Sources look for orders that wait in vain, as often as they do."""
        for source in self.sources.values():
            for moment in (self.now, self.now + seconds):
                source.transfer.fail_evicted(now=Seconds(moment), grace=EVICTION_GRACE)
                self.carry_out(source)
        self.now += seconds

    # --- the line

    def connect(self, name: str) -> None:
        source = self.sources[name]
        if source.key is None:
            self.num_connections += 1
            source.key = SourceKey(f"{name}#{self.num_connections}")
            source.transfer.connected(self.instance)
            self.carry_out(source)

    def disconnect(self, name: str) -> None:
        source = self.sources[name]
        if source.key is None:
            return
        key, source.key = source.key, None
        source.to_target.clear()
        source.to_source.clear()
        source.transfer.disconnected()
        self.carry_out(source)
        self.target.release_owner(Owner(key))
        self.arrivals.lost(key)
        self.deliver()

    def step_target(self, name: str) -> bool:
        """The target handles the source's next message or block."""
        source = self.sources[name]
        if source.key is None or not source.to_target:
            return False
        match source.to_target.popleft():
            case Frame() as frame:
                self._receive(source.key, frame)
            case Offer() as offer:
                self.arrivals.offered(source.key, offer)
            case Withdraw() as withdraw:
                self.arrivals.withdrawn(source.key, withdraw)
            case message:
                raise AssertionError(f"unexpected {message}")
        self.deliver()
        return True

    def _receive(self, key: SourceKey, frame: Frame) -> None:
        owner = Owner(key)
        writes = self.target.begin_arrival(owner, frame.hash).writes
        if not writes:
            if self.target.holds(frame.hash):
                self.arrivals.stored(key, frame.hash)
            else:
                self.arrivals.deferred(key, frame.hash)
            return
        self.arrivals.arriving(key, frame.hash)
        if frame.is_damaged:
            self.arrivals.damaged(key, frame.hash)
            self.target.abort(owner, writes[0])
        else:
            self.arrivals.stored(key, frame.hash)
            self.target.commit(owner, writes[0])

    def step_source(self, name: str) -> bool:
        """The source handles the target's next message."""
        source = self.sources[name]
        if not source.to_source:
            return False
        source.transfer.received(source.to_source.popleft())
        self.carry_out(source)
        return True

    # --- the target

    def deliver(self) -> None:
        by_key = {source.key: source for source in self.sources.values()}
        for key, message in self.arrivals.take_messages():
            by_key[key].to_source.append(message)

    def settle(self) -> None:
        """What nodes do once per loop turn."""
        self.arrivals.reconsider()
        self.deliver()
        for source in self.sources.values():
            source.transfer.retry_held_back()
            self.carry_out(source)

    def commit_at_target(self, block: BlockHash) -> None:
        """A local engine of the target computed the block itself."""
        for write in self.target.begin_write(ENGINE, (block,)).writes:
            self.target.commit(ENGINE, write)
            self.arrivals.block_held(block)
        self.deliver()

    def restart_target(self) -> None:
        """The target comes back empty, as another instance."""
        for name in self.sources:
            self.disconnect(name)
        self.instance = NodeInstance(str(int(self.instance) + 1))
        self.target = BlockIndex(self.target_capacity)
        self.arrivals = Arrivals(self.target)

    def run_until_quiet(self) -> None:
        """Lets everything happen that can happen by itself."""
        for _ in range(10_000):
            self.settle()
            moved = [
                step(name) for name in self.sources for step in (self.step_source, self.step_target, self.send_block)
            ]
            if not any(moved):
                return
        raise AssertionError("the transfer never comes to rest")

    def check_integrity(self) -> None:
        self.target.check_integrity()
        self.arrivals.check_integrity()
        for source in self.sources.values():
            source.index.check_integrity()
