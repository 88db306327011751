"""Frames and messages in the face of arbitrary bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdd.core.errors import ProtocolError, RemoteProtocolError
from pdd.protocol.frames import BLOCK_HEAD_BYTES, HEADER_BYTES, FrameKind, decode_header
from pdd.protocol.peer import (
    FROM_ENGINE,
    FROM_NODE,
    FROM_ROUTER,
    FROM_SOURCE,
    FROM_TARGET,
    HANDSHAKE_ANSWER,
    HELLO,
    TO_ENGINE,
)

DECODERS = [HELLO, HANDSHAKE_ANSWER, FROM_SOURCE, FROM_TARGET, FROM_ROUTER, FROM_NODE, FROM_ENGINE, TO_ENGINE]


@given(tail=st.binary(min_size=HEADER_BYTES - 2, max_size=HEADER_BYTES - 2), starts_right=st.booleans())
def test_any_eight_bytes_are_a_bounded_frame_or_an_error(tail: bytes, starts_right: bool):
    data = (b"PD" if starts_right else b"XY") + tail
    try:
        header = decode_header(data, max_control_bytes=1000, block_bytes=50)
    except ProtocolError:
        return
    limit = {FrameKind.CONTROL: 1000, FrameKind.BLOCK: BLOCK_HEAD_BYTES + 50}[header.kind]
    assert header.num_bytes <= limit


@given(body=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_the_peers_fault(body: bytes):
    for decoder in DECODERS:
        try:
            decoder.decode(body)
        except RemoteProtocolError:
            continue
