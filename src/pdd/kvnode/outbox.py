"""Messages that wait for a connection's one writer, newest state first-come: bounded by construction."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable

import msgspec

from pdd.core.errors import RemoteProtocolError
from pdd.core.units import Bytes
from pdd.protocol.frames import encode_control
from pdd.transport.base import FramedConnection

MAX_WAITING_BYTES = Bytes(8 * 1024 * 1024)
"""Answers to one peer: tens of thousands of reports. One that leaves so much unread does not read."""


class Outbox:
    """A queue in which a message replaces an unsent one of the same key, so that a slow reader gets the latest state.

    ``put`` never waits, and a peer that does not read is no error of its callers: it is called where state changes, on
    behalf of others than this peer. When more than ``max_bytes`` wait, they are dropped, and ``watch_overflow`` ends
    the connection, on which the writer may be stuck.
    """

    def __init__(self, *, max_bytes: Bytes = MAX_WAITING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._frames: OrderedDict[Hashable, bytes] = OrderedDict()
        self._num_bytes = 0
        self._filled = asyncio.Event()
        self._overflowed = asyncio.Event()
        self._num_unkeyed = 0

    def put(self, message: msgspec.Struct, *, key: Hashable = None) -> None:
        """Queues ``message``; None as key means that it replaces nothing.

        Raises:
            LocalProtocolError: it is too big for one frame.
        """
        if self._overflowed.is_set():
            return
        if key is None:
            self._num_unkeyed += 1
            key = self._num_unkeyed
        frame = encode_control(message)
        self._num_bytes += len(frame) - len(self._frames.get(key, b""))
        self._frames[key] = frame
        self._filled.set()
        if self._num_bytes > self._max_bytes:
            self._frames.clear()
            self._overflowed.set()

    async def watch_overflow(self) -> None:
        """Runs beside ``write_to``. Raises RemoteProtocolError when the peer has left too much unread."""
        await self._overflowed.wait()
        raise RemoteProtocolError(f"the peer left more than {self._max_bytes} bytes of answers unread")

    async def write_to(self, connection: FramedConnection) -> None:
        """Sends whatever is put, for ever. Raises ConnectionLost: the peer is gone."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._frames:
                _, frame = self._frames.popitem(last=False)
                self._num_bytes -= len(frame)
                await connection.send(frame)
