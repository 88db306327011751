"""One request's places at workers: at most one for each role, kept while its worker's process lives."""

from __future__ import annotations

from collections.abc import Sequence

from pdd.core.blocks import BlockHash
from pdd.core.ids import WorkerId
from pdd.core.request import Role
from pdd.router.driver.workers.conversations import Conversation
from pdd.router.driver.workers.placement import Placement
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.worker import Seat


class RequestSeats:
    """Takes seats when they are first needed. ``give_up_all`` at the end.

    ``hashes`` are the full blocks of the prompt; ``num_blocks`` is what a decoder's node must have room for, prompt and
    output budget.
    """

    def __init__(
        self,
        pool: Pool,
        placement: Placement,
        hashes: Sequence[BlockHash],
        conversation: Conversation | None,
        *,
        num_blocks: int,
    ) -> None:
        self._pool = pool
        self._placement = placement
        self._hashes = hashes
        self._conversation = conversation
        self._num_blocks = num_blocks
        self._seats: dict[Role, Seat] = {}
        self._lost: set[WorkerId] = set()
        self._prefill: WorkerId | None = None

    def take(self, role: Role) -> Seat | None:
        """The seat that the request has, if its process is still up; else a new one, preferably where it lost nothing yet.

        None: nobody of this role is up.
        """
        seat = self._seats.get(role)
        if seat is not None and self._pool.holds(seat):
            return seat
        self.give_up(role)
        seat = self._placement.pick(
            role,
            self._hashes,
            conversation=self._conversation,
            avoid=frozenset(self._lost),
            near=self._prefill,
            num_blocks=self._num_blocks,
        )
        if seat is not None:
            self._seats[role] = seat
            if role is Role.PREFILL:
                self._prefill = seat.worker.name
        return seat

    def lose(self, seat: Seat) -> None:
        """A generation broke off there: the next seat of this role is sought elsewhere."""
        self._lost.add(seat.worker.name)
        if self._seats.get(seat.worker.role) is seat:
            self.give_up(seat.worker.role)

    def give_up(self, role: Role) -> None:
        """The request needs nobody of this role now."""
        seat = self._seats.pop(role, None)
        if seat is not None:
            self._pool.release(seat)

    def give_up_all(self) -> None:
        for role in tuple(self._seats):
            self.give_up(role)
