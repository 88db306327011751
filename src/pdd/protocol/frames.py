"""Frames on the wire: bytes to values and back, nothing else.

::

    header   8 bytes   b"PD", frame version (1), kind (1), body length (4, big-endian)
    CONTROL            body: one msgpack message of ``protocol.peer``
    BLOCK              body: block hash (32), xxh3-128 digest of the payload (16), payload (exactly one block)

Bodies are bounded before anything is allocated: a control body by ``MAX_CONTROL_BYTES``, a block body by the KV format.
Anything else is the peer's fault: RemoteProtocolError, and the connection is closed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import msgspec
import xxhash

from pdd.core.blocks import BLOCK_HASH_BYTES, BlockHash
from pdd.core.errors import Incompatible, LocalProtocolError, RemoteProtocolError

FRAME_VERSION = 1
MAX_CONTROL_BYTES = 4 * 1024 * 1024
"""An order over a million tokens in blocks of 16 is 2.2 MB."""
MAX_HELLO_BYTES = 64 * 1024
"""Until the handshake is over a peer is nobody, and gets no more room than this."""

_MAGIC = b"PD"
_HEADER = struct.Struct(">2sBBI")
HEADER_BYTES = _HEADER.size

DIGEST_BYTES = 16
BLOCK_HEAD_BYTES = BLOCK_HASH_BYTES + DIGEST_BYTES


class FrameKind(IntEnum):
    """What a frame's body is."""

    CONTROL = 1
    BLOCK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """What the next ``num_bytes`` of the stream are."""

    kind: FrameKind
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHead:
    """What the payload that follows claims to be."""

    hash: BlockHash
    digest: bytes


def payload_digest(payload: bytes | memoryview) -> bytes:
    """16 bytes that detect a corrupted payload; not a defence against a peer that lies."""
    return xxhash.xxh3_128_digest(payload)


def encode_header(header: FrameHeader) -> bytes:
    """``HEADER_BYTES`` bytes."""
    return _HEADER.pack(_MAGIC, FRAME_VERSION, header.kind, header.num_bytes)


def decode_header(
    data: bytes | bytearray | memoryview, *, max_control_bytes: int, block_bytes: int | None
) -> FrameHeader:
    """Checks ``HEADER_BYTES`` bytes against the bounds; ``block_bytes`` None means that no block may come here.

    Raises:
        Incompatible: the peer frames in another version.
        RemoteProtocolError: these bytes start no frame of ours, or one that is too big.
    """
    magic, version, kind, num_bytes = _HEADER.unpack(data)
    if magic != _MAGIC:
        raise RemoteProtocolError(f"the peer does not speak PDD: it sent {bytes(data).hex()}")
    if version != FRAME_VERSION:
        raise Incompatible(f"the peer frames in version {version}, this side in version {FRAME_VERSION}")
    if kind == FrameKind.CONTROL:
        return FrameHeader(kind=FrameKind.CONTROL, num_bytes=_bounded(num_bytes, max_control_bytes))
    if kind == FrameKind.BLOCK and block_bytes is not None:
        return FrameHeader(kind=FrameKind.BLOCK, num_bytes=_exactly(num_bytes, BLOCK_HEAD_BYTES + block_bytes))
    raise RemoteProtocolError(f"the peer sent a frame of kind {kind}, which may not come here")


def _bounded(num_bytes: int, limit: int) -> int:
    if num_bytes > limit:
        raise RemoteProtocolError(f"the peer announced a message of {num_bytes} bytes; at most {limit} are allowed")
    return num_bytes


def _exactly(num_bytes: int, expected: int) -> int:
    if num_bytes != expected:
        raise RemoteProtocolError(
            f"the peer announced a block frame of {num_bytes} bytes; this format's have {expected}"
        )
    return num_bytes


def encode_control(message: msgspec.Struct) -> bytes:
    """A whole control frame.

    Raises:
        LocalProtocolError: the message is too big to be sent.
    """
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_CONTROL_BYTES:
        raise LocalProtocolError(f"a message of {len(body)} bytes exceeds {MAX_CONTROL_BYTES}")
    return encode_header(FrameHeader(kind=FrameKind.CONTROL, num_bytes=len(body))) + body


def encode_block_head(block: BlockHash, payload: memoryview) -> bytes:
    """All of a block frame but its payload."""
    header = FrameHeader(kind=FrameKind.BLOCK, num_bytes=BLOCK_HEAD_BYTES + payload.nbytes)
    return encode_header(header) + block + payload_digest(payload)


def decode_block_head(data: bytes | bytearray | memoryview) -> BlockHead:
    """The first ``BLOCK_HEAD_BYTES`` of a block frame's body."""
    return BlockHead(
        hash=BlockHash(bytes(data[:BLOCK_HASH_BYTES])), digest=bytes(data[BLOCK_HASH_BYTES:BLOCK_HEAD_BYTES])
    )
