"""One request's seats at workers: at most one for each role, kept while its worker's process lives."""

from __future__ import annotations

from collections.abc import Sequence

from pdd.belief.beliefs import Beliefs, PlacementQuestion
from pdd.belief.conversations import Conversation
from pdd.belief.worker_state import Seat
from pdd.core.blocks import BlockHash
from pdd.core.clock import Clock
from pdd.core.ids import WorkerId
from pdd.core.request import Role
from pdd.core.topology import PolicyTable
from pdd.core.units import Seconds
from pdd.policy.placement import choose_worker
from pdd.router.driver.workers.worker import Worker


class RequestSeats:
    """Takes seats when they are first needed. ``give_up_all`` at the end.

    ``hashes`` are the full blocks of the prompt; ``num_blocks`` is what a decoder's node must have room for, prompt and
    output budget.
    """

    def __init__(
        self,
        beliefs: Beliefs[Worker],
        hashes: Sequence[BlockHash],
        conversation: Conversation | None,
        *,
        num_blocks: int,
        settings: PolicyTable,
        clock: Clock,
    ) -> None:
        self._beliefs = beliefs
        self._hashes = hashes
        self._conversation = conversation
        self._num_blocks = num_blocks
        self._settings = settings
        self._clock = clock
        self._seats: dict[Role, Seat[Worker]] = {}
        self._lost: set[WorkerId] = set()
        self._prefill: Worker | None = None

    def take(self, role: Role) -> Seat[Worker] | None:
        """The seat that the request has, if its process is still up; else a new one, preferably where it lost nothing
        yet.

        None: nobody of this role is up.
        """
        seat = self._seats.get(role)
        if seat is not None and self._beliefs.workers.holds(seat):
            return seat
        self.give_up(role)
        seat = self._take_best(role)
        if seat is not None:
            self._seats[role] = seat
            if role is Role.PREFILL:
                self._prefill = seat.worker
        return seat

    def _take_best(self, role: Role) -> Seat[Worker] | None:
        question = PlacementQuestion(
            role=role,
            hashes=self._hashes,
            num_blocks=self._num_blocks,
            conversation=self._conversation,
            lost_at=frozenset(self._lost),
            source=None if self._prefill is None else self._prefill.site,
        )
        return take_best(self._beliefs, question, self._settings, self._clock.now())

    def lose(self, seat: Seat[Worker]) -> None:
        """A generation broke off there: the next seat of this role is sought elsewhere."""
        self._lost.add(seat.worker.name)
        if self._seats.get(seat.worker.role) is seat:
            self.give_up(seat.worker.role)

    def give_up(self, role: Role) -> None:
        """The request needs nobody of this role now."""
        seat = self._seats.pop(role, None)
        if seat is not None:
            self._beliefs.workers.release(seat)

    def give_up_all(self) -> None:
        for role in tuple(self._seats):
            self.give_up(role)


def take_best(
    beliefs: Beliefs[Worker], question: PlacementQuestion, settings: PolicyTable, now: Seconds
) -> Seat[Worker] | None:
    """A seat where the policy would have it; None: no worker of this role is up."""
    view = beliefs.placement(question, settings, now)
    if view is None:
        return None
    name = choose_worker(view)
    num_missing = next(each.num_missing for each in view.candidates if each.worker.name == name)
    return beliefs.workers.take(name, now, num_missing=num_missing, num_blocks=question.num_blocks)
