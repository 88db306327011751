"""Fair sharing in closed form agrees with what can be computed by hand and with queueing theory."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from pdd.core.units import BytesPerSecond, Seconds
from pdd.sim.paper.sharing import Transfer, share_line

RATE = BytesPerSecond(100.0)


def times(
    asked: list[tuple[float, float]], *, connections: int = 99, latency: float = 0.0
) -> list[tuple[float, float]]:
    transfers = [Transfer(at=Seconds(at), num_bytes=size) for at, size in asked]
    done = share_line(transfers, rate=RATE, num_connections=connections, latency=Seconds(latency))
    return [(each.waited_s, each.took_s) for each in done]


def test_a_transfer_alone_has_the_whole_line_and_the_latency():
    assert times([(3.0, 200.0)], latency=0.5) == [(0.0, 2.5)]


def test_two_share_it_until_the_small_one_is_done():
    assert times([(0.0, 200.0), (0.0, 100.0)]) == [(0.0, 3.0), (0.0, 2.0)]


def test_one_that_comes_later_takes_half_of_what_is_left():
    assert times([(0.0, 300.0), (1.0, 100.0)]) == [(0.0, 4.0), (0.0, 2.0)]


def test_without_a_connection_one_waits_for_the_first_that_is_free():
    assert times([(0.0, 200.0), (0.0, 100.0), (0.5, 100.0)], connections=2) == [
        (0.0, 4.0),
        (0.0, 2.0),
        (1.5, 3.5),
    ]


def test_with_one_connection_it_is_first_come_first_served():
    assert times([(0.0, 100.0), (0.0, 100.0), (5.0, 100.0)], connections=1) == [(0.0, 1.0), (1.0, 2.0), (0.0, 1.0)]


@pytest.mark.parametrize("spread", ["constant", "exponential"])
def test_the_mean_of_poisson_transfers_depends_on_load_and_size_only(spread):
    chance, moment, asked = Random(7), 0.0, []
    for _ in range(60_000):
        moment += chance.expovariate(0.8)
        asked.append((moment, 100.0 if spread == "constant" else chance.expovariate(1 / 100.0)))
    took = [each for _, each in times(asked, connections=10**9)]
    assert fmean(took) == pytest.approx(1.0 / (1 - 0.8), rel=0.08)
