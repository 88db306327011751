"""Means over seeds, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

_STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % quantiles of Student's distribution for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % confidence interval; one seed has none."""

    mean: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """``values`` has one per seed, at least one."""
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean=mean, low=None, high=None)
    degrees = len(values) - 1
    quantile = _STUDENT_95[min(degrees, len(_STUDENT_95)) - 1]
    margin = quantile * stdev(values) / sqrt(len(values))
    return Estimate(mean=mean, low=mean - margin, high=mean + margin)
