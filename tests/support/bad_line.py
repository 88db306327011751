"""A TCP line with a will of its own, between a node and the one that it believes to talk to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from pdd.core.topology import Address
from pdd.transport.tcp import listen_tcp

CHUNK_BYTES = 16 * 1024


class BadLine:
    """Forwards to ``there``. Set ``bytes_per_second`` (forward), ``bytes_per_second_back`` or ``flips`` at any time.

    ``cut`` breaks what is open, and while ``refuses`` is set new connections are broken as well; ``freeze`` moves
    nothing.

    ``flips`` lists offsets, counted in bytes sent forward over the line's whole life, at which one bit is turned.
    """

    def __init__(self) -> None:
        self.there: Address | None = None
        self.bytes_per_second: float | None = None
        self.bytes_per_second_back: float | None = None
        self.refuses = False
        self._thawed = asyncio.Event()
        self._thawed.set()
        self.flips: list[int] = []
        self.num_forwarded = 0
        self.num_connections = 0
        self.second_connection = asyncio.Event()
        self._listener = listen_tcp(Address(host="127.0.0.1", port=0))
        self._open: set[socket.socket] = set()
        self.address = Address(host="127.0.0.1", port=self._listener.getsockname()[1])

    def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    def cut(self) -> None:
        """Breaks every open connection at once."""
        for sock in tuple(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                near, _ = await loop.sock_accept(self._listener)
                tasks.create_task(self._join(near))

    async def _join(self, near: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        assert self.there is not None
        self.num_connections += 1
        if self.num_connections == 2:
            self.second_connection.set()
        far = socket.socket()
        far.setblocking(False)
        self._open |= {near, far}
        try:
            if self.refuses:
                raise ConnectionRefusedError
            await loop.sock_connect(far, (self.there.host, self.there.port))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(near, far, counted=True))
                tasks.create_task(self._forward(far, near, counted=False))
        except* OSError:
            pass
        finally:
            self._open -= {near, far}
            near.close()
            far.close()

    async def _forward(self, source: socket.socket, target: socket.socket, *, counted: bool) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, CHUNK_BYTES):
            await self._thawed.wait()
            if counted:
                data = self._damage(data)
            rate = self.bytes_per_second if counted else self.bytes_per_second_back
            if rate is not None:
                await asyncio.sleep(len(data) / rate)
            await loop.sock_sendall(target, data)
        raise ConnectionResetError("one side has closed")

    def _damage(self, data: bytes) -> bytes:
        start, self.num_forwarded = self.num_forwarded, self.num_forwarded + len(data)
        damaged = bytearray(data)
        for offset in self.flips:
            if start <= offset < self.num_forwarded:
                damaged[offset - start] ^= 1
        return bytes(damaged)

    def close(self) -> None:
        self._listener.close()


@contextlib.asynccontextmanager
async def bad_line() -> AsyncIterator[BadLine]:
    """A line that runs until the context ends."""
    line = BadLine()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(line.run())
        try:
            yield line
        finally:
            line.cut()
            running.cancel()
            await asyncio.wait([running])
            line.close()
