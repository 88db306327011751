"""How fast workers of one role really are: alone, in a crowd, and each compared with its peers. The past fades.

A decode in a larger batch takes longer for each token, by how much depends on the chip and the model: so it is fitted
to what was measured, a straight line over the number of others. A worker is slow if it takes longer than its peers
would in the same crowd; without that, whoever gets more requests would look slow for it, get fewer, look fast, and so
on for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.core.ids import WorkerId
from pdd.core.units import Seconds
from pdd.core.view import PaceView

HALF_LIFE = Seconds(30.0)
"""After so long what was measured counts half: a worker that was slow gets its chance again."""
PRIOR = Seconds(5.0)
"""Every worker begins with so much work done in just the time for it, so that a few odd samples say little."""
_LEAST_VARIANCE = 1.0
"""Crowds that differ by less tell nothing about what a crowd costs."""


@dataclass(slots=True)
class _Sums:
    """Over records: work ``w``, beside ``n`` others, in ``t`` seconds."""

    count: float = 0.0
    w: float = 0.0
    wn: float = 0.0
    wnn: float = 0.0
    t: float = 0.0
    nt: float = 0.0
    at: Seconds = Seconds(0.0)

    def add(self, work: float, beside: float, seconds: Seconds, now: Seconds) -> None:
        kept = _fading(self.at, now)
        self.count = self.count * kept + 1.0
        self.w = self.w * kept + work
        self.wn = self.wn * kept + work * beside
        self.wnn = self.wnn * kept + work * beside * beside
        self.t = self.t * kept + seconds
        self.nt = self.nt * kept + beside * seconds
        self.at = now

    @property
    def slope(self) -> float | None:
        """Least squares, weighted by work; such that nobody is slower alone, nor done in less than no time."""
        spread = self.w * self.wnn - self.wn * self.wn
        if spread < _LEAST_VARIANCE * self.w * self.w or self.w == 0.0:
            return None
        fitted = (self.w * self.nt - self.wn * self.t) / spread
        return min(max(0.0, fitted), self.t / self.wn)


@dataclass(slots=True)
class _Comparison:
    """The time that a worker took, and the time that its peers would have taken."""

    taken: float = 0.0
    expected: float = 0.0
    at: Seconds = Seconds(0.0)

    def add(self, taken: Seconds, expected: Seconds, now: Seconds) -> None:
        kept = _fading(self.at, now)
        self.taken, self.expected, self.at = self.taken * kept + taken, self.expected * kept + expected, now


@dataclass(slots=True)
class RolePace:
    """Work is counted in whatever unit the role has: blocks computed by prefill, tokens by decoders."""

    _all: _Sums = field(default_factory=_Sums)
    _workers: dict[WorkerId, _Comparison] = field(default_factory=dict[WorkerId, _Comparison])
    _view: PaceView | None = None

    def record(self, worker: WorkerId, *, work: float, seconds: Seconds, now: Seconds, beside: float = 0.0) -> None:
        """``worker`` did so much ``work`` (above 0) in ``seconds``, while ``beside`` others ran there on average."""
        self._all.add(work, beside, seconds, now)
        self._view = None
        expected = Seconds(work * (self.unit_s or 0.0) + work * (self.crowd_s or 0.0) * (beside - self._mean_crowd))
        self._workers.setdefault(worker, _Comparison()).add(seconds, expected, now)

    @property
    def view(self) -> PaceView:
        """What policies see of it. Made once for each record: it is looked at far more often."""
        if self._view is None:
            self._view = PaceView(
                unit_s=self.unit_s, alone_s=self.alone_s, crowd_s=self.crowd_s, typical_work=self.typical_work
            )
        return self._view

    @property
    def unit_s(self) -> Seconds | None:
        """Mean time of a unit of work, in the crowds that there were; None before anything was measured."""
        return Seconds(self._all.t / self._all.w) if self._all.w > 0.0 else None

    @property
    def crowd_s(self) -> Seconds | None:
        """How much longer a unit takes for each that runs beside; None until crowds have differed enough to tell."""
        return None if self._all.slope is None else Seconds(self._all.slope)

    @property
    def alone_s(self) -> Seconds | None:
        """A unit's time with nobody beside, as far as it is known what a crowd costs."""
        return None if self.unit_s is None else Seconds(self.unit_s - (self.crowd_s or 0.0) * self._mean_crowd)

    @property
    def typical_work(self) -> float | None:
        """Of one record; None before there was any."""
        return self._all.w / self._all.count if self._all.count > 0.0 else None

    def slowness(self, worker: WorkerId, now: Seconds) -> float:
        """The time that it takes over the time that its peers would take. 1 for one of whom nothing is known."""
        own = self._workers.get(worker)
        if own is None:
            return 1.0
        kept = _fading(own.at, now)
        return (own.taken * kept + PRIOR) / (own.expected * kept + PRIOR)

    @property
    def _mean_crowd(self) -> float:
        return self._all.wn / self._all.w if self._all.w > 0.0 else 0.0


def _fading(since: Seconds, now: Seconds) -> float:
    return 0.5 ** (max(0.0, now - since) / HALF_LIFE)
