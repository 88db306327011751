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

A lacked block that was here and has been evicted may come back: someone computes it again. Nobody is obliged to,
though, so callers fail orders for which that takes too long (``fail_evicted``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from pdd.core.blocks import BlockHash
from pdd.core.errors import LocalProtocolError, RemoteProtocolError
from pdd.core.ids import NodeInstance
from pdd.core.request import SendClass
from pdd.core.units import Bytes, Seconds
from pdd.protocol.orders import (
    BlockToSend,
    Command,
    Keep,
    LetGo,
    OrderChanged,
    OrderEnded,
    OrderFailure,
    OrderKey,
    Send,
    Standing,
)
from pdd.protocol.peer import (
    MAX_OFFER_HASHES,
    Deferred,
    Elsewhere,
    ErrorKind,
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
from pdd.protocol.send_queue import BlockState, SendQueue, StandingOrder, WantedBlock

MAX_REJECTIONS = 3
"""A line that damages one block this often is broken, not unlucky."""
_EVICTED = "a block of this order was evicted at the source before it was sent"
_NO_ROOM = "the source's arena is full: a block of this order found no room in it"


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
        self._block_bytes = block_bytes
        self._holds = holds
        self._is_writing = is_writing
        self._blocks: dict[BlockHash, WantedBlock] = {}
        self._orders: dict[OrderKey, StandingOrder] = {}
        self.queue = SendQueue(self._blocks, block_bytes=block_bytes, window_bytes=window_bytes)
        """What is to be sent; callers read it and set its ``background_window``."""
        self._offers: dict[int, tuple[BlockHash, ...]] = {}
        self._num_offers = 0
        self._held_back: dict[BlockHash, None] = {}
        self._evicted: dict[BlockHash, Seconds | None] = {}
        """Wanted blocks that were here once, and when ``fail_evicted`` first missed them."""
        self._num_named = 0
        self._instance: NodeInstance | None = None
        self._is_connected = False
        self._changed: dict[StandingOrder, None] = {}
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
    def awaits_answer(self) -> bool:
        """Whether the target owes an answer."""
        return bool(self.queue.num_in_flight or self._offers)

    @property
    def misses_evicted(self) -> bool:
        """Whether ``fail_evicted`` has anything to do."""
        return bool(self._evicted)

    @property
    def holds_back(self) -> bool:
        """Whether ``retry_held_back`` has anything to do."""
        return bool(self._held_back)

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
        order = StandingOrder(key, chain, send_class, num_pending=len(chain))
        self._orders[key] = order
        self._num_named += len(chain)
        self._want_all(order)
        if self._is_connected:
            self._offer(block for block in chain if self._blocks[block].state is BlockState.UNOFFERED)
        self._changed[order] = None

    def _want_all(self, order: StandingOrder) -> None:
        is_normal = order.is_normal
        for index, block in enumerate(order.hashes):
            record = self._blocks.get(block)
            if record is None:
                self._blocks[block] = WantedBlock(self._holds(block), BlockState.UNOFFERED, {order: index}, is_normal)
                order.unanswered.add(block)
                continue
            record.orders[order] = index
            record.num_normal += is_normal
            if record.state is BlockState.UNOFFERED or record.state is BlockState.OFFERED:
                order.unanswered.add(block)
                continue
            order.num_missing += 1
            self.queue.count(record)
            if record.state is BlockState.LACKED and record.present:
                self.queue.push(order, index, block)

    def reclassify(self, key: OrderKey, send_class: SendClass) -> None:
        """The order goes on in another class. Unknown ones are ignored."""
        order = self._orders.get(key)
        if order is None or order.send_class is send_class:
            return
        self.queue.reclassify(order, send_class)
        for block in order.hashes:
            record = self._blocks.get(block)
            if record is not None and order in record.orders:
                record.num_normal += 1 if order.is_normal else -1
                self.queue.count(record)
        self._changed[order] = None

    def cancel(self, key: OrderKey) -> None:
        """Ends an order; blocks that only it wanted are withdrawn. Unknown ones are ignored."""
        order = self._orders.get(key)
        if order is not None:
            self._remove(order)
            self._abandon(order)

    def _remove(self, order: StandingOrder) -> None:
        del self._orders[order.key]
        self._num_named -= len(order.hashes)
        self.queue.leave(order)

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

    def _abandon(self, order: StandingOrder) -> None:
        withdrawn: list[BlockHash] = []
        for block in order.hashes:
            record = self._blocks.get(block)
            if record is None or record.orders.pop(order, None) is None:
                continue
            record.num_normal -= order.is_normal
            self.queue.count(record)
            if record.orders:
                continue
            if record.state is not BlockState.UNOFFERED and record.state is not BlockState.IN_FLIGHT:
                withdrawn.append(block)
            self._forget(block, record)
        for start in range(0, len(withdrawn), MAX_OFFER_HASHES):
            self._commands.append(Send(message=Withdraw(hashes=tuple(withdrawn[start : start + MAX_OFFER_HASHES]))))

    def _forget(self, block: BlockHash, record: WantedBlock) -> None:
        self._set_state(record, BlockState.UNOFFERED)
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
        self._offer(block for block, record in self._blocks.items() if record.state is BlockState.UNOFFERED)

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
        record = self._blocks[block] = WantedBlock(self._holds(block))
        if not record.present:
            self._evicted[block] = None

    def disconnected(self) -> None:
        """The connection is lost, with whatever was under way on it."""
        self._is_connected = False
        self._offers.clear()
        self.queue.clear()
        self._held_back.clear()
        for record in self._blocks.values():
            self._set_state(record, BlockState.UNOFFERED)
        for order in self._orders.values():
            order.sendable.clear()
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
            self._set_state(record, BlockState.OFFERED)
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
        self.queue.count(record)
        if record.state is BlockState.LACKED:
            self._make_sendable(block, record)
        elif record.state is BlockState.ELSEWHERE:
            # Whoever was to send it may be waiting for it too: say that it can be had here.
            self._offer((block,))
        return True

    def block_gone(self, block: BlockHash) -> None:
        """The block was evicted here before it was sent; if it appears again it is sent then."""
        record = self._blocks.get(block)
        if record is not None and record.present:
            record.present = False
            self._evicted[block] = None
            self.queue.count(record)

    def fail_evicted(self, *, now: Seconds, grace: Seconds) -> None:
        """Fails orders for a block that the target lacks, that was here, and that is gone for ``grace``.

        Call it often.
        """
        for block, missed_at in tuple(self._evicted.items()):
            record = self._blocks.get(block)
            if missed_at is None:
                self._evicted[block] = now
            elif record is not None and self._is_given_up(block, record) and now - missed_at >= grace:
                self._fail_orders_of(record, ErrorKind.BLOCKS_LOST, _EVICTED)

    def _is_given_up(self, block: BlockHash, record: WantedBlock) -> bool:
        return record.state is BlockState.LACKED and not self._is_writing(block)

    def block_refused(self, block: BlockHash) -> None:
        """There was no room here to write the block, so it will hardly appear: orders fail if the target lacks it."""
        record = self._blocks.get(block)
        if record is None or record.present:
            return
        record.is_refused = True
        if record.state is BlockState.LACKED:
            self._fail_refused(record)

    def _fail_refused(self, record: WantedBlock) -> None:
        self._fail_orders_of(record, ErrorKind.BLOCKS_LOST, _NO_ROOM)

    def _fail_orders_of(self, record: WantedBlock, error: ErrorKind, reason: str) -> None:
        failure = OrderFailure(error=error, reason=reason)
        for order in tuple(record.orders):
            self.fail(order.key, failure)

    def _make_sendable(self, block: BlockHash, record: WantedBlock) -> None:
        record.is_kept = True
        self._commands.append(Keep(hash=block))
        for order, index in record.orders.items():
            self.queue.push(order, index, block)

    # --- sending

    def next_block(self) -> BlockToSend | None:
        """The block to send now, or None if there is none or the window is full. Counts as sent from here on."""
        taken = self.queue.take()
        if taken is None:
            return None
        order, block = taken
        self._set_state(self._blocks[block], BlockState.IN_FLIGHT)
        order.sent_bytes += self._block_bytes
        return BlockToSend(hash=block, order=order.key)

    def put_back(self, sent: BlockToSend) -> None:
        """The block that ``next_block`` just named can't be leased now: it waits for ``retry_held_back``."""
        self.queue.landed(sent.hash)
        self._set_state(self._blocks[sent.hash], BlockState.LACKED)
        self._orders[sent.order].sent_bytes -= self._block_bytes
        self._held_back[sent.hash] = None

    def retry_held_back(self) -> None:
        """There may be room for leases again."""
        held_back, self._held_back = self._held_back, {}
        for block in held_back:
            self._enqueue_if_lacked(block)

    def _enqueue_if_lacked(self, block: BlockHash) -> None:
        record = self._blocks.get(block)
        if record is not None and record.state is BlockState.LACKED and record.present:
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
                    self._move(BlockHash(block), BlockState.LACKED, BlockState.ELSEWHERE)
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
            if record is None or record.offer != answer.offer or record.state is not BlockState.OFFERED:
                continue
            if index in lacked:
                self._lacked(block, record)
            elif index in elsewhere:
                self._elsewhere(block, record)
            else:
                self._gain(block, record)

    def _lacked(self, block: BlockHash, record: WantedBlock) -> None:
        if self.queue.is_in_flight(
            block
        ):  # sent for an order that is gone, and not yet seen by the target when it answered
            self._set_state(record, BlockState.IN_FLIGHT)
            self._count_missing(block, record)
            return
        self._set_state(record, BlockState.LACKED)
        self._count_missing(block, record)
        if record.present:
            self._make_sendable(block, record)
        elif record.is_refused:
            self._fail_refused(record)

    def _elsewhere(self, block: BlockHash, record: WantedBlock) -> None:
        self._set_state(record, BlockState.ELSEWHERE)
        self._count_missing(block, record)
        if record.present and not record.offered_present:
            self._offer((block,))

    def _count_missing(self, block: BlockHash, record: WantedBlock) -> None:
        for order in record.orders:
            if block in order.unanswered:
                order.unanswered.discard(block)
                order.num_missing += 1
                self._changed[order] = None

    def _wanted(self, block: BlockHash) -> None:
        record = self._blocks.get(block)
        if record is not None and (record.state is BlockState.ELSEWHERE or record.state is BlockState.OFFERED):
            self._lacked(block, record)

    def _move(self, block: BlockHash, before: BlockState, after: BlockState) -> None:
        record = self._blocks.get(block)
        if record is not None and record.state is before:
            self._set_state(record, after)

    def _landed(self, block: BlockHash) -> None:
        if not self.queue.is_in_flight(block):
            raise RemoteProtocolError(f"the target confirms block {block.hex()[:12]}, which is not in flight")
        self.queue.landed(block)

    def _deferred(self, block: BlockHash) -> None:
        self._withdraw_if_unwanted(block)
        self._move(block, BlockState.IN_FLIGHT, BlockState.ELSEWHERE)

    def _withdraw_if_unwanted(self, block: BlockHash) -> None:
        """The target still expects a block that no order wants any more since it went on the line."""
        if block not in self._blocks:
            self._commands.append(Send(message=Withdraw(hashes=(block,))))

    def _rejected(self, block: BlockHash) -> None:
        self._withdraw_if_unwanted(block)
        record = self._blocks.get(block)
        if record is None or record.state is not BlockState.IN_FLIGHT:
            return
        self._set_state(record, BlockState.LACKED)
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
        if record.state is BlockState.OFFERED:
            # An offer is under way and would leave the target with a claim on us.
            self._commands.append(Send(message=Withdraw(hashes=(block,))))
        self._gain(block, record)

    def _gain(self, block: BlockHash, record: WantedBlock) -> None:
        self._forget(block, record)
        for order in record.orders:
            order.num_pending -= 1
            if block in order.unanswered:
                order.unanswered.discard(block)
            else:
                order.num_acknowledged += 1
            self._changed[order] = None

    def _set_state(self, record: WantedBlock, state: BlockState) -> None:
        record.state = state
        if record.counted is not None or state is BlockState.LACKED or state is BlockState.IN_FLIGHT:
            self.queue.count(record)
