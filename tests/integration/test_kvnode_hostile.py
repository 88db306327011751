"""A node among strangers: garbage, oversized frames, wrong doors and liars never hurt those who behave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from itertools import count
from pathlib import Path

import msgspec
import pytest

from pdd.core.errors import ContextTooLong, Incompatible, NodeFailed
from pdd.core.ids import NodeId, PinId
from pdd.core.replication import Pin
from pdd.core.topology import Address
from pdd.core.units import BytesPerSecond, Seconds
from pdd.kvnode.client import TcpNodeClient
from pdd.kvnode.handshake import greet, hello
from pdd.kvnode.receiver import watch_frames
from pdd.protocol.frames import (
    HEADER_BYTES,
    MAX_CONTROL_BYTES,
    BlockHead,
    FrameHeader,
    FrameKind,
    encode_block_head,
    encode_control,
    encode_header,
)
from pdd.protocol.peer import (
    FROM_TARGET,
    HANDSHAKE_ANSWER,
    MAX_OFFER_HASHES,
    AskStats,
    Offer,
    OfferAnswer,
    PeerKind,
    Refused,
    Rejected,
    Stored,
    max_wanted_blocks,
)
from pdd.transport.base import ConnectionLost
from pdd.transport.tcp import SocketConnection, connect_tcp
from pdd.transport.together import run_together
from tests.support.kv_nodes import (
    FAST_CLIENT,
    RunningNode,
    chain,
    kv_format,
    last_progress,
    order,
    payload_of,
    running_cluster,
    until_idle,
    until_ready,
    watch,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

FORM = kv_format()


async def exchange(node: RunningNode, data: bytes, *, door: str = "tcp") -> bytes:
    """Sends bytes and returns everything that comes back until the node hangs up."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET if door == "tcp" else socket.AF_UNIX
    where = (node.address.host, node.address.port) if door == "tcp" else str(node.socket_path)
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, where)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            await loop.sock_sendall(sock, data)
            while chunk := await loop.sock_recv(sock, 65536):
                received += chunk
        return received


def greeting(kind: PeerKind = PeerKind.NODE, **changes: object) -> bytes:
    message = hello(kind=kind, name="stranger", instance="1", kv_format=FORM)
    return encode_control(msgspec.structs.replace(message, **changes))


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(1000),
    "oversized hello": encode_header(FrameHeader(kind=FrameKind.CONTROL, num_bytes=MAX_CONTROL_BYTES)),
    "a block before hello": encode_header(FrameHeader(kind=FrameKind.BLOCK, num_bytes=100)) + bytes(100),
    "no message": encode_header(FrameHeader(kind=FrameKind.CONTROL, num_bytes=4)) + b"\xc1\xc1\xc1\xc1",
    "hello, then garbage": greeting() + b"garbage!" * 10,
    "hello, then a giant": greeting() + b"PD\x01\x01\xff\xff\xff\xff",
    "hello, then a block of another size": greeting() + b"PD\x01\x02\x00\x00\x00\x40" + bytes(64),
    "hello, then a message for others": greeting() + encode_control(Stored(hash=bytes(32))),
    "hello of a router, then a block": greeting(PeerKind.ROUTER) + b"PD\x01\x02\x00\x00\x00\x40" + bytes(64),
}


@pytest.mark.parametrize(
    ("kind", "door"), [(PeerKind.ENGINE, "tcp"), (PeerKind.NODE, "unix"), (PeerKind.ROUTER, "unix")]
)
async def test_each_kind_of_caller_has_its_door(tmp_path: Path, kind: PeerKind, door: str):
    async with running_cluster(tmp_path, "a") as nodes:
        answer = HANDSHAKE_ANSWER.decode((await exchange(nodes["a"], greeting(kind), door=door))[HEADER_BYTES:])
        assert isinstance(answer, Refused)
        assert "may not call at this door" in answer.reason


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_ends_its_own_connection_only(tmp_path: Path, what: str):
    async with running_cluster(tmp_path, "a", "b") as nodes:
        await exchange(nodes["a"], GARBAGE[what])
        await exchange(nodes["a"], GARBAGE[what], door="unix")
        assert await nodes["a"].write(chain(2)) == 2
        assert (await until_idle(nodes["a"].client)).held_blocks == 2


async def test_another_protocol_version_is_refused_by_name(tmp_path: Path):
    async with running_cluster(tmp_path, "a") as nodes:
        answer = HANDSHAKE_ANSWER.decode((await exchange(nodes["a"], greeting(version=7)))[HEADER_BYTES:])
        assert isinstance(answer, Refused)
        assert "version 7" in answer.reason


async def test_another_frame_version_is_answered_in_ours(tmp_path: Path):
    async with running_cluster(tmp_path, "a") as nodes:
        answer = HANDSHAKE_ANSWER.decode((await exchange(nodes["a"], b"PD\x09" + greeting()[3:]))[HEADER_BYTES:])
        assert isinstance(answer, Refused)
        assert "version 9" in answer.reason


async def test_to_a_router_of_another_format_a_node_says_why_and_is_away_for_all_that_has_work_for_it(tmp_path: Path):
    other = kv_format(model="another-model")
    async with running_cluster(tmp_path, "a") as nodes:
        client = TcpNodeClient(node=NodeId("a"), address=nodes["a"].address, kv_format=other, settings=FAST_CLIENT)
        async with client:
            for _ in range(2):
                with pytest.raises(Incompatible, match="'a' can't be used: KV formats differ in model"):
                    await client.stats()
            with pytest.raises(NodeFailed, match="'a' can't be used: KV formats differ in model"):
                await client.pin(Pin(pin=PinId("p"), hashes=()))


async def test_a_router_that_reaches_another_node_than_it_means_does_not_use_it(tmp_path: Path):
    async with running_cluster(tmp_path, "a") as nodes:
        client = TcpNodeClient(node=NodeId("b"), address=nodes["a"].address, kv_format=FORM, settings=FAST_CLIENT)
        async with client:
            with pytest.raises(Incompatible, match="'a' answers where node 'b' was expected"):
                await client.stats()


async def test_calls_to_a_node_that_is_not_up_fail_at_once_and_work_when_it_is(tmp_path: Path):
    async with running_cluster(tmp_path, "a") as nodes:
        nowhere = Address(host="127.0.0.1", port=1)
        async with TcpNodeClient(node=NodeId("a"), address=nowhere, kv_format=FORM, settings=FAST_CLIENT) as client:
            with pytest.raises(NodeFailed, match="not available"):
                await client.stats()
        client = nodes["a"].client
        before = (await client.stats()).instance
        await nodes["a"].stop()
        with pytest.raises(NodeFailed):
            await client.stats()
        await nodes["a"].restart()
        assert (await eventually_stats(client)).instance != before


async def eventually_stats(client: TcpNodeClient):
    """Asks until the client has found the node again."""
    for _ in range(200):
        try:
            return await client.stats()
        except NodeFailed:
            await asyncio.sleep(0.02)
    raise AssertionError("the client never found the node again")


async def until_writing(client: TcpNodeClient) -> None:
    """Waits until the node is receiving a block."""
    for _ in range(500):
        if (await client.stats()).writing_blocks:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the node never began to receive")


async def connected_source(node: RunningNode, name: str = "stranger") -> SocketConnection:
    """A hand-driven source node, past its handshake."""
    connection = await connect_tcp(node.address, peer="the node under test")
    await greet(connection, hello(kind=PeerKind.NODE, name=name, instance="1", kv_format=FORM), expected=node.name)
    connection.open_up(max_control_bytes=MAX_CONTROL_BYTES, block_bytes=None)
    return connection


async def next_message(connection: SocketConnection):
    header = await connection.receive_header()
    return FROM_TARGET.decode(await connection.receive_body(header.num_bytes))


async def test_a_payload_that_does_not_fit_its_digest_never_becomes_visible(tmp_path: Path):
    (block,) = chain(1)
    async with running_cluster(tmp_path, "a") as nodes:
        with contextlib.closing(await connected_source(nodes["a"])) as source:
            await source.send(encode_control(Offer(offer=1, hashes=(block,), present=(True,))))
            assert await next_message(source) == OfferAnswer(offer=1, lacked=(0,), elsewhere=())
            good, bad = payload_of(block, FORM.block_bytes), bytes(FORM.block_bytes)
            await source.send_block(encode_block_head(block, memoryview(good)), memoryview(bad))
            assert await next_message(source) == Rejected(hash=block)
            assert await nodes["a"].read([block]) == 0
            await source.send_block(encode_block_head(block, memoryview(good)), memoryview(good))
            assert await next_message(source) == Stored(hash=block)
            assert await nodes["a"].read([block]) == 1
        assert (await until_idle(nodes["a"].client)).digest_failures == 1


async def test_a_source_that_dies_in_mid_payload_leaves_no_trace(tmp_path: Path):
    (block,) = chain(1)
    async with running_cluster(tmp_path, "a") as nodes:
        payload = memoryview(payload_of(block, FORM.block_bytes))
        with contextlib.closing(await connected_source(nodes["a"])) as source:
            await source.send(encode_block_head(block, payload) + bytes(payload[:100]))
            await until_writing(nodes["a"].client)
        assert (await until_idle(nodes["a"].client)).held_blocks == 0
        assert await nodes["a"].write([block]) == 1


async def test_a_second_connection_of_a_source_ends_the_first(tmp_path: Path):
    async with running_cluster(tmp_path, "a") as nodes:
        first = await connected_source(nodes["a"])
        second = await connected_source(nodes["a"])
        with pytest.raises(ConnectionLost):
            await next_message(first)
        await second.send(encode_control(Offer(offer=1, hashes=chain(1), present=(True,))))
        assert await next_message(second) == OfferAnswer(offer=1, lacked=(0,), elsewhere=())
        first.close()
        second.close()


async def test_a_block_nobody_offered_is_taken_if_it_is_whole(tmp_path: Path):
    """Two sources may cross in flight, so this is no fault; but it is counted and can be evicted like any other."""
    (block,) = chain(1)
    async with running_cluster(tmp_path, "a") as nodes:
        with contextlib.closing(await connected_source(nodes["a"])) as source:
            payload = memoryview(payload_of(block, FORM.block_bytes))
            head = encode_block_head(block, payload)
            assert BlockHead(hash=block, digest=head[-16:]).digest == head[-16:]
            for _ in range(2):
                await source.send_block(head, payload)
                assert await next_message(source) == Stored(hash=block)
        stats = await until_idle(nodes["a"].client)
        assert (stats.held_blocks, stats.received_bytes) == (1, {"stranger": 2 * FORM.block_bytes})


async def test_a_router_that_asks_and_never_reads_is_dismissed(tmp_path: Path):
    async with running_cluster(tmp_path, "a") as nodes:
        with contextlib.closing(await connected_router(nodes["a"])) as router:
            questions = b"".join(encode_control(AskStats(request=number)) for number in range(2000))
            with pytest.raises(ConnectionLost):
                await send_for_ever(router, questions)
        assert (await until_idle(nodes["a"].client)).held_blocks == 0


async def test_a_source_may_not_offer_more_than_could_ever_come(tmp_path: Path):
    limit = 2 * max_wanted_blocks(32)
    async with running_cluster(tmp_path, "a") as nodes:
        with contextlib.closing(await connected_source(nodes["a"])) as source:
            answered: list[int] = []
            with pytest.raises(ConnectionLost):
                await offer_for_ever(source, answered)
            assert sum(answered) == limit
        assert await nodes["a"].write(chain(2)) == 2


async def test_an_offer_of_more_than_one_message_may_name_is_refused(tmp_path: Path):
    hashes = tuple(number.to_bytes(32, "big") for number in range(MAX_OFFER_HASHES + 1))
    async with running_cluster(tmp_path, "a") as nodes:
        with contextlib.closing(await connected_source(nodes["a"])) as source:
            await source.send(encode_control(Offer(offer=1, hashes=hashes, present=(True,) * len(hashes))))
            with pytest.raises(ConnectionLost):
                await next_message(source)


async def test_an_order_or_a_watch_for_more_blocks_than_an_arena_has_can_never_be_met(tmp_path: Path):
    async with running_cluster(tmp_path, "a", "b", capacity=8) as nodes:
        with pytest.raises(ContextTooLong, match="arena of 8"):
            await until_ready(nodes["b"].client.watch(watch("w", chain(9))), 1)
        for name in ("before the line is open", "after it"):
            with pytest.raises(ContextTooLong, match="arena of node 'b' holds: 8"):
                await last_progress(nodes["a"].client.replicate(order(name, "b", chain(9))))
            await last_progress(nodes["a"].client.replicate(order(f"{name}, a small one", "b", ())))
        await until_idle(nodes["a"].client)


async def test_a_watch_may_not_name_a_block_a_thousand_times(tmp_path: Path):
    async with running_cluster(tmp_path, "a", capacity=8) as nodes:
        with pytest.raises(ContextTooLong, match="arena of 8"):
            await until_ready(nodes["a"].client.watch(watch("w", chain(1) * 1000)), 1)


@pytest.mark.parametrize(("num_bytes", "is_welcome"), [(1, False), (40, True)])
async def test_a_frame_that_trickles_ends_its_connection_and_a_slow_one_does_not(num_bytes: int, is_welcome: bool):
    """It is sent for 2 s; the patience is a tenth of a second, and the least rate 100 bytes a second."""
    here, there = socket.socketpair()
    there.setblocking(False)
    with contextlib.closing(SocketConnection(here, peer="it")) as connection, contextlib.closing(there):
        watching = watch_frames(connection, grace=Seconds(0.1), min_rate=BytesPerSecond(100.0), tick=Seconds(0.05))
        talk = run_together(trickle(there, num_bytes), receive_frame(connection), watching)
        if is_welcome:
            await talk
            return
        with pytest.raises(ExceptionGroup) as caught:
            await talk
        assert "of a frame" in str(caught.value.exceptions[0])


async def send_for_ever(connection: SocketConnection, data: bytes) -> None:
    while True:
        await connection.send(data)


async def offer_for_ever(connection: SocketConnection, answered: list[int]) -> None:
    """Offers ever more blocks; notes how many were answered each time."""
    for start in count(0, MAX_OFFER_HASHES):
        hashes = tuple(number.to_bytes(32, "big") for number in range(start, start + MAX_OFFER_HASHES))
        await connection.send(encode_control(Offer(offer=1, hashes=hashes, present=(True,) * len(hashes))))
        await next_message(connection)
        answered.append(len(hashes))


async def trickle(sock: socket.socket, num_bytes: int) -> None:
    """A frame that is long on its way: so many bytes every tenth of a second."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, encode_header(FrameHeader(kind=FrameKind.CONTROL, num_bytes=10_000)))
    for _ in range(20):
        await loop.sock_sendall(sock, bytes(num_bytes))
        await asyncio.sleep(0.1)


async def receive_frame(connection: SocketConnection) -> None:
    header = await connection.receive_header()
    await connection.receive_body(header.num_bytes)


async def connected_router(node: RunningNode) -> SocketConnection:
    connection = await connect_tcp(node.address, peer="the node under test")
    await greet(connection, hello(kind=PeerKind.ROUTER, name="r", instance="1", kv_format=FORM), expected=node.name)
    connection.open_up(max_control_bytes=MAX_CONTROL_BYTES, block_bytes=None)
    return connection
