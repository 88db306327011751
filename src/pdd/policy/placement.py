"""Which worker of a role gets a request: the longest prefix that is there already, against the load.

Everything is put into seconds. ``own`` is what the request itself costs at a worker: computing the prompt's missing blocks
(prefill) or sending them there (decode). ``queue`` is what those cost it who are there already. The least sum wins. So a
long prefix is worth a queue, but only as long a one as it saves; a hot prefix spreads to a second worker as soon as
waiting for the first would take longer than computing it once more.

A conversation goes back to its *home* unless another worker is better by a clear margin: leaving costs its KV's way also to
the line and to the node, which nobody's seconds show, and should not hang on a coin's toss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.ids import WorkerId
from pdd.core.topology import PlacementRule
from pdd.core.units import Seconds

STAY_FACTOR = 1.25
"""Home may cost so much more than the best other worker..."""
STAY_SLACK = Seconds(0.1)
"""...and so much on top, before a conversation moves."""
FULL_BATCH_SLOWDOWN = 0.5
"""Until it was measured: a full batch decodes each token half again as slowly as a single request. Weights are read once
for all, KV for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One candidate. ``lost_here``: this very request lost a generation there. ``trusted``: its breaker lets it through."""

    name: WorkerId
    own: Seconds
    queue: Seconds
    load: float
    """Requests that sit there, per generation that can run at once."""
    has_room: bool = True
    """Its KV node is there, and has room for the request's blocks."""
    late: bool = False
    """Its engine or its node has not answered its check yet: it may be down, but nobody knows."""
    lost_here: bool = False
    trusted: bool = True

    @property
    def cost(self) -> float:
        return self.own + self.queue

    @property
    def doubts(self) -> tuple[bool, bool, bool, bool]:
        """What speaks against it, the worst first; the candidates with the fewest are compared by cost."""
        return (not self.trusted, self.lost_here, self.late, not self.has_room)


def choose_worker(views: Sequence[WorkerView], rule: PlacementRule, *, home: WorkerId | None) -> WorkerId:
    """``views`` is not empty: a worker in doubt is better than none. Ties go by name."""
    match rule:
        case PlacementRule.PREFIX:
            return _choose_by_prefix(views, home)
        case PlacementRule.LEAST_LOADED:
            return min(views, key=lambda view: (view.doubts[:2], view.load, view.name)).name


def _choose_by_prefix(views: Sequence[WorkerView], home: WorkerId | None) -> WorkerId:
    best = min(views, key=lambda view: (view.doubts, view.cost, view.load, view.name))
    for view in views:
        if view.name == home and view.doubts == best.doubts and view.cost <= STAY_FACTOR * best.cost + STAY_SLACK:
            return view.name
    return best.name


def predict_decode_queue(*, running: int, max_batch: int, alone: Seconds, crowd: Seconds) -> Seconds:
    """What ``running`` others cost one more decode, and it them.

    Each of two that run side by side takes ``crowd`` longer for it. Once the batch is full, a place must be waited for:
    one comes free ``max_batch`` times in the time of one decode, which alone takes ``alone``.
    """
    beside = min(running, max_batch - 1)
    num_ahead = max(0, running + 1 - max_batch)
    return Seconds(2 * crowd * beside + num_ahead / max_batch * (alone + crowd * beside))
