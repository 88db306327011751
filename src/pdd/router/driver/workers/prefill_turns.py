"""Who may compute a prompt now, of all requests that are at one prefill worker."""

from __future__ import annotations

from collections.abc import Callable

from pdd.core.ids import WorkerId
from pdd.policy.prefill_turns import Standing, may_compute

Tell = Callable[[bool], None]
"""Whether the prompt may be computed from now on."""


class PrefillTurns:
    """One per router."""

    def __init__(self) -> None:
        self._at: dict[WorkerId, dict[PrefillTurn, None]] = {}

    @property
    def num_workers(self) -> int:
        """At which somebody computes, or waits to."""
        return len(self._at)

    def turn(self, tell: Tell) -> PrefillTurn:
        """For one request; ``over`` must follow. ``tell`` is called whenever what it may do is another thing."""
        return PrefillTurn(self, tell)

    def join(self, worker: WorkerId, turn: PrefillTurn) -> None:
        self._at.setdefault(worker, {})[turn] = None
        self.review(worker)

    def leave(self, worker: WorkerId, turn: PrefillTurn) -> None:
        turns = self._at[worker]
        del turns[turn]
        if turns:
            self.review(worker)
        else:
            del self._at[worker]

    def review(self, worker: WorkerId) -> None:
        """Somebody came, left, or stands otherwise."""
        turns = self._at[worker]
        num_with_room = sum(turn.standing is Standing.ROOM for turn in turns)
        for turn in turns:
            turn.let(go_on=may_compute(turn.standing, num_with_room=num_with_room))


class PrefillTurn:
    """One request's.

    ``begin`` whenever its prefill starts, ``computed`` when that has sent its token, ``over`` when it is lost.
    """

    def __init__(self, turns: PrefillTurns, tell: Tell) -> None:
        self.standing = Standing.ROOM
        self._turns = turns
        self._tell = tell
        self._worker: WorkerId | None = None
        self._goes_on = True

    def begin(self, worker: WorkerId) -> None:
        """A prefill begins at ``worker``, or goes on there. If it may not, that is told at once."""
        if self._worker != worker:
            self.over()
        self._worker, self._goes_on = worker, True
        self._turns.join(worker, self)

    def stand(self, standing: Standing) -> None:
        """The request has got or lost something."""
        if standing is not self.standing:
            self.standing = standing
            if self._worker is not None:
                self._turns.review(self._worker)

    def computed(self) -> None:
        """The prompt's token has come.

        If it was told to wait just before, that is for nothing, and it waits all the same.
        """
        if self._goes_on:
            self.over()

    def over(self) -> None:
        """Nothing is computed for it, nor waits to be. Idempotent."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            self._turns.leave(worker, self)

    def let(self, *, go_on: bool) -> None:
        """Called by ``PrefillTurns``."""
        if go_on is not self._goes_on:
            self._goes_on = go_on
            self._tell(go_on)
