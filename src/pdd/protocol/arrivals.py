"""The target's side of replication: of several sources that offer the same block, exactly one is to send it.

A source that was told "lacked" has the *claim* to a block. A claim whose source merely expects to get the block (its
prefill runs) passes to one that has it; when a claim's source withdraws or is lost, the next one that offered the block
is asked. Blocks that somebody offered and nobody has the claim to are *parked*: they are being written locally, or
found no room. Sans-IO: callers report what happened, then send ``take_messages()``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType, Protocol

from pdd.core.blocks import BlockHash
from pdd.core.errors import RemoteProtocolError
from pdd.protocol.peer import (
    Deferred,
    Elsewhere,
    FromTarget,
    Have,
    Offer,
    OfferAnswer,
    Rejected,
    Stored,
    Want,
    Withdraw,
)

SourceKey = NewType("SourceKey", str)
"""One connection of one source node, unique in this node."""


class Holdings(Protocol):
    """What this side needs to know of the index."""

    def holds(self, block: BlockHash) -> bool: ...

    def is_writing(self, block: BlockHash) -> bool: ...

    def has_room_for_arrival(self, block: BlockHash) -> bool: ...


class Arrivals:
    """All sources of one node."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._offered: dict[BlockHash, dict[SourceKey, bool]] = {}
        """Who offers the block, and whether it holds it already; only blocks that are not held here."""
        self._by_source: dict[SourceKey, dict[BlockHash, None]] = {}
        self._claims: dict[BlockHash, SourceKey] = {}
        self._parked: dict[BlockHash, None] = {}
        self._messages: list[tuple[SourceKey, FromTarget]] = []

    @property
    def num_open(self) -> int:
        """Blocks that somebody offered and that are not here yet."""
        return len(self._offered)

    @property
    def num_parked(self) -> int:
        """Those of them that nobody is to send now."""
        return len(self._parked)

    def num_offered_by(self, source: SourceKey) -> int:
        """Blocks that the source offered and that are not here yet."""
        return len(self._by_source.get(source, ()))

    def take_messages(self) -> list[tuple[SourceKey, FromTarget]]:
        """What is to be sent, in order, each to its source. Each message is returned once."""
        messages, self._messages = self._messages, []
        return messages

    # --- what sources say

    def offered(self, source: SourceKey, offer: Offer) -> None:
        """Answers the offer. Raises RemoteProtocolError: its two lists differ in length."""
        if len(offer.hashes) != len(offer.present):
            raise RemoteProtocolError(
                f"offer {offer.offer} names {len(offer.hashes)} blocks, {len(offer.present)} states"
            )
        lacked: list[int] = []
        elsewhere: list[int] = []
        for index, (block, present) in enumerate(zip(offer.hashes, offer.present, strict=True)):
            if self._holdings.holds(BlockHash(block)):
                continue
            is_claimed = self._consider(source, BlockHash(block), present=present)
            (lacked if is_claimed else elsewhere).append(index)
        answer = OfferAnswer(offer=offer.offer, lacked=tuple(lacked), elsewhere=tuple(elsewhere))
        self._messages.append((source, answer))

    def _consider(self, source: SourceKey, block: BlockHash, *, present: bool) -> bool:
        """Whether the source gets (or keeps) the claim."""
        self._note(source, block, present=present)
        claimant = self._claims.get(block)
        if claimant == source:
            return True
        if claimant is None and not self._holdings.is_writing(block):
            self._claim(source, block)
            return True
        if claimant is None:
            self._parked[block] = None
            return False
        if present and not self._offered[block][claimant]:
            self._claim(source, block)
            self._messages.append((claimant, Elsewhere(hashes=(block,))))
            return True
        return False

    def _note(self, source: SourceKey, block: BlockHash, *, present: bool) -> None:
        self._offered.setdefault(block, {})[source] = present
        self._by_source.setdefault(source, {})[block] = None

    def _claim(self, source: SourceKey, block: BlockHash) -> None:
        self._claims[block] = source
        self._parked.pop(block, None)

    def withdrawn(self, source: SourceKey, withdraw: Withdraw) -> None:
        """The source won't send these; others may."""
        self._drop(source, (BlockHash(block) for block in withdraw.hashes))

    def lost(self, source: SourceKey) -> None:
        """The source's connection has ended."""
        self._drop(source, tuple(self._by_source.get(source, ())))
        self._messages = [(to, message) for to, message in self._messages if to != source]

    def _drop(self, source: SourceKey, blocks: Iterable[BlockHash]) -> None:
        for block in blocks:
            sources = self._offered.get(block)
            if sources is None or sources.pop(source, None) is None:
                continue
            self._unnote(source, block)
            if self._claims.get(block) == source:
                del self._claims[block]
                self._parked[block] = None
            if not sources:
                del self._offered[block]
                self._parked.pop(block, None)
        self.reconsider()

    def _unnote(self, source: SourceKey, block: BlockHash) -> None:
        del self._by_source[source][block]
        if not self._by_source[source]:
            del self._by_source[source]

    # --- what happens to a block frame

    def arriving(self, source: SourceKey, block: BlockHash) -> None:
        """The frame has a slot and is being received; whoever else was to send this block should not."""
        claimant = self._claims.get(block)
        self._note(source, block, present=True)
        self._claim(source, block)
        if claimant is not None and claimant != source:
            self._messages.append((claimant, Elsewhere(hashes=(block,))))

    def stored(self, source: SourceKey, block: BlockHash) -> None:
        """The frame was checked and committed, or the block was held already and the frame dropped."""
        self._messages.append((source, Stored(hash=block)))
        self._settle(block, told=source)

    def damaged(self, source: SourceKey, block: BlockHash) -> None:
        """The frame's digest did not fit; its source keeps the claim and sends it again."""
        self._messages.append((source, Rejected(hash=block)))

    def deferred(self, source: SourceKey, block: BlockHash) -> None:
        """The frame found no slot and was dropped."""
        self._note(source, block, present=True)
        self._messages.append((source, Deferred(hash=block)))
        if self._claims.get(block) == source:
            del self._claims[block]
        if block not in self._claims:
            self._parked[block] = None

    # --- what happens in the local index

    def block_held(self, block: BlockHash) -> None:
        """A local engine committed the block: whoever offered it need not send it."""
        self._settle(block, told=None)

    def _settle(self, block: BlockHash, *, told: SourceKey | None) -> None:
        for source in self._offered.pop(block, {}):
            self._unnote(source, block)
            if source != told:
                self._messages.append((source, Have(hashes=(block,))))
        self._claims.pop(block, None)
        self._parked.pop(block, None)

    def reconsider(self) -> None:
        """Room or a slot may have become free: asks for parked blocks that can be taken now."""
        for block in tuple(self._parked):
            if not self._holdings.is_writing(block) and self._holdings.has_room_for_arrival(block):
                self._ask_next(block)

    def _ask_next(self, block: BlockHash) -> None:
        sources = self._offered[block]
        source = next((source for source, present in sources.items() if present), next(iter(sources)))
        self._claim(source, block)
        self._messages.append((source, Want(hashes=(block,))))

    def check_integrity(self) -> None:
        """Asserts that every offered block is claimed or parked, and that the books agree. For tests."""
        assert set(self._claims) | set(self._parked) == set(self._offered)
        assert not set(self._claims) & set(self._parked)
        assert all(self._claims[block] in self._offered[block] for block in self._claims)
        pairs = {(source, block) for block, sources in self._offered.items() for source in sources}
        assert pairs == {(source, block) for source, blocks in self._by_source.items() for block in blocks}
