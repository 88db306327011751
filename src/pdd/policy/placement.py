"""Which worker of a role gets a request: the longest prefix that is there already, against the load.

Everything is put into seconds. ``own`` is what the request itself costs at a worker: computing the prompt's missing
blocks (prefill) or sending them there (decode). ``queue`` is what those cost it who are there already. The least sum
wins. So a long prefix is worth a queue, but only as long a one as it saves; a hot prefix spreads to a second worker as
soon as waiting for the first would take longer than computing it once more.

A conversation goes back to its *home* unless another worker is better by a clear margin: leaving costs its KV's way
also to the line and to the node, which nobody's seconds show, and should not hang on a coin's toss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from pdd.core.ids import WorkerId
from pdd.core.request import Role
from pdd.core.topology import PlacementRule
from pdd.core.units import BytesPerSecond, Seconds
from pdd.core.view import CandidateView, PlacementView

STAY_FACTOR = 1.25
"""Home may cost so much more than the best other worker..."""
STAY_SLACK = Seconds(0.1)
"""...and so much on top, before a conversation moves."""
FULL_BATCH_SLOWDOWN = 0.5
"""Until it was measured: a full batch decodes each token half again as slowly as a single request. Weights are read
once for all, KV for each.
"""
RATE_UNKNOWN = BytesPerSecond(1.25e9)
"""Assumed of a link of which nothing is known; the four below, of workers before anything was measured."""
TOKEN_UNKNOWN = Seconds(0.02)
NUM_TOKENS_UNKNOWN = 100.0
BLOCK_UNKNOWN = Seconds(0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """What one candidate would cost, and what speaks against it."""

    name: WorkerId
    own: Seconds
    queue: Seconds
    load: float
    """Requests that sit there, per generation that can run at once."""
    has_room: bool = True
    late: bool = False
    lost_here: bool = False
    trusted: bool = True

    @property
    def cost(self) -> float:
        return self.own + self.queue

    @property
    def doubts(self) -> tuple[bool, bool, bool, bool]:
        """What speaks against it, the worst first; the candidates with the fewest are compared by cost."""
        return (not self.trusted, self.lost_here, self.late, not self.has_room)


def choose_worker(view: PlacementView) -> WorkerId:
    """A worker in doubt is better than none. Ties go by name."""
    return choose_bid([make_bid(each, view) for each in view.candidates], view.settings.placement, home=view.home)


def choose_bid(bids: Sequence[Bid], rule: PlacementRule, *, home: WorkerId | None) -> WorkerId:
    """``bids`` is not empty."""
    match rule:
        case PlacementRule.PREFIX:
            return _choose_by_prefix(bids, home)
        case PlacementRule.LEAST_LOADED:
            return min(bids, key=lambda bid: (bid.doubts[:2], bid.load, bid.name)).name
        case _:
            assert_never(rule)


def _choose_by_prefix(bids: Sequence[Bid], home: WorkerId | None) -> WorkerId:
    best = min(bids, key=lambda bid: (bid.doubts, bid.cost, bid.load, bid.name))
    for bid in bids:
        if bid.name == home and bid.doubts == best.doubts and bid.cost <= STAY_FACTOR * best.cost + STAY_SLACK:
            return bid.name
    return best.name


def make_bid(candidate: CandidateView, view: PlacementView) -> Bid:
    """What the request would cost at this candidate. A decoder's node must have room; prefill keeps what fits."""
    costs = _prefill_costs if view.role is Role.PREFILL else _decode_costs
    own, queue = costs(candidate, view)
    worker, free = candidate.worker, candidate.worker.free_blocks
    return Bid(
        name=worker.name,
        own=own,
        queue=queue,
        load=worker.num_seats / worker.max_batch,
        has_room=free is not None and (view.role is Role.PREFILL or view.num_blocks <= free),
        late=worker.late,
        lost_here=candidate.lost_here,
        trusted=worker.trusted,
    )


def _prefill_costs(candidate: CandidateView, view: PlacementView) -> tuple[Seconds, Seconds]:
    """Prefill is bound by compute: who comes later waits until all blocks before are computed."""
    block_s = (view.pace.unit_s or BLOCK_UNKNOWN) * candidate.worker.slowness
    own = Seconds(block_s * (candidate.num_missing + 1))
    return own, Seconds(block_s * (candidate.worker.num_missing + candidate.worker.num_seats))


def _decode_costs(candidate: CandidateView, view: PlacementView) -> tuple[Seconds, Seconds]:
    """A slow decoder costs its slowness already when it is alone."""
    pace, worker = view.pace, candidate.worker
    unit = (pace.alone_s or TOKEN_UNKNOWN) * worker.slowness
    measured = pace.crowd_s
    crowd = unit * FULL_BATCH_SLOWDOWN / worker.max_batch if measured is None else measured * worker.slowness
    num_tokens = pace.typical_work or NUM_TOKENS_UNKNOWN
    alone = Seconds(num_tokens * unit)
    queue = predict_decode_queue(
        running=worker.num_seats, max_batch=worker.max_batch, alone=alone, crowd=Seconds(num_tokens * crowd)
    )
    return Seconds(_sending_time(candidate, view) + alone), queue


def _sending_time(candidate: CandidateView, view: PlacementView) -> Seconds:
    if candidate.num_missing == 0:
        return Seconds(0.0)
    rate = None if candidate.link is None else candidate.link.rate
    return Seconds(candidate.num_missing * view.block_bytes / (rate or RATE_UNKNOWN))


def predict_decode_queue(*, running: int, max_batch: int, alone: Seconds, crowd: Seconds) -> Seconds:
    """What ``running`` others cost one more decode, and it them.

    Each of two that run side by side takes ``crowd`` longer for it. Once the batch is full, a place must be waited for:
    one comes free ``max_batch`` times in the time of one decode, which alone takes ``alone``.
    """
    beside = min(running, max_batch - 1)
    num_ahead = max(0, running + 1 - max_batch)
    return Seconds(2 * crowd * beside + num_ahead / max_batch * (alone + crowd * beside))
