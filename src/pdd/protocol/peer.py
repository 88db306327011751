"""What is said on a KV node's connections, and who may talk to whom.

Every connection begins with the caller's ``Hello``, answered by ``Welcome`` or ``Refused``. What may follow depends on
who calls: a node (sends blocks), a router (orders, watches) or an engine of this machine (leases, writes).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec

from pdd.core.blocks import BLOCK_HASH_BYTES
from pdd.core.errors import RemoteProtocolError
from pdd.core.ids import NodeId, NodeInstance
from pdd.core.request import SendClass

PROTOCOL_VERSION = 2

MAX_OFFER_HASHES = 4096
"""What one message from a source may name, so that no message keeps a node busy for long."""
_MIN_WANTED_BLOCKS = 65_536

WireHash = Annotated[bytes, msgspec.Meta(min_length=BLOCK_HASH_BYTES, max_length=BLOCK_HASH_BYTES)]
"""A ``core.blocks.BlockHash``."""
OfferHashes = Annotated[tuple[WireHash, ...], msgspec.Meta(max_length=MAX_OFFER_HASHES)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Strict: a field that we don't know means a peer that we don't understand."""


def max_wanted_blocks(capacity_blocks: int) -> int:
    """How many different blocks one source may want to send at once to a target of this capacity.

    Several times what fits: orders may wait for room. A target allows twice this, since what a source has given up may
    still be on the line.
    """
    return max(_MIN_WANTED_BLOCKS, 4 * capacity_blocks)


# --- handshake


class PeerKind(StrEnum):
    """Who calls."""

    NODE = "node"
    ROUTER = "router"
    ENGINE = "engine"


class Hello(_Message, frozen=True, forbid_unknown_fields=False):
    """The caller's first message. ``instance`` differs after each restart of its process.

    Lenient, so that a later version's greeting is refused for its version and not for its fields.
    """

    version: int
    kind: PeerKind
    name: Name
    instance: Name
    fingerprint: bytes
    kv_format: str


class Welcome(_Message, frozen=True):
    """The node accepts. To an engine the arena's descriptor comes with it, over the Unix socket."""

    node: NodeId
    instance: NodeInstance
    block_bytes: int
    capacity_blocks: int


class Refused(_Message, frozen=True, forbid_unknown_fields=False):
    """The node does not accept, and hangs up. ``reason`` is for people."""

    reason: str


HandshakeAnswer = Welcome | Refused


# --- both ways, on connections that may be long


class Ping(_Message, frozen=True):
    """Are you there?"""


class Pong(_Message, frozen=True):
    """Yes."""


# --- source node -> target node


class Offer(_Message, frozen=True):
    """Which of these do you lack? ``present[i]`` says whether the source holds ``hashes[i]`` already."""

    offer: int
    hashes: OfferHashes
    present: tuple[bool, ...]


class Withdraw(_Message, frozen=True):
    """These offered blocks won't come from this source after all."""

    hashes: OfferHashes


FromSource = Offer | Withdraw | Ping


# --- target node -> source node


class OfferAnswer(_Message, frozen=True):
    """Indices into the offer: ``lacked`` are to be sent by this source, ``elsewhere`` come from another one (wait for
    ``Have`` or ``Want``); the target holds the rest.
    """

    offer: int
    lacked: tuple[int, ...]
    elsewhere: tuple[int, ...]


class Stored(_Message, frozen=True):
    """The block that arrived is checked and held (or was held already)."""

    hash: WireHash


class Rejected(_Message, frozen=True):
    """The block that arrived was damaged; nothing of it is kept. Send it again."""

    hash: WireHash


class Deferred(_Message, frozen=True):
    """The block that arrived could not be kept: it is being written locally or there was no room. Wait for ``Have`` or
    ``Want``.
    """

    hash: WireHash


class Have(_Message, frozen=True):
    """Offered blocks that came from elsewhere meanwhile: don't send them."""

    hashes: tuple[WireHash, ...]


class Want(_Message, frozen=True):
    """Offered blocks that were to come from elsewhere and won't: send them."""

    hashes: tuple[WireHash, ...]


class Elsewhere(_Message, frozen=True):
    """Offered blocks that another source will send after all: wait for ``Have`` or ``Want``."""

    hashes: tuple[WireHash, ...]


FromTarget = OfferAnswer | Stored | Rejected | Deferred | Have | Want | Elsewhere | Pong


# --- router -> node


class PlaceOrder(_Message, frozen=True):
    """``core.replication.ReplicationOrder`` on the wire."""

    order: Name
    target: Name
    hashes: tuple[WireHash, ...]
    send_class: SendClass


class ReclassifyOrder(_Message, frozen=True):
    """The order goes on in another class; unknown ones are ignored."""

    order: Name
    send_class: SendClass


class CancelOrder(_Message, frozen=True):
    """Ends an order; unknown ones are ignored."""

    order: Name


class StartWatch(_Message, frozen=True):
    """``core.replication.Watch`` on the wire."""

    watch: Name
    hashes: tuple[WireHash, ...]
    reserve_blocks: Count


class EndWatch(_Message, frozen=True):
    """Ends a watch; unknown ones are ignored."""

    watch: Name


class PinBlocks(_Message, frozen=True):
    """``core.replication.Pin`` on the wire; replaces the pin of this name."""

    pin: Name
    hashes: tuple[WireHash, ...]


class UnpinBlocks(_Message, frozen=True):
    """Ends a pin; unknown ones are ignored."""

    pin: Name


class AskStats(_Message, frozen=True):
    """Answered by ``StatsAnswer`` with the same number."""

    request: int


FromRouter = (
    PlaceOrder | ReclassifyOrder | CancelOrder | StartWatch | EndWatch | PinBlocks | UnpinBlocks | AskStats | Ping
)


# --- node -> router


class ErrorKind(StrEnum):
    """Which error of ``core.errors`` the far side shall raise."""

    NODE_FAILED = "node_failed"
    INCOMPATIBLE = "incompatible"
    CAPACITY_EXHAUSTED = "capacity_exhausted"
    CONTEXT_TOO_LONG = "context_too_long"
    BLOCKS_LOST = "blocks_lost"


class OrderProgress(_Message, frozen=True):
    """``core.replication.ReplicationProgress`` on the wire."""

    order: Name
    num_missing: int | None
    num_acknowledged: int
    sent_bytes: int
    rate: float | None
    backlog: int
    background_backlog: int
    done: bool


class OrderFailed(_Message, frozen=True):
    """The order has ended without success."""

    order: Name
    error: ErrorKind
    reason: str


class WatchReady(_Message, frozen=True):
    """``core.replication.Readiness`` on the wire."""

    watch: Name
    num_ready: int


class WatchRefused(_Message, frozen=True):
    """There is no such watch: its reservation can't be met."""

    watch: Name
    error: ErrorKind
    reason: str


class StatsAnswer(_Message, frozen=True):
    """``core.replication.NodeStats`` on the wire."""

    request: int
    capacity_blocks: int
    held_blocks: int
    leased_blocks: int
    reserved_blocks: int
    writing_blocks: int
    orders: int
    watches: int
    block_bytes: int
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    evictions: int
    digest_failures: int
    pinned_blocks: int


FromNode = OrderProgress | OrderFailed | WatchReady | WatchRefused | StatsAnswer | Pong


# --- engine -> its node, one answer per request


class WireSlot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, array_like=True):
    """``index.WriteSlot`` on the wire."""

    hash: WireHash
    slot: int
    generation: int


class LeaseBlocks(_Message, frozen=True):
    """Lease the longest held prefix of ``hashes`` under a number that this engine chose."""

    lease: int
    hashes: tuple[WireHash, ...]


class ReleaseLease(_Message, frozen=True):
    """Answered by ``Done``."""

    lease: int


class BeginWrite(_Message, frozen=True):
    """Answered by ``Slots``: those of ``hashes`` that are neither held nor being written, as far as there is room."""

    hashes: tuple[WireHash, ...]


class CommitWrite(_Message, frozen=True):
    """Answered by ``Done``; stale slots are ignored."""

    slots: tuple[WireSlot, ...]


class AbortWrite(_Message, frozen=True):
    """Answered by ``Done``; stale slots are ignored."""

    slots: tuple[WireSlot, ...]


FromEngine = LeaseBlocks | ReleaseLease | BeginWrite | CommitWrite | AbortWrite


class Leased(_Message, frozen=True):
    """The slots of the leased prefix, in order."""

    slots: tuple[int, ...]


class Slots(_Message, frozen=True):
    """Slots to fill."""

    slots: tuple[WireSlot, ...]


class Done(_Message, frozen=True):
    """It is done."""


ToEngine = Leased | Slots | Done

# --- decoding

MessageT = TypeVar("MessageT")


class MessageDecoder(Generic[MessageT]):
    """Decodes what may come in one direction of one kind of connection. Stateless."""

    def __init__(self, union: object) -> None:
        self._decoder = msgspec.msgpack.Decoder[Any](cast(Any, union))

    def decode(self, body: bytes | bytearray | memoryview) -> MessageT:
        """Raises RemoteProtocolError: not one of the allowed messages."""
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"the peer sent a message that this side does not allow here: {error}") from error


HELLO = MessageDecoder[Hello](Hello)
HANDSHAKE_ANSWER = MessageDecoder[HandshakeAnswer](HandshakeAnswer)
FROM_SOURCE = MessageDecoder[FromSource](FromSource)
FROM_TARGET = MessageDecoder[FromTarget](FromTarget)
FROM_ROUTER = MessageDecoder[FromRouter](FromRouter)
FROM_NODE = MessageDecoder[FromNode](FromNode)
FROM_ENGINE = MessageDecoder[FromEngine](FromEngine)
TO_ENGINE = MessageDecoder[ToEngine](ToEngine)
