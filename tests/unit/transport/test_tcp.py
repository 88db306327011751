"""Socket connections, over a pair of sockets in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from pdd.core.blocks import BlockHash
from pdd.core.errors import ConfigError, RemoteProtocolError
from pdd.core.topology import Address
from pdd.protocol.frames import FrameKind, encode_block_head, encode_control
from pdd.protocol.peer import FROM_SOURCE, Ping
from pdd.transport.base import ConnectionLost
from pdd.transport.tcp import SocketConnection, connect_tcp, listen_tcp, listen_unix

pytestmark = pytest.mark.anyio
BLOCK = BlockHash(bytes(32))


@contextlib.contextmanager
def pair():
    """Two connected ends."""
    left, right = socket.socketpair()
    ends = SocketConnection(left, peer="right"), SocketConnection(right, peer="left")
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


async def test_a_message_goes_across():
    with pair() as (left, right):
        await left.send(encode_control(Ping()))
        header = await right.receive_header()
        assert FROM_SOURCE.decode(await right.receive_body(header.num_bytes)) == Ping()


async def test_a_block_larger_than_any_buffer_goes_straight_into_its_place():
    payload = bytes(range(256)) * 20_000
    arrived = bytearray(len(payload))
    with pair() as (left, right):
        right.open_up(max_control_bytes=100, block_bytes=len(payload))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(left.send_block(encode_block_head(BLOCK, memoryview(payload)), memoryview(payload)))
            assert (await right.receive_header()).kind is FrameKind.BLOCK
            assert (await right.receive_block_head()).hash == BLOCK
            await right.receive_into(memoryview(arrived))
    assert arrived == payload


async def test_frames_of_two_senders_never_mix():
    payload = memoryview(bytes(1_000_000))
    head = encode_block_head(BLOCK, payload)
    with pair() as (left, right):
        right.open_up(max_control_bytes=100, block_bytes=payload.nbytes)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(left.send_block(head, payload))
            tasks.create_task(left.send(encode_control(Ping())))
            tasks.create_task(left.send_block(head, payload))
            kinds: list[FrameKind] = []
            for _ in range(3):
                header = await right.receive_header()
                await right.receive_body(header.num_bytes)
                kinds.append(header.kind)
    assert kinds == [FrameKind.BLOCK, FrameKind.CONTROL, FrameKind.BLOCK]


async def test_no_block_is_taken_before_the_handshake_is_over():
    with pair() as (left, right):
        await left.send(encode_block_head(BLOCK, memoryview(b"x")))
        with pytest.raises(RemoteProtocolError):
            await right.receive_header()


async def test_a_peer_that_hangs_up_is_reported_as_such():
    with pair() as (left, right):
        left.close()
        with pytest.raises(ConnectionLost, match="left hung up"):
            await right.receive_header()
        with pytest.raises(ConnectionLost):
            await right.send(bytes(1000))


async def test_breaking_off_wakes_whoever_waits():
    with pair() as (left, right):
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(asyncio.wait([tasks.create_task(fails_to_receive(left))]))
            await asyncio.sleep(0)
            left.break_off()
            await waiting
        left.break_off()
        assert right.progress()[1] == 0


async def fails_to_receive(connection: SocketConnection) -> None:
    with pytest.raises(ConnectionLost):
        await connection.receive_header()


async def test_progress_changes_when_bytes_arrive_and_fails_when_closed():
    with pair() as (left, right):
        before = right.progress()
        await left.send(encode_control(Ping()))
        await right.receive_header()
        assert right.progress() != before
        right.close()
        with pytest.raises(ConnectionLost):
            right.progress()


async def test_nobody_listening_is_a_lost_connection():
    with pytest.raises(ConnectionLost, match="can't be reached"):
        await connect_tcp(Address(host="127.0.0.1", port=1), peer="nobody")


def test_an_address_in_use_or_out_of_range_is_a_configuration_error():
    with contextlib.closing(listen_tcp(Address(host="127.0.0.1", port=0))) as listener:
        for port in (listener.getsockname()[1], 70_000):
            with pytest.raises(ConfigError, match=str(port)):
                listen_tcp(Address(host="127.0.0.1", port=port))


def test_a_socket_file_left_behind_is_replaced_and_one_in_use_is_not(tmp_path: Path):
    path = tmp_path / "node.sock"
    listen_unix(path).close()
    assert path.exists()
    with contextlib.closing(listen_unix(path)):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ConfigError, match="another process"):
            listen_unix(path)


def test_a_file_in_the_place_of_the_socket_is_left_alone(tmp_path: Path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError):
        listen_unix(path)
    assert path.read_text() == "data"
