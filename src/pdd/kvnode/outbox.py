"""Messages that wait for a connection's one writer, newest state first-come: bounded by construction."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable

import msgspec

from pdd.core.errors import RemoteProtocolError
from pdd.protocol.frames import encode_control
from pdd.transport.base import FramedConnection

MAX_WAITING = 65_536


class Outbox:
    """A queue in which a message replaces an unsent one of the same key, so that a slow reader gets the latest state.

    ``put`` never waits: it is called where state changes. A peer that asks for more than ``MAX_WAITING`` different
    answers and reads none breaks the protocol.
    """

    def __init__(self) -> None:
        self._messages: OrderedDict[Hashable, msgspec.Struct] = OrderedDict()
        self._filled = asyncio.Event()
        self._num_unkeyed = 0

    def put(self, message: msgspec.Struct, *, key: Hashable = None) -> None:
        """Queues ``message``; None as key means that it replaces nothing."""
        if key is None:
            self._num_unkeyed += 1
            key = self._num_unkeyed
        self._messages[key] = message
        self._filled.set()

    async def write_to(self, connection: FramedConnection) -> None:
        """Sends whatever is put, for ever.

        Raises:
            ConnectionLost: the peer is gone.
            RemoteProtocolError: it does not read.
        """
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._messages:
                if len(self._messages) > MAX_WAITING:
                    raise RemoteProtocolError(f"the peer left {len(self._messages)} messages unread")
                _, message = self._messages.popitem(last=False)
                await connection.send(encode_control(message))
