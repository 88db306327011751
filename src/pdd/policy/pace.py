"""How fast workers of one role really are, each compared with its peers. The past fades; without news all are alike."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.core.ids import WorkerId
from pdd.core.units import Seconds

HALF_LIFE = Seconds(30.0)
"""After so long what was measured counts half: a worker that was slow gets its chance again."""
_PRIOR = Seconds(1.0)
"""Every worker begins with a second's worth of work done in just that second, so that one odd sample says little."""


@dataclass(slots=True)
class _Tally:
    work: float = 0.0
    seconds: float = 0.0
    count: float = 0.0
    at: Seconds = Seconds(0.0)

    def fade(self, now: Seconds) -> _Tally:
        """Brings it up to ``now``, and returns it."""
        if now > self.at:
            kept = 0.5 ** ((now - self.at) / HALF_LIFE)
            self.work, self.seconds, self.count = self.work * kept, self.seconds * kept, self.count * kept
            self.at = now
        return self

    def add(self, work: float, seconds: Seconds, now: Seconds) -> None:
        self.fade(now)
        self.work, self.seconds, self.count = self.work + work, self.seconds + seconds, self.count + 1.0


@dataclass(slots=True)
class RolePace:
    """Work is counted in whatever unit the role has: blocks computed by prefill, tokens by decoders."""

    all: _Tally = field(default_factory=_Tally)
    by_worker: dict[WorkerId, _Tally] = field(default_factory=dict[WorkerId, _Tally])

    def record(self, worker: WorkerId, *, work: float, seconds: Seconds, now: Seconds) -> None:
        """``worker`` did so much ``work`` (above 0) in ``seconds``."""
        self.all.add(work, seconds, now)
        self.by_worker.setdefault(worker, _Tally()).add(work, seconds, now)

    @property
    def unit_s(self) -> Seconds | None:
        """Mean time of a unit of work; None before anything was measured."""
        return Seconds(self.all.seconds / self.all.work) if self.all.work > 0.0 else None

    @property
    def typical_s(self) -> Seconds | None:
        """Mean time of one record; None before there was any."""
        return Seconds(self.all.seconds / self.all.count) if self.all.count > 0.0 else None

    def slowness(self, worker: WorkerId, now: Seconds) -> float:
        """The time that it takes over the time that its peers would take. 1 for one of whom nothing is known."""
        own, unit = self.by_worker.get(worker), self.unit_s
        if own is None or unit is None:
            return 1.0
        own.fade(now)
        return (own.seconds + _PRIOR) / (own.work * unit + _PRIOR)
