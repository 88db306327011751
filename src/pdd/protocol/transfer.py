"""The source's side of replication to one target: which block goes next, and what each order still waits for.

A block that some order wants passes through these states, and is forgotten as soon as the target has it::

    UNOFFERED ──offer──► OFFERED ──lacked──► LACKED ──next_block──► IN_FLIGHT ──stored──► gone
        ▲                   │ elsewhere         ▲ rejected ◄────────────┤
        │                   ▼                   │                       │
        │               ELSEWHERE ────want──────┘ ◄──────deferred───────┘
        └──── every state, when the connection is lost

However many orders want a block, it is offered and sent once. Orders take turns, block by block; within an order blocks
go in order. Background orders have a turn only while no other has a block to send, and then keep little on the line
(``background_window``), so that a normal block never waits long behind them; a block that a normal order wants too goes
as normal. At most ``window_bytes`` are unacknowledged (one block always may be). Sans-IO: callers report what happened,
then carry out ``take_commands()`` and, while the line takes more, ``next_block()``.

A lacked block that was here and has been evicted may come back: someone computes it again. Nobody is obliged to, though,
so callers fail orders for which that takes too long (``fail_evicted``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import NewType, assert_never

from pdd.core.blocks import BlockHash
from pdd.core.errors import LocalProtocolError, RemoteProtocolError
from pdd.core.ids import NodeInstance
from pdd.core.request import SendClass
from pdd.core.units import Bytes, Seconds
from pdd.protocol.peer import (
    MAX_OFFER_HASHES,
    Deferred,
    Elsewhere,
    ErrorKind,
    FromSource,
    FromTarget,
    Have,
    Offer,
    OfferAnswer,
    Pong,
    Rejected,
    Stored,
    Want,
    Withdraw,
)

OrderKey = NewType("OrderKey", str)
"""An order, unique in this node: its router's connection and its id there."""

MAX_REJECTIONS = 3
"""A line that damages one block this often is broken, not unlucky."""
_EVICTED = "a block of this order was evicted at the source before it was sent"
_NO_ROOM = "the source's arena is full: a block of this order found no room in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send this message to the target."""

    message: FromSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The target wants this held block: keep it from being evicted, if that is possible."""

    hash: BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """The block need not be kept any more."""

    hash: BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderChanged:
    """The order's standing changed, to this."""

    order: OrderKey
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFailure:
    """Why an order ended without success."""

    error: ErrorKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEnded:
    """The order is gone; ``failure`` says why, None means that every block is at the target."""

    order: OrderKey
    standing: Standing
    failure: OrderFailure | None


Command = Send | Keep | LetGo | OrderChanged | OrderEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where an order stands. ``num_missing`` is None until the target has answered for every block."""

    num_missing: int | None
    num_acknowledged: int
    sent_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockToSend:
    """The next block for the line, and the order whose turn it was."""

    hash: BlockHash
    order: OrderKey


class _State(Enum):
    UNOFFERED = "unoffered"
    OFFERED = "offered"
    LACKED = "lacked"
    ELSEWHERE = "elsewhere"
    IN_FLIGHT = "in flight"


@dataclass(slots=True)
class _Block:
    present: bool
    state: _State = _State.UNOFFERED
    orders: dict[_Order, int] = field(default_factory=dict["_Order", int])
    """Who wants it, and where it stands in their sequence."""
    num_normal: int = 0
    """How many of these orders are of the normal class."""
    offer: int = 0
    offered_present: bool = False
    num_rejections: int = 0
    is_refused: bool = False
    is_kept: bool = False
    counted: SendClass | None = None
    """Which class's backlog it is part of."""

    def counts_as(self) -> SendClass | None:
        if self.state is _State.IN_FLIGHT or (self.state is _State.LACKED and self.present):
            return SendClass.NORMAL if self.num_normal else SendClass.BACKGROUND
        return None


@dataclass(slots=True, eq=False)
class _Order:
    key: OrderKey
    hashes: tuple[BlockHash, ...]
    send_class: SendClass
    num_pending: int
    """Blocks that are not at the target; those of them that are not ``unanswered`` are counted as missing."""
    unanswered: set[BlockHash] = field(default_factory=set[BlockHash])
    num_missing: int = 0
    num_acknowledged: int = 0
    sendable: list[tuple[int, BlockHash]] = field(default_factory=list[tuple[int, BlockHash]])
    """A heap that may name blocks that have gone since: ``next_block`` looks twice."""
    is_queued: bool = False
    sent_bytes: int = 0

    @property
    def is_normal(self) -> bool:
        return self.send_class is SendClass.NORMAL

    def standing(self) -> Standing:
        return Standing(
            num_missing=None if self.unanswered else self.num_missing,
            num_acknowledged=self.num_acknowledged,
            sent_bytes=Bytes(self.sent_bytes),
        )


class SourceTransfer:
    """All orders of one node to one target. ``holds`` and ``is_writing`` ask the local index."""

    def __init__(
        self,
        *,
        block_bytes: Bytes,
        window_bytes: Bytes,
        holds: Callable[[BlockHash], bool],
        is_writing: Callable[[BlockHash], bool],
    ) -> None:
        self.background_window = Bytes(0)
        """So much of background orders may be unacknowledged, but always one block. May be changed at any time."""
        self._block_bytes = block_bytes
        self._window_bytes = window_bytes
        self._holds = holds
        self._is_writing = is_writing
        self._blocks: dict[BlockHash, _Block] = {}
        self._orders: dict[OrderKey, _Order] = {}
        self._turns = deque[_Order]()
        self._background_turns = deque[_Order]()
        self._offers: dict[int, tuple[BlockHash, ...]] = {}
        self._num_offers = 0
        self._in_flight: dict[BlockHash, SendClass] = {}
        self._num_background_in_flight = 0
        self._held_back: dict[BlockHash, None] = {}
        self._evicted: dict[BlockHash, Seconds | None] = {}
        """Wanted blocks that were here once, and when ``fail_evicted`` first missed them."""
        self._num_normal_to_send = 0
        self._num_background_to_send = 0
        self._num_named = 0
        self._instance: NodeInstance | None = None
        self._is_connected = False
        self._changed: dict[_Order, None] = {}
        self._commands: list[Command] = []

    # --- questions

    @property
    def num_orders(self) -> int:
        return len(self._orders)

    @property
    def num_named(self) -> int:
        """Blocks that orders name, each as often as it is named: what the books of this side cost."""
        return self._num_named

    def num_wanted_with(self, hashes: Iterable[BlockHash]) -> int:
        """How many different blocks would be wanted if an order for ``hashes`` stood too."""
        return len(self._blocks) + sum(block not in self._blocks for block in set(hashes))

    @property
    def num_in_flight(self) -> int:
        """Block frames sent and not answered."""
        return len(self._in_flight)

    @property
    def awaits_answer(self) -> bool:
        """Whether the target owes an answer."""
        return bool(self._in_flight or self._offers)

    @property
    def misses_evicted(self) -> bool:
        """Whether ``fail_evicted`` has anything to do."""
        return bool(self._evicted)

    @property
    def holds_back(self) -> bool:
        """Whether ``retry_held_back`` has anything to do."""
        return bool(self._held_back)

    @property
    def backlog(self) -> Bytes:
        """Payload on the line or ready for it, of the normal class. What is not here (yet, or any more) does not load the
        line.
        """
        return Bytes(self._num_normal_to_send * self._block_bytes)

    @property
    def background_backlog(self) -> Bytes:
        """The same of blocks that only background orders want."""
        return Bytes(self._num_background_to_send * self._block_bytes)

    def standing(self, order: OrderKey) -> Standing:
        return self._orders[order].standing()

    def take_commands(self) -> list[Command]:
        """What is to be done now, in this order. Each command is returned once.

        However much has changed, an order is told of once, and a complete one ends here.
        """
        self._tell()
        commands, self._commands = self._commands, []
        return commands

    # --- orders

    def place(self, key: OrderKey, hashes: Iterable[BlockHash], send_class: SendClass = SendClass.NORMAL) -> None:
        """Begins a standing order. Raises LocalProtocolError: there is one of this key."""
        if key in self._orders:
            raise LocalProtocolError(f"order {key} stands already")
        chain = tuple(dict.fromkeys(hashes))
        order = _Order(key, chain, send_class, num_pending=len(chain))
        self._orders[key] = order
        self._num_named += len(chain)
        self._want_all(order)
        if self._is_connected:
            self._offer(block for block in chain if self._blocks[block].state is _State.UNOFFERED)
        self._changed[order] = None

    def _want_all(self, order: _Order) -> None:
        is_normal = order.is_normal
        for index, block in enumerate(order.hashes):
            record = self._blocks.get(block)
            if record is None:
                self._blocks[block] = _Block(self._holds(block), _State.UNOFFERED, {order: index}, is_normal)
                order.unanswered.add(block)
                continue
            record.orders[order] = index
            record.num_normal += is_normal
            if record.state is _State.UNOFFERED or record.state is _State.OFFERED:
                order.unanswered.add(block)
                continue
            order.num_missing += 1
            self._count(record)
            if record.state is _State.LACKED and record.present:
                self._push(order, index, block)

    def reclassify(self, key: OrderKey, send_class: SendClass) -> None:
        """The order goes on in another class. Unknown ones are ignored."""
        order = self._orders.get(key)
        if order is None or order.send_class is send_class:
            return
        self._unqueue(order)
        order.send_class = send_class
        if order.sendable:
            self._enqueue(order)
        for block in order.hashes:
            record = self._blocks.get(block)
            if record is not None and order in record.orders:
                record.num_normal += 1 if order.is_normal else -1
                self._count(record)
        self._changed[order] = None

    def cancel(self, key: OrderKey) -> None:
        """Ends an order; blocks that only it wanted are withdrawn. Unknown ones are ignored."""
        order = self._orders.get(key)
        if order is not None:
            self._remove(order)
            self._abandon(order)

    def _remove(self, order: _Order) -> None:
        del self._orders[order.key]
        self._num_named -= len(order.hashes)
        self._unqueue(order)

    def fail(self, key: OrderKey, failure: OrderFailure) -> None:
        """Ends an order with a reason."""
        standing = self.standing(key)
        self.cancel(key)
        self._commands.append(OrderEnded(order=key, standing=standing, failure=failure))

    def fail_all(self, failure: OrderFailure) -> None:
        """Ends every order: the target is gone, or of another kind."""
        for key in tuple(self._orders):
            self.fail(key, failure)

    def fail_larger_than(self, num_blocks: int, failure: OrderFailure) -> None:
        """Ends the orders that name more blocks than that."""
        for key, order in tuple(self._orders.items()):
            if len(order.hashes) > num_blocks:
                self.fail(key, failure)

    def _abandon(self, order: _Order) -> None:
        withdrawn: list[BlockHash] = []
        for block in order.hashes:
            record = self._blocks.get(block)
            if record is None or record.orders.pop(order, None) is None:
                continue
            record.num_normal -= order.is_normal
            self._count(record)
            if record.orders:
                continue
            if record.state is not _State.UNOFFERED and record.state is not _State.IN_FLIGHT:
                withdrawn.append(block)
            self._forget(block, record)
        for start in range(0, len(withdrawn), MAX_OFFER_HASHES):
            self._commands.append(Send(message=Withdraw(hashes=tuple(withdrawn[start : start + MAX_OFFER_HASHES]))))

    def _forget(self, block: BlockHash, record: _Block) -> None:
        self._set_state(record, _State.UNOFFERED)
        del self._blocks[block]
        if self._held_back:
            self._held_back.pop(block, None)
        if self._evicted:
            self._evicted.pop(block, None)
        if record.is_kept:
            self._commands.append(LetGo(hash=block))

    def _tell(self) -> None:
        """Says how changed orders stand now, and ends those that have all they wanted."""
        changed, self._changed = self._changed, {}
        for order in changed:
            if self._orders.get(order.key) is not order:
                continue
            standing = order.standing()
            if order.num_pending:
                self._commands.append(OrderChanged(order=order.key, standing=standing))
            else:
                self._remove(order)
                self._commands.append(OrderEnded(order=order.key, standing=standing, failure=None))

    # --- the connection

    def connected(self, instance: NodeInstance) -> None:
        """A fresh connection: all that is not known to be at this very instance is offered."""
        self._is_connected = True
        if self._instance is not None and self._instance != instance:
            self._start_over()
        self._instance = instance
        self._offer(block for block, record in self._blocks.items() if record.state is _State.UNOFFERED)

    def _start_over(self) -> None:
        """The target restarted and has forgotten even what it acknowledged."""
        for order in self._orders.values():
            order.num_pending, order.unanswered = len(order.hashes), set(order.hashes)
            order.num_missing = order.num_acknowledged = 0
            for index, block in enumerate(order.hashes):
                if block not in self._blocks:
                    self._want_again(block)
                record = self._blocks[block]
                record.num_normal += order.is_normal and order not in record.orders
                record.orders[order] = index
            self._changed[order] = None

    def _want_again(self, block: BlockHash) -> None:
        record = self._blocks[block] = _Block(self._holds(block))
        if not record.present:
            self._evicted[block] = None

    def disconnected(self) -> None:
        """The connection is lost, with whatever was under way on it."""
        self._is_connected = False
        self._offers.clear()
        self._in_flight.clear()
        self._num_background_in_flight = 0
        self._held_back.clear()
        for record in self._blocks.values():
            self._set_state(record, _State.UNOFFERED)
        for order in self._orders.values():
            order.sendable.clear()
            order.is_queued = False
        self._turns.clear()
        self._background_turns.clear()
        self._commands = [command for command in self._commands if not isinstance(command, Send)]

    def _offer(self, blocks: Iterable[BlockHash]) -> None:
        chosen = tuple(blocks)
        for start in range(0, len(chosen), MAX_OFFER_HASHES):
            self._offer_some(chosen[start : start + MAX_OFFER_HASHES])

    def _offer_some(self, blocks: tuple[BlockHash, ...]) -> None:
        self._num_offers += 1
        self._offers[self._num_offers] = blocks
        records = [self._blocks[block] for block in blocks]
        for record in records:
            self._set_state(record, _State.OFFERED)
            record.offer, record.offered_present = self._num_offers, record.present
        present = tuple(record.present for record in records)
        self._commands.append(Send(message=Offer(offer=self._num_offers, hashes=blocks, present=present)))

    # --- the local index

    def block_held(self, block: BlockHash) -> bool:
        """The block has appeared here. False: that is nothing to any order."""
        record = self._blocks.get(block)
        if record is None or record.present:
            return False
        record.present, record.is_refused = True, False
        self._evicted.pop(block, None)
        self._count(record)
        if record.state is _State.LACKED:
            self._make_sendable(block, record)
        elif record.state is _State.ELSEWHERE:
            # Whoever was to send it may be waiting for it too: say that it can be had here.
            self._offer((block,))
        return True

    def block_gone(self, block: BlockHash) -> None:
        """The block was evicted here before it was sent; if it appears again it is sent then."""
        record = self._blocks.get(block)
        if record is not None and record.present:
            record.present = False
            self._evicted[block] = None
            self._count(record)

    def fail_evicted(self, *, now: Seconds, grace: Seconds) -> None:
        """Fails orders for a block that the target lacks, that was here, and that is gone for ``grace``. Call it often."""
        for block, missed_at in tuple(self._evicted.items()):
            record = self._blocks.get(block)
            if missed_at is None:
                self._evicted[block] = now
            elif record is not None and self._is_given_up(block, record) and now - missed_at >= grace:
                self._fail_orders_of(record, ErrorKind.BLOCKS_LOST, _EVICTED)

    def _is_given_up(self, block: BlockHash, record: _Block) -> bool:
        return record.state is _State.LACKED and not self._is_writing(block)

    def block_refused(self, block: BlockHash) -> None:
        """There was no room here to write the block, so it will hardly appear: orders fail if the target lacks it."""
        record = self._blocks.get(block)
        if record is None or record.present:
            return
        record.is_refused = True
        if record.state is _State.LACKED:
            self._fail_refused(record)

    def _fail_refused(self, record: _Block) -> None:
        self._fail_orders_of(record, ErrorKind.BLOCKS_LOST, _NO_ROOM)

    def _fail_orders_of(self, record: _Block, error: ErrorKind, reason: str) -> None:
        failure = OrderFailure(error=error, reason=reason)
        for order in tuple(record.orders):
            self.fail(order.key, failure)

    def _make_sendable(self, block: BlockHash, record: _Block) -> None:
        record.is_kept = True
        self._commands.append(Keep(hash=block))
        for order, index in record.orders.items():
            self._push(order, index, block)

    def _push(self, order: _Order, index: int, block: BlockHash) -> None:
        heappush(order.sendable, (index, block))
        if not order.is_queued:
            self._enqueue(order)

    # --- sending

    def next_block(self) -> BlockToSend | None:
        """The block to send now, or None if there is none or the window is full. Counts as sent from here on."""
        if not self._has_window(len(self._in_flight), self._window_bytes):
            return None
        sent = self._next_of(self._turns)
        if sent is None and self._has_window(self._num_background_in_flight, self.background_window):
            sent = self._next_of(self._background_turns)
        return sent

    def _has_window(self, num_used: int, window: Bytes) -> bool:
        return not num_used or (num_used + 1) * self._block_bytes <= window

    def _next_of(self, turns: deque[_Order]) -> BlockToSend | None:
        while turns:
            order = turns.popleft()
            block = self._pop_sendable(order)
            order.is_queued = block is not None
            if block is not None:
                turns.append(order)
                return self._launch(order, block)
        return None

    def _enqueue(self, order: _Order) -> None:
        order.is_queued = True
        (self._turns if order.is_normal else self._background_turns).append(order)

    def _unqueue(self, order: _Order) -> None:
        if order.is_queued:
            order.is_queued = False
            (self._turns if order.is_normal else self._background_turns).remove(order)

    def _pop_sendable(self, order: _Order) -> BlockHash | None:
        while order.sendable:
            _, block = heappop(order.sendable)
            record = self._blocks.get(block)
            if record is not None and record.state is _State.LACKED and record.present:
                return block
        return None

    def _launch(self, order: _Order, block: BlockHash) -> BlockToSend:
        self._set_state(self._blocks[block], _State.IN_FLIGHT)
        self._in_flight[block] = order.send_class
        self._num_background_in_flight += not order.is_normal
        order.sent_bytes += self._block_bytes
        return BlockToSend(hash=block, order=order.key)

    def _has_landed(self, block: BlockHash) -> None:
        self._num_background_in_flight -= self._in_flight.pop(block) is SendClass.BACKGROUND

    def put_back(self, sent: BlockToSend) -> None:
        """The block that ``next_block`` just named can't be leased now: it waits for ``retry_held_back``."""
        self._has_landed(sent.hash)
        self._set_state(self._blocks[sent.hash], _State.LACKED)
        self._orders[sent.order].sent_bytes -= self._block_bytes
        self._held_back[sent.hash] = None

    def retry_held_back(self) -> None:
        """There may be room for leases again."""
        held_back, self._held_back = self._held_back, {}
        for block in held_back:
            self._enqueue_if_lacked(block)

    def _enqueue_if_lacked(self, block: BlockHash) -> None:
        record = self._blocks.get(block)
        if record is not None and record.state is _State.LACKED and record.present:
            self._make_sendable(block, record)

    # --- what the target says

    def received(self, message: FromTarget) -> None:
        """Raises RemoteProtocolError: an answer to nothing we asked or sent."""
        match message:
            case OfferAnswer():
                self._answered(message)
            case Stored():
                self._landed(BlockHash(message.hash))
                self._at_target(BlockHash(message.hash))
            case Rejected():
                self._landed(BlockHash(message.hash))
                self._rejected(BlockHash(message.hash))
            case Deferred():
                self._landed(BlockHash(message.hash))
                self._deferred(BlockHash(message.hash))
            case Have():
                for block in message.hashes:
                    self._at_target(BlockHash(block))
            case Want():
                for block in message.hashes:
                    self._wanted(BlockHash(block))
            case Elsewhere():
                for block in message.hashes:
                    self._move(BlockHash(block), _State.LACKED, _State.ELSEWHERE)
            case Pong():
                pass
            case _:
                assert_never(message)

    def _answered(self, answer: OfferAnswer) -> None:
        blocks = self._offers.pop(answer.offer, None)
        if blocks is None:
            raise RemoteProtocolError(f"the target answers offer {answer.offer}, which is not open")
        lacked, elsewhere = set(answer.lacked), set(answer.elsewhere)
        if lacked & elsewhere or not lacked | elsewhere <= set(range(len(blocks))):
            raise RemoteProtocolError(f"the answer to offer {answer.offer} does not fit it")
        for index, block in enumerate(blocks):
            record = self._blocks.get(block)
            if record is None or record.offer != answer.offer or record.state is not _State.OFFERED:
                continue
            if index in lacked:
                self._lacked(block, record)
            elif index in elsewhere:
                self._elsewhere(block, record)
            else:
                self._gain(block, record)

    def _lacked(self, block: BlockHash, record: _Block) -> None:
        if block in self._in_flight:  # sent for an order that is gone, and not yet seen by the target when it answered
            self._set_state(record, _State.IN_FLIGHT)
            self._count_missing(block, record)
            return
        self._set_state(record, _State.LACKED)
        self._count_missing(block, record)
        if record.present:
            self._make_sendable(block, record)
        elif record.is_refused:
            self._fail_refused(record)

    def _elsewhere(self, block: BlockHash, record: _Block) -> None:
        self._set_state(record, _State.ELSEWHERE)
        self._count_missing(block, record)
        if record.present and not record.offered_present:
            self._offer((block,))

    def _count_missing(self, block: BlockHash, record: _Block) -> None:
        for order in record.orders:
            if block in order.unanswered:
                order.unanswered.discard(block)
                order.num_missing += 1
                self._changed[order] = None

    def _wanted(self, block: BlockHash) -> None:
        record = self._blocks.get(block)
        if record is not None and (record.state is _State.ELSEWHERE or record.state is _State.OFFERED):
            self._lacked(block, record)

    def _move(self, block: BlockHash, before: _State, after: _State) -> None:
        record = self._blocks.get(block)
        if record is not None and record.state is before:
            self._set_state(record, after)

    def _landed(self, block: BlockHash) -> None:
        if block not in self._in_flight:
            raise RemoteProtocolError(f"the target confirms block {block.hex()[:12]}, which is not in flight")
        self._has_landed(block)

    def _deferred(self, block: BlockHash) -> None:
        self._withdraw_if_unwanted(block)
        self._move(block, _State.IN_FLIGHT, _State.ELSEWHERE)

    def _withdraw_if_unwanted(self, block: BlockHash) -> None:
        """The target still expects a block that no order wants any more since it went on the line."""
        if block not in self._blocks:
            self._commands.append(Send(message=Withdraw(hashes=(block,))))

    def _rejected(self, block: BlockHash) -> None:
        self._withdraw_if_unwanted(block)
        record = self._blocks.get(block)
        if record is None or record.state is not _State.IN_FLIGHT:
            return
        self._set_state(record, _State.LACKED)
        record.num_rejections += 1
        if record.num_rejections < MAX_REJECTIONS:
            self._enqueue_if_lacked(block)
            return
        self._fail_orders_of(
            record, ErrorKind.NODE_FAILED, f"a block arrived damaged {MAX_REJECTIONS} times at the target"
        )

    def _at_target(self, block: BlockHash) -> None:
        record = self._blocks.get(block)
        if record is None:
            return
        if record.state is _State.OFFERED:
            # An offer is under way and would leave the target with a claim on us.
            self._commands.append(Send(message=Withdraw(hashes=(block,))))
        self._gain(block, record)

    def _gain(self, block: BlockHash, record: _Block) -> None:
        self._forget(block, record)
        for order in record.orders:
            order.num_pending -= 1
            if block in order.unanswered:
                order.unanswered.discard(block)
            else:
                order.num_acknowledged += 1
            self._changed[order] = None

    def _set_state(self, record: _Block, state: _State) -> None:
        record.state = state
        if record.counted is not None or state is _State.LACKED or state is _State.IN_FLIGHT:
            self._count(record)

    def _count(self, record: _Block) -> None:
        before, now = record.counted, record.counts_as()
        if before is not now:
            record.counted = now
            self._num_normal_to_send += (now is SendClass.NORMAL) - (before is SendClass.NORMAL)
            self._num_background_to_send += (now is SendClass.BACKGROUND) - (before is SendClass.BACKGROUND)
