"""How much of their prompts requests find cached: a distribution in bands.

The mean alone says little: skewed rates make many tiny transfers and a few huge ones, narrow rates make all alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class HitBand:
    """A ``share`` of all requests hits between ``low`` and ``high`` of its prompt, evenly spread."""

    low: float
    high: float
    share: float

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2


HitRates = tuple[HitBand, ...]
"""Bands whose shares sum up to 1."""

SKEWED: HitRates = (
    HitBand(low=0.02, high=0.90, share=0.14),
    HitBand(low=0.90, high=0.95, share=0.12),
    HitBand(low=0.95, high=0.96, share=0.06),
    HitBand(low=0.96, high=0.97, share=0.08),
    HitBand(low=0.97, high=0.98, share=0.17),
    HitBand(low=0.98, high=0.99, share=0.27),
    HitBand(low=0.99, high=1.00, share=0.16),
)
"""As in production: 74 % of requests hit more than 95 %. The seven bands are the published ones, their shares those of
a public trace of coding agents, rounded; the mean is 0.90.
"""

NARROW: HitRates = (HitBand(low=0.85, high=0.95, share=1.0),)
"""The same mean, and all requests alike."""

UNCACHED: HitRates = (HitBand(low=0.0, high=0.0, share=1.0),)


def mean_hit_rate(rates: HitRates) -> float:
    """The mean over requests."""
    return sum(band.mean * band.share for band in rates)


def draw_hit_rate(rates: HitRates, chance: Random) -> float:
    """One request's hit rate."""
    (band,) = chance.choices(rates, weights=[band.share for band in rates])
    return chance.uniform(band.low, band.high)
