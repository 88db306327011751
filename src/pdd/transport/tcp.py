"""Framed connections over stream sockets: TCP between machines, Unix sockets on one.

Non-blocking sockets on the running loop, no streams and no buffers of our own: payloads go from the kernel into the
arena and back. The progress of a line is measured down to bytes that the far kernel acknowledged, so that a slow line
is never taken for a dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from array import array
from fcntl import ioctl
from pathlib import Path
from termios import TIOCOUTQ

from pdd.core.errors import ConfigError
from pdd.core.topology import Address
from pdd.protocol.frames import (
    BLOCK_HEAD_BYTES,
    HEADER_BYTES,
    MAX_HELLO_BYTES,
    BlockHead,
    FrameHeader,
    decode_block_head,
    decode_header,
)
from pdd.transport.base import ConnectionLost

SEND_CHUNK_BYTES = 256 * 1024
UNSENT_LIMIT_BYTES = 128 * 1024
"""The kernel holds no more than this that it can't send yet: messages wait behind one block, not behind megabytes."""
BACKLOG = 128


class SocketConnection:
    """``FramedConnection`` on a connected stream socket, which it owns.

    Until ``open_up`` is called, after the handshake, it takes small control frames only.
    """

    def __init__(self, sock: socket.socket, *, peer: str) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._send_lock = asyncio.Lock()
        self._max_control_bytes = MAX_HELLO_BYTES
        self._block_bytes: int | None = None
        self._num_sent = 0
        self._num_received = 0
        self.num_frames = 0
        """Frames of which the header has begun to be awaited, the present one included."""
        self.num_received_of_frame = 0
        self.last_received_at = self._loop.time()

    @property
    def socket(self) -> socket.socket:
        """For descriptors that travel beside the frames."""
        return self._socket

    def open_up(self, *, max_control_bytes: int, block_bytes: int | None) -> None:
        """Sets the bounds that hold after the handshake; ``block_bytes`` None keeps block frames out."""
        self._max_control_bytes = max_control_bytes
        self._block_bytes = block_bytes

    async def receive_header(self) -> FrameHeader:
        # A peer that always has something to say must not keep the others waiting: receiving alone need not suspend.
        await asyncio.sleep(0)
        data = bytearray(HEADER_BYTES)
        self.num_frames += 1
        self.num_received_of_frame = 0
        await self.receive_into(memoryview(data))
        return decode_header(data, max_control_bytes=self._max_control_bytes, block_bytes=self._block_bytes)

    async def receive_body(self, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        await self.receive_into(memoryview(data))
        return bytes(data)

    async def receive_block_head(self) -> BlockHead:
        return decode_block_head(await self.receive_body(BLOCK_HEAD_BYTES))

    async def receive_into(self, payload: memoryview) -> None:
        filled = 0
        while filled < payload.nbytes:
            count = await self._receive_some(payload[filled:])
            filled += count

    async def _receive_some(self, space: memoryview) -> int:
        try:
            count = await self._loop.sock_recv_into(self._socket, space)
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"the connection to {self._peer} broke: {error}") from error
        if count == 0:
            raise ConnectionLost(f"{self._peer} hung up")
        self._num_received += count
        self.num_received_of_frame += count
        self.last_received_at = self._loop.time()
        return count

    async def send(self, frame: bytes) -> None:
        async with self._send_lock:
            await self._send_all(memoryview(frame))

    async def send_block(self, head: bytes, payload: memoryview) -> None:
        async with self._send_lock:
            await self._send_all(memoryview(head))
            await self._send_all(payload)

    async def _send_all(self, data: memoryview) -> None:
        for start in range(0, data.nbytes, SEND_CHUNK_BYTES):
            chunk = data[start : start + SEND_CHUNK_BYTES]
            try:
                await self._loop.sock_sendall(self._socket, chunk)
            except (OSError, ValueError) as error:
                raise ConnectionLost(f"the connection to {self._peer} broke: {error}") from error
            self._num_sent += chunk.nbytes

    def progress(self) -> tuple[int, int]:
        """A pair that changes whenever a byte was acknowledged by the far kernel or received from the peer."""
        unacknowledged = array("i", [0])
        try:
            ioctl(self._socket, TIOCOUTQ, unacknowledged)
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"the connection to {self._peer} is closed: {error}") from error
        return self._num_sent - unacknowledged[0], self._num_received

    def break_off(self) -> None:
        """Ends the connection under tasks that wait on it: they get ConnectionLost, and then ``close`` it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


async def connect_tcp(address: Address, *, peer: str) -> SocketConnection:
    """Raises ConnectionLost: nobody listens there, or the line is down. Callers bound the time."""
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
        tune(sock)
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"{peer} can't be reached at {address}: {error}") from error
    except BaseException:
        sock.close()
        raise
    return SocketConnection(sock, peer=peer)


def listen_tcp(address: Address) -> socket.socket:
    """Raises ConfigError: the address is in use or not ours."""
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        raise ConfigError(f"can't listen on {address}: {error}") from error
    sock.setblocking(False)
    return sock


def listen_unix(path: Path) -> socket.socket:
    """Only this user may connect. A socket file that a dead process left behind is replaced.

    Raises:
        ConfigError: someone listens there, or the path is unusable.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"can't listen on socket {path}: {error}") from error
    sock.setblocking(False)
    return sock


def _remove_stale(path: Path) -> None:
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise OSError(errno.EADDRINUSE, "another process listens there")


def tune(sock: socket.socket) -> None:
    """Small messages leave at once and bulk does not queue in the kernel; a vanished machine is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_NOTSENT_LOWAT", UNSENT_LIMIT_BYTES),
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET
