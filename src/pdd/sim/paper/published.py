"""The published figures, and which of our figures is to be compared with which.

Source: an interview article on PDD (July 2026) and public notes on the paper. TTFT is in the paper's convention: it
ends when the *decode side's* first token reaches the user, so it contains the KV transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdd.core.units import BitsPerSecond, Seconds
from pdd.sim.compare.systems import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """P90 is not published for transfers."""

    p50: Seconds
    p90: Seconds | None = None
    p99: Seconds


TTFT: Mapping[System, Percentiles] = {
    System.SAME_DC: Percentiles(p50=Seconds(3.9), p90=Seconds(10.4), p99=Seconds(17.2)),
    System.CROSS_DC: Percentiles(p50=Seconds(6.7), p90=Seconds(18.3), p99=Seconds(29.7)),
    System.PDD: Percentiles(p50=Seconds(4.2), p90=Seconds(9.8), p99=Seconds(14.4)),
}

KV_TRANSFER: Mapping[str, Percentiles] = {
    "skewed": Percentiles(p50=Seconds(0.248), p99=Seconds(18.883)),
    "narrow": Percentiles(p50=Seconds(1.210), p99=Seconds(25.542)),
}
"""At 20 Gbit/s, 80 requests/s, mean hit rate 90 %; skewed as in production, narrow between 85 and 95 %."""

CONNECTION_WAIT_NARROW = Seconds(1.682)
"""The mean wait for a connection of the pool."""

RLD_TOKEN_SHARE = 0.062
"""Relay decode's share of all output tokens at 64 K, 90 % hits and 1 K of output."""

LINE_RATE = BitsPerSecond(20e9)
REQUESTS_PER_S = 80.0
PROMPT_TOKENS = 65_536
ANSWER_TOKENS = 512
HANDOFF_KV_TRANSFER = Seconds(0.185)
"""The mean time of 4.6 MB of KV over the WAN, which take 2 ms at its rate: what a transfer costs however
small it is.
"""
