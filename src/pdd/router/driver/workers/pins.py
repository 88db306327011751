"""Keeps at each KV node the pins that are wanted there, whatever happens to the node or to the connection with it.

Nobody waits for it: what is wanted is noted at once, and told to each node by a task of its own, one thing after
another. A pin is a wish, so a node that can't be told just evicts as it likes.
"""

from __future__ import annotations

import asyncio
import logging

from pdd.belief.workers import Workers
from pdd.core.clock import Clock
from pdd.core.errors import PddError
from pdd.core.ids import NodeId, PinId
from pdd.core.replication import Pin
from pdd.kvnode.base import NodeClient
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.worker import Worker

_logger = logging.getLogger(__name__)


class PinBoard:
    """Tells nodes between ``start`` and ``stop``; what was wanted before is told first."""

    def __init__(self, pool: Pool, settings: DriverSettings, clock: Clock) -> None:
        self._nodes = {name: _NodePins(node, pool.workers, settings, clock) for name, node in pool.nodes.items()}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, tasks: asyncio.TaskGroup) -> None:
        for name, pins in self._nodes.items():
            self._tasks.append(tasks.create_task(pins.keep(), name=f"pins at {name}"))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def want(self, node: NodeId, pin: Pin) -> None:
        """From now on the node shall have this pin; it takes the place of one with the same name."""
        self._nodes[node].want(pin)

    def drop(self, node: NodeId, pin: PinId) -> None:
        """The node need not have it any more."""
        self._nodes[node].drop(pin)

    def num_wanted(self, node: NodeId) -> int:
        return self._nodes[node].num_wanted


class _NodePins:
    """``_due`` are the names about which the node has yet to be told, in order; ``_told`` those that it may know."""

    def __init__(self, node: NodeClient, workers: Workers[Worker], settings: DriverSettings, clock: Clock) -> None:
        self._node = node
        self._workers = workers
        self._health = settings.health
        self._clock = clock
        self._wanted: dict[PinId, Pin] = {}
        self._due: dict[PinId, None] = {}
        self._told: dict[PinId, None] = {}
        self._changed = asyncio.Event()
        self._num_returns = 0

    @property
    def num_wanted(self) -> int:
        return len(self._wanted)

    def want(self, pin: Pin) -> None:
        self._wanted[pin.pin] = pin
        self._note(pin.pin)

    def drop(self, pin: PinId) -> None:
        if self._wanted.pop(pin, None) is None:
            return
        if pin in self._told:
            self._note(pin)
        else:
            self._due.pop(pin, None)

    def _note(self, pin: PinId) -> None:
        self._due[pin] = None
        self._changed.set()

    async def keep(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._due:
                await self._tell_next()

    async def _tell_next(self) -> None:
        """Pins end with the node and with the connection to it: when either was lost, all of them are told again."""
        if self._num_returns != self._workers.node_returns(self._node.node):
            self._num_returns = self._workers.node_returns(self._node.node)
            self._due = {**self._due, **dict.fromkeys(self._wanted)}
        name = next(iter(self._due))
        del self._due[name]
        try:
            async with asyncio.timeout(self._health.timeout_s):
                await self._tell(name)
        except (PddError, TimeoutError) as error:
            _logger.debug("pin_not_told node=%s reason=%s", self._node.node, error)
            self._due = dict.fromkeys((name, *self._due, *self._wanted))
            await self._clock.sleep(self._health.interval_s)

    async def _tell(self, name: PinId) -> None:
        pin = self._wanted.get(name)
        if pin is None:
            await self._node.unpin(name)
            self._told.pop(name, None)
        else:
            self._told[name] = None
            await self._node.pin(pin)
