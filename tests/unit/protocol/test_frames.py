"""Frames: what goes in comes out, and nothing too big or strange comes in."""

from __future__ import annotations

import msgspec
import pytest

from pdd.core.blocks import BlockHash
from pdd.core.errors import Incompatible, LocalProtocolError, RemoteProtocolError
from pdd.core.ids import NodeId
from pdd.core.kv_format import DType, abbreviate, uniform_attention_format
from pdd.kvnode.handshake import hello
from pdd.protocol.compatibility import describe_difference, reason_to_refuse
from pdd.protocol.frames import (
    BLOCK_HEAD_BYTES,
    HEADER_BYTES,
    MAX_CONTROL_BYTES,
    FrameHeader,
    FrameKind,
    decode_block_head,
    decode_header,
    encode_block_head,
    encode_control,
    encode_header,
    payload_digest,
)
from pdd.protocol.peer import (
    FROM_SOURCE,
    FROM_TARGET,
    HELLO,
    PROTOCOL_VERSION,
    Hello,
    Offer,
    PeerKind,
    Ping,
    Stored,
)

BLOCK = BlockHash(b"\x07" * 32)


def form(model: str = "m", block_tokens: int = 4, num_layers: int = 1):
    return uniform_attention_format(
        model=model, num_layers=num_layers, num_kv_heads=1, head_dim=8, dtype=DType.FLOAT32, block_tokens=block_tokens
    )


def header_of(frame: bytes, *, limit: int = MAX_CONTROL_BYTES, block_bytes: int | None = None) -> FrameHeader:
    return decode_header(frame[:HEADER_BYTES], max_control_bytes=limit, block_bytes=block_bytes)


def test_a_message_survives_the_wire():
    frame = encode_control(Offer(offer=3, hashes=(BLOCK,), present=(True,)))
    header = header_of(frame)
    assert header == FrameHeader(kind=FrameKind.CONTROL, num_bytes=len(frame) - HEADER_BYTES)
    assert FROM_SOURCE.decode(frame[HEADER_BYTES:]) == Offer(offer=3, hashes=(BLOCK,), present=(True,))


def test_a_block_frame_says_what_its_payload_is():
    payload = memoryview(bytes(range(100)))
    frame = encode_block_head(BLOCK, payload)
    assert header_of(frame, block_bytes=100).num_bytes == BLOCK_HEAD_BYTES + 100
    head = decode_block_head(frame[HEADER_BYTES:])
    assert (head.hash, head.digest) == (BLOCK, payload_digest(payload))


def test_a_single_flipped_bit_changes_the_digest():
    payload = bytearray(1000)
    before = payload_digest(bytes(payload))
    payload[777] ^= 1
    assert payload_digest(bytes(payload)) != before


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HT", "does not speak PDD"),
        (b"\x00" * HEADER_BYTES, "does not speak PDD"),
        (b"PD\x01\x07\x00\x00\x00\x01", "kind 7"),
        (b"PD\x01\x02\x00\x00\x00\x94", "kind 2"),
        (b"PD\x01\x01\xff\xff\xff\xff", "at most"),
    ],
)
def test_what_is_no_frame_of_ours_is_the_peers_fault(data: bytes, says: str):
    with pytest.raises(RemoteProtocolError, match=says):
        header_of(data)


def test_a_block_frame_of_another_size_is_refused_before_its_payload_is_read():
    frame = encode_header(FrameHeader(kind=FrameKind.BLOCK, num_bytes=BLOCK_HEAD_BYTES + 101))
    with pytest.raises(RemoteProtocolError, match="block frame of 149 bytes"):
        header_of(frame, block_bytes=100)


def test_another_frame_version_is_incompatible_and_says_which():
    with pytest.raises(Incompatible, match=r"version 9.*version 1"):
        header_of(b"PD\x09\x01\x00\x00\x00\x01")


def test_a_message_too_big_to_send_is_our_own_mistake():
    with pytest.raises(LocalProtocolError):
        encode_control(Offer(offer=1, hashes=(BLOCK,) * 140_000, present=(True,)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "Nonsense"}),
        msgspec.msgpack.encode({"type": "Stored", "hash": BLOCK}),
        msgspec.msgpack.encode({"type": "Offer", "offer": 1, "hashes": [b"short"], "present": [True]}),
        msgspec.msgpack.encode({"type": "Offer", "offer": 1, "hashes": [], "present": [], "more": 1}),
        msgspec.msgpack.encode({"type": "Offer", "offer": "one", "hashes": [], "present": []}),
        b"\x91" * 5000,
    ],
)
def test_messages_that_may_not_come_here_are_refused(body: bytes):
    with pytest.raises(RemoteProtocolError):
        FROM_SOURCE.decode(body)


def test_the_two_directions_have_different_vocabularies():
    with pytest.raises(RemoteProtocolError):
        FROM_TARGET.decode(encode_control(Ping())[HEADER_BYTES:])
    assert FROM_TARGET.decode(encode_control(Stored(hash=BLOCK))[HEADER_BYTES:]) == Stored(hash=BLOCK)


def greeting(**changes: object) -> Hello:
    return msgspec.structs.replace(hello(kind=PeerKind.NODE, name="a", instance="1", kv_format=form()), **changes)


def test_the_same_format_and_version_are_welcome():
    assert reason_to_refuse(greeting(), node=NodeId("b"), kv_format=form()) is None


def test_a_refusal_shows_both_formats_and_names_what_differs():
    reason = reason_to_refuse(greeting(), node=NodeId("b"), kv_format=form(block_tokens=8, model="other"))
    assert reason is not None
    assert abbreviate(form().description) in reason
    assert abbreviate(form(block_tokens=8, model="other").description) in reason
    assert "model and block length" in reason
    assert "layers" not in reason.split(":")[0]


def test_a_later_protocol_version_is_refused_by_version_even_with_fields_we_do_not_know():
    body = msgspec.msgpack.encode(
        {**msgspec.to_builtins(greeting(version=PROTOCOL_VERSION + 1), builtin_types=(bytes,)), "novelty": 1}
    )
    reason = reason_to_refuse(HELLO.decode(body), node=NodeId("b"), kv_format=form())
    assert reason is not None
    assert f"version {PROTOCOL_VERSION + 1}" in reason


@pytest.mark.parametrize(
    ("theirs", "difference"),
    [
        ("m|block=4|x", "layers"),
        ("n|block=5|y", "model and block length"),
        ("odd", "their structure"),
        ("m|block=4|y", "their fingerprint"),
    ],
)
def test_differences_are_named(theirs: str, difference: str):
    assert describe_difference(theirs, "m|block=4|y") == difference
