"""One lifetime of an in-memory node: what it loses when it is killed, and when it attends to what reaches it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pdd.core.ids import NodeId, NodeInstance
from pdd.core.kv_format import KvFormat
from pdd.core.units import Seconds
from pdd.index.blocks import BlockIndex
from pdd.kvnode.store import NodeStore

Call = Callable[[], None]


class Attention:
    """When a process attends to what reaches it: at once, ``lag`` later, or when it runs again. Always in order."""

    def __init__(self, lag: Seconds) -> None:
        self.lag = lag
        self.is_hung = False
        self._num_hangs = 0
        self._waiting: deque[Call] = deque()
        self._last_due = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether it would attend at once."""
        return not (self.is_hung or self.lag > 0 or self._last_due > asyncio.get_running_loop().time())

    def give_to(self, call: Call) -> None:
        """Calls ``call`` when its turn has come."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self.lag > 0 or self._last_due > now:
            self._last_due = max(self._last_due, now + self.lag)
            loop.call_at(self._last_due, self._due, call)
        else:
            self._due(call)

    def _due(self, call: Call) -> None:
        if self.is_hung:
            self._waiting.append(call)
        else:
            call()

    def hang(self) -> None:
        self.is_hung = True
        self._num_hangs += 1

    def resume(self) -> None:
        """What waited comes first, in order."""
        self.is_hung = False
        while self._waiting and not self.is_hung:
            self._waiting.popleft()()

    def after_hanging(self, time: Seconds, call: Call) -> None:
        """Calls ``call`` if the hang that lasts now still does then."""
        hang = self._num_hangs

        def check() -> None:
            if self.is_hung and self._num_hangs == hang:
                call()

        asyncio.get_running_loop().call_later(time, check)


class NodeLife:
    """Everything that a node loses when it is killed. Slots keep ``payload_bytes`` bytes of each block."""

    def __init__(
        self, node: NodeId, number: int, kv_format: KvFormat, *, capacity: int, payload_bytes: int, lag: Seconds
    ) -> None:
        self.alive = True
        self.attention = Attention(lag)
        self.store = NodeStore(
            node=node, instance=NodeInstance(f"{node}-{number}"), kv_format=kv_format, capacity=capacity
        )
        self.num_engines = 0
        self._payload_bytes = payload_bytes
        self._payloads: dict[int, memoryview] = {}

    @property
    def index(self) -> BlockIndex:
        return self.store.index

    def view(self, slot: int) -> memoryview:
        """A slot's content, ``[payload_bytes]``."""
        view = self._payloads.get(slot)
        if view is None:
            view = self._payloads[slot] = memoryview(bytearray(self._payload_bytes))
        return view

    def do_if_alive(self, call: Call) -> None:
        """For whatever is to happen once this life attends to it."""
        if self.alive:
            call()
