"""Which conversations live, and where: a prompt that extends a stored answer goes back to the workers that hold its KV.

A conversation is known by the hash of the last full block of prompt + answer, which names all tokens before it, too. It
is forgotten some time after its last turn (``conversation_ttl_s``), or when there are too many; then its pin goes as
well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, PinId, WorkerId
from pdd.core.replication import Pin
from pdd.core.request import Role
from pdd.core.units import Seconds

MAX_CONVERSATIONS = 16_384


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Conversation:
    """What is known after a turn: who served it, and what the next one needs.

    ``main_node`` is the node at which its blocks are pinned: ``num_pinned`` of its ``num_blocks``, fewer after a turn
    whose KV did not go there (``last_filtered``).
    """

    tip: BlockHash
    workers: Mapping[Role, WorkerId]
    main_node: NodeId | None
    num_blocks: int
    num_pinned: int
    last_filtered: bool
    last_turn_at: Seconds
    pin: PinId | None

    @property
    def prefill(self) -> WorkerId | None:
        return self.workers.get(Role.PREFILL)

    @property
    def relay_decode(self) -> WorkerId | None:
        return self.workers.get(Role.RELAY_DECODE)

    @property
    def main_decode(self) -> WorkerId | None:
        return self.workers.get(Role.MAIN_DECODE)


class Pins(Protocol):
    """Notes at once what nodes shall keep; that they are told, and when, is its own matter."""

    def want(self, node: NodeId, pin: Pin, /) -> None: ...
    def drop(self, node: NodeId, pin: PinId, /) -> None: ...


class Conversations:
    """All conversations of a router, the one that rested longest first."""

    def __init__(self, pins: Pins, *, ttl: Seconds, max_conversations: int = MAX_CONVERSATIONS) -> None:
        self._pins = pins
        self._ttl = ttl
        self._max = max_conversations
        self._by_tip: OrderedDict[BlockHash, Conversation] = OrderedDict()
        self._num_pins = 0

    def num_live(self, now: Seconds) -> int:
        self._expire(now)
        return len(self._by_tip)

    def find(self, hashes: Sequence[BlockHash], now: Seconds) -> Conversation | None:
        """The longest conversation that a prompt with these blocks extends. Being found keeps it alive."""
        self._expire(now)
        for tip in reversed(hashes):
            if tip in self._by_tip:
                self._by_tip.move_to_end(tip)
                self._by_tip[tip] = found = replace(self._by_tip[tip], last_turn_at=now)
                return found
        return None

    def remember(
        self,
        hashes: Sequence[BlockHash],
        now: Seconds,
        *,
        seats: Mapping[Role, WorkerId],
        main_node: NodeId | None,
        filtered: bool,
        previous: Conversation | None,
    ) -> None:
        """A turn is over: ``hashes`` are the full blocks of its prompt + answer, ``seats`` who served it.

        ``main_node`` is where their KV is or will be: there they are pinned. None: nowhere in cluster B; what was
        pinned stays so. ``previous`` is what ``find`` said when the turn began: this takes its place, unless it has
        expired or another branch of it was faster.
        """
        if not hashes:
            return
        before = None if previous is None else self._by_tip.pop(previous.tip, None)
        kept = self._by_tip.pop(hashes[-1], None)  # the same turn again, word for word
        if kept is not None:
            self._unpin(kept)
        turn = Conversation(
            tip=hashes[-1],
            workers=seats if before is None else {**before.workers, **seats},
            main_node=None if before is None else before.main_node,
            num_blocks=len(hashes),
            num_pinned=0 if before is None else before.num_pinned,
            last_filtered=filtered,
            last_turn_at=now,
            pin=None if before is None else before.pin,
        )
        self._by_tip[turn.tip] = turn if main_node is None else self._pinned(turn, main_node, tuple(hashes))
        self._expire(now)

    def _pinned(self, turn: Conversation, node: NodeId, hashes: tuple[BlockHash, ...]) -> Conversation:
        if turn.main_node != node:
            self._unpin(turn)
        name = turn.pin if turn.pin is not None and turn.main_node == node else self._next_pin()
        self._pins.want(node, Pin(pin=name, hashes=hashes))
        return replace(turn, main_node=node, num_pinned=len(hashes), pin=name)

    def _unpin(self, conversation: Conversation) -> None:
        if conversation.pin is not None and conversation.main_node is not None:
            self._pins.drop(conversation.main_node, conversation.pin)

    def _next_pin(self) -> PinId:
        self._num_pins += 1
        return PinId(f"conversation-{self._num_pins}")

    def _expire(self, now: Seconds) -> None:
        """The order of ``_by_tip`` is that of the last turns."""
        rested = now - self._ttl
        while self._by_tip:
            oldest = next(iter(self._by_tip.values()))
            if oldest.last_turn_at >= rested and len(self._by_tip) <= self._max:
                return
            self._unpin(self._by_tip.pop(oldest.tip))
