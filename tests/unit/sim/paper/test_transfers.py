"""The link model alone shows what the published transfer table shows."""

from __future__ import annotations

import pytest

from pdd.sim.paper.transfers import TransferJob, TransferTable, measure_transfers
from pdd.sim.workload.hits import NARROW, SKEWED, HitRates


def table(kind: str, hit_rates: HitRates, seed: int = 1) -> TransferTable:
    return measure_transfers(TransferJob(kind=kind, hit_rates=hit_rates, seed=seed, num_requests=40_000))


def test_the_published_load_is_ninety_two_percent_of_the_line():
    tables = [table("narrow", NARROW, seed) for seed in range(6)]
    assert sum(each.utilisation for each in tables) / 6 == pytest.approx(0.92, abs=0.04)


def test_half_of_skewed_transfers_are_far_quicker_than_half_of_narrow_ones():
    skewed, narrow = table("skewed", SKEWED), table("narrow", NARROW)
    assert skewed.took.p50 < 0.6 * narrow.took.p50
    assert skewed.busy_share < narrow.busy_share


def test_the_same_seed_gives_the_same_table():
    assert table("skewed", SKEWED, 3) == table("skewed", SKEWED, 3)
    assert table("skewed", SKEWED, 3) != table("skewed", SKEWED, 4)
