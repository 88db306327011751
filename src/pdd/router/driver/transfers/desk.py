"""All transfers of a router: those of open requests, and those that outlived theirs."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.belief.links import Links
from pdd.belief.prefixes import Prefixes
from pdd.belief.workers import Workers
from pdd.core.clock import Clock
from pdd.core.errors import LocalProtocolError
from pdd.core.ids import NodeId
from pdd.core.units import Bytes
from pdd.policy.detached import DetachedView, choose_spare, choose_surplus, is_short_of_capacity
from pdd.protocol.capacity_queue import CapacityQueue
from pdd.protocol.delivery_messages import DeliveryState
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.transfers.spec import TransferSpec
from pdd.router.driver.transfers.transfer import Transfer, TransferListener
from pdd.router.driver.workers.worker import Worker


class TransferDesk:
    """Runs all transfers of a router, those of open requests and those that outlived theirs."""

    def __init__(
        self, *, workers: Workers[Worker], links: Links, prefixes: Prefixes, clock: Clock, settings: DriverSettings
    ) -> None:
        self._workers = workers
        self._prefixes = prefixes
        self._links = links
        self._clock = clock
        self._settings = settings
        self._tasks: asyncio.TaskGroup | None = None
        self._running: list[Transfer] = []
        self._detached: list[Transfer] = []
        self._queues: dict[NodeId, CapacityQueue[Transfer]] = {}
        self._crossed_before = 0

    @property
    def crossed(self) -> Bytes:
        """Block payload that sources sent to nodes of other clusters, ended and detached transfers included."""
        running = sum(transfer.delivery.sent for transfer in self._running if transfer.spec.crosses_line)
        return Bytes(self._crossed_before + running)

    @property
    def num_running(self) -> int:
        """Transfers that hold something somewhere."""
        return len(self._running)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Transfers run in ``tasks`` from now on."""
        self._tasks = tasks

    def place(self, spec: TransferSpec, listener: TransferListener) -> Transfer:
        """Starts a transfer."""
        if self._tasks is None:
            raise LocalProtocolError("the transfer desk is not running")
        transfer = Transfer(
            spec,
            listener,
            workers=self._workers,
            links=self._links,
            queue=self._queue_at(spec),
            free_capacity=partial(self._free_capacity, spec.target.node.node),
            clock=self._clock,
            settings=self._settings,
        )
        self._running.append(transfer)
        self._tasks.create_task(self._run(transfer), name=f"transfer {spec.name}")
        return transfer

    def detach(self, transfer: Transfer) -> None:
        """Lets a transfer outlive its request. Of too many the oldest ends, of those that nobody waits for if there
        are.

        Where a node is short of capacity, one of those ends, too.
        """
        self._detached.append(transfer)
        transfer.detach()
        self._give_up(choose_surplus(self._views(), limit=self._settings.max_detached_transfers))
        for node in transfer.spec.nodes:
            if is_short_of_capacity(self._workers.books.get(node)):
                self._free_capacity(node)

    def _free_capacity(self, node: NodeId) -> None:
        """Ends one transfer from or to that node that nobody waits for."""
        self._give_up(choose_spare(self._views(), node))

    def _views(self) -> list[DetachedView]:
        return [DetachedView(nodes=each.spec.nodes, demoted=each.delivery.demoted) for each in self._detached]

    def _give_up(self, index: int | None) -> None:
        if index is not None:
            self._detached.pop(index).release()

    def stop(self) -> None:
        """Releases everything, in the order in which it was placed."""
        for transfer in self._running:
            transfer.release()

    async def _run(self, transfer: Transfer) -> None:
        await transfer.run()
        if transfer.delivery.state is DeliveryState.READY:  # perhaps long after its request
            self._prefixes.landed(transfer.spec.target.node.node, transfer.spec.hashes)
        self._running.remove(transfer)
        transfer.leave_queue()
        following = self._queue_at(transfer.spec).release()
        if following is not None:
            following.call()
        if transfer.spec.crosses_line:
            self._crossed_before += transfer.delivery.sent
        if transfer in self._detached:
            self._detached.remove(transfer)

    def _queue_at(self, spec: TransferSpec) -> CapacityQueue[Transfer]:
        """Who waits for capacity at the target's node."""
        return self._queues.setdefault(spec.target.node.node, CapacityQueue())
