"""When requests arrive: a Poisson process whose rate swings, and surges now and then.

Real traffic is not Poisson: users come in waves. A wave is a stretch of time of random length in which the rate is
above or below its mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random

from pdd.core.errors import ConfigError
from pdd.core.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """From ``start`` on the rate is ``factor`` times as high, for ``duration``."""

    start: Seconds
    duration: Seconds
    factor: float

    def factor_at(self, moment: float) -> float:
        return self.factor if self.start <= moment < self.start + self.duration else 1.0

    def next_edge(self, moment: float) -> float:
        edges = (self.start, self.start + self.duration)
        return min((edge for edge in edges if edge > moment), default=inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """``requests_per_s`` in the mean; waves of ``mean_wave_s`` swing it to ``1 + swing`` and ``1 - swing`` times that.

    How long a wave is, is drawn from a gamma distribution of shape ``wave_shape``: 1 is exponential, higher is more
    regular.
    """

    requests_per_s: float
    swing: float = 0.0
    mean_wave_s: Seconds = Seconds(10.0)
    wave_shape: float = 1.0
    surges: tuple[Surge, ...] = ()

    def __post_init__(self) -> None:
        if self.requests_per_s <= 0 or not 0 <= self.swing < 1 or min(self.mean_wave_s, self.wave_shape) <= 0:
            raise ConfigError(f"arrivals: rates and waves must be above 0, a swing from 0 to below 1; got {self}")


def arrival_times(arrivals: Arrivals, chance: Random) -> Iterator[Seconds]:
    """Moments without end, in order."""
    moment = 0.0
    wave_ends, is_high = _next_wave(arrivals, moment, chance), chance.random() < 0.5
    while True:
        work = chance.expovariate(1.0)
        while True:
            rate = arrivals.requests_per_s * (1 + arrivals.swing if is_high else 1 - arrivals.swing)
            edge = wave_ends
            for surge in arrivals.surges:
                rate *= surge.factor_at(moment)
                edge = min(edge, surge.next_edge(moment))
            if moment + work / rate <= edge:
                break
            work -= (edge - moment) * rate
            moment = edge
            if edge == wave_ends:
                wave_ends, is_high = _next_wave(arrivals, moment, chance), not is_high
        moment += work / rate
        yield Seconds(moment)


def _next_wave(arrivals: Arrivals, moment: float, chance: Random) -> float:
    if not arrivals.swing:
        return inf
    return moment + chance.gammavariate(arrivals.wave_shape, arrivals.mean_wave_s / arrivals.wave_shape)
