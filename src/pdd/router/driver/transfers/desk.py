"""All transfers of a router: those of open requests, and those that outlived theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from pdd.belief.links import Links
from pdd.belief.prefixes import Prefixes
from pdd.belief.workers import Workers
from pdd.core.clock import Clock
from pdd.core.errors import LocalProtocolError
from pdd.core.ids import NodeId
from pdd.core.units import Bytes
from pdd.router.driver.settings import DriverSettings
from pdd.router.driver.transfers.room_line import RoomLine
from pdd.router.driver.transfers.spec import TransferListener, TransferSpec, TransferState
from pdd.router.driver.transfers.transfer import Transfer
from pdd.router.driver.workers.worker import Worker

SHORT_OF_ROOM = 0.75
"""So full of what may not be evicted, a node keeps nothing for transfers that nobody waits for."""


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
        self._room_lines: dict[NodeId, RoomLine] = {}
        self._crossed_before = 0

    @property
    def crossed(self) -> Bytes:
        """Block payload that sources sent to nodes of other clusters, ended and detached transfers included."""
        running = sum(transfer.sent for transfer in self._running if transfer.spec.crosses_line)
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
            room=self._room_at(spec.target),
            make_room=partial(self._make_room, spec.target.node.node),
            clock=self._clock,
            settings=self._settings,
        )
        self._running.append(transfer)
        self._tasks.create_task(self._run(transfer), name=f"transfer {spec.name}")
        return transfer

    def detach(self, transfer: Transfer) -> None:
        """Lets a transfer outlive its request. Of too many the oldest ends, of those that nobody waits for if there are.

        Where a node is short of room, one of those ends, too.
        """
        self._detached.append(transfer)
        transfer.detach()
        if len(self._detached) > self._settings.max_detached_transfers:
            self._give_up(next(self._spare(), self._detached[0]))
        for node in transfer.spec.nodes:
            if self._is_short_of_room(node):
                self._make_room(node)

    def _make_room(self, node: NodeId) -> None:
        """Ends one transfer from or to that node that nobody waits for, the oldest: its conversation rests longest."""
        spare = next((each for each in self._spare() if node in each.spec.nodes), None)
        if spare is not None:
            self._give_up(spare)

    def _spare(self) -> Iterator[Transfer]:
        return (each for each in self._detached if each.demoted)

    def _give_up(self, transfer: Transfer) -> None:
        self._detached.remove(transfer)
        transfer.release()

    def _is_short_of_room(self, node: NodeId) -> bool:
        """By what it said last: what is leased or promised can't be evicted, so little is left for newcomers."""
        stats = self._workers.books.get(node)
        if stats is None:
            return False
        taken = stats.leased_blocks + stats.reserved_blocks + stats.writing_blocks
        return taken > SHORT_OF_ROOM * stats.capacity_blocks

    def stop(self) -> None:
        """Releases everything, in the order in which it was placed."""
        for transfer in self._running:
            transfer.release()

    async def _run(self, transfer: Transfer) -> None:
        await transfer.run()
        if transfer.state is TransferState.READY:  # perhaps long after its request
            self._prefixes.landed(transfer.spec.target.node.node, transfer.spec.hashes)
        self._running.remove(transfer)
        self._room_at(transfer.spec.target).let_go()
        if transfer.spec.crosses_line:
            self._crossed_before += transfer.sent
        if transfer in self._detached:
            self._detached.remove(transfer)

    def _room_at(self, target: Worker) -> RoomLine:
        """Who waits for room at the target's node."""
        node = target.node.node
        if node not in self._room_lines:
            self._room_lines[node] = RoomLine(retry=self._settings.node_retry)
        return self._room_lines[node]
