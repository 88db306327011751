"""One request's places at workers: at most one for each role, kept while its worker's process lives."""

from __future__ import annotations

from pdd.core.ids import WorkerId
from pdd.core.request import Role
from pdd.router.driver.pool import Pool, Seat


class RequestSeats:
    """Takes seats when they are first needed. ``give_up_all`` at the end."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._seats: dict[Role, Seat] = {}
        self._lost: set[WorkerId] = set()

    def take(self, role: Role) -> Seat | None:
        """The seat that the request has, if its process is still up; else a new one, preferably where it lost nothing yet.

        None: nobody of this role is up.
        """
        seat = self._seats.get(role)
        if seat is not None and self._pool.holds(seat):
            return seat
        self.give_up(role)
        seat = self._pool.pick(role, avoid=frozenset(self._lost))
        if seat is not None:
            self._seats[role] = seat
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
