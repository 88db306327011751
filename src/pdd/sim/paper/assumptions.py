"""What the simulation of the paper rests on: what was given, what was fitted within which bounds, and what a fit
implies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pdd.core.request import Role
from pdd.core.topology import Topology
from pdd.sim.paper import published
from pdd.sim.paper.runs import COLLAPSE_ARRIVALS, EVALUATION_ARRIVALS, FIRST_PROMPT_TOKENS
from pdd.sim.paper.transfers import ARRIVALS, LATENCY, LENGTH_SPREAD, NUM_CONNECTIONS
from pdd.sim.profile import load_hardware
from pdd.sim.workload.hits import SKEWED, mean_hit_rate


class Kind(StrEnum):
    """Where a value comes from."""

    GIVEN = "given"
    """Published about the system."""
    PUBLIC = "public"
    """Public figures of chips, models and traces."""
    ASSUMED = "assumed"
    """Not published; what a sensible deployment would have."""
    FITTED = "fitted"
    """Chosen so that a published figure is met, within ``bounds``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """``bounds``: the values that are physically plausible, for what was fitted."""

    name: str
    kind: Kind
    value: str
    bounds: str | None = None
    why: str


def assumptions(topology: Topology) -> Sequence[Assumption]:
    """Of the transfer tables and of the runs on ``topology``."""
    return (*_given(topology), *_of_transfers(), *_of_runs(topology))


def _given(topology: Topology) -> Sequence[Assumption]:
    return (
        Assumption(
            name="line",
            kind=Kind.GIVEN,
            value=", ".join(f"{link.rate_bits_per_s / 1e9:g} Gbit/s" for link in topology.links),
            why="All of it is payload: no allowance for headers.",
        ),
        Assumption(
            name="input, output",
            kind=Kind.GIVEN,
            value=f"{published.PROMPT_TOKENS} and {published.ANSWER_TOKENS} tokens in the mean",
            why=f"Conversations begin with {FIRST_PROMPT_TOKENS} tokens and grow.",
        ),
        Assumption(
            name="hit rates",
            kind=Kind.GIVEN,
            value=f"seven bands, mean {mean_hit_rate(SKEWED):.3f}",
            why="The bands are published, their shares are those of a public trace of coding agents, rounded.",
        ),
        Assumption(
            name="spread of input lengths",
            kind=Kind.PUBLIC,
            value=f"lognormal, {LENGTH_SPREAD}",
            why="Of the same public trace.",
        ),
        Assumption(
            name="chips and model",
            kind=Kind.PUBLIC,
            value="profiles H100-SXM, H200-SXM, DeepSeek-V4-Pro",
            why="Each figure has its source beside it in its file.",
        ),
    )


def _of_transfers() -> Sequence[Assumption]:
    return (
        Assumption(
            name="arrivals of the transfer tables",
            kind=Kind.FITTED,
            value=f"waves of {ARRIVALS.mean_wave_s:g} s, {ARRIVALS.swing:.0%} above and below the mean",
            bounds="waves of 5 to 60 s, swings of up to 50 %",
            why="At 0.92 of the line (published rate, length, hit rate) Poisson arrivals make the tails far too short: "
            "traffic must come in waves. Swing and length of the waves fit four figures.",
        ),
        Assumption(
            name="latency of a transfer",
            kind=Kind.FITTED,
            value=f"{LATENCY:g} s",
            bounds=f"0 to {published.HANDOFF_KV_TRANSFER:g} s",
            why="4.6 MB of KV are published to take 0.185 s, of which 2 ms are the line's rate: the rest is connection, "
            "control and device copies, which every transfer has.",
        ),
        Assumption(
            name="connections",
            kind=Kind.FITTED,
            value=str(NUM_CONNECTIONS),
            bounds="32 to 1024",
            why="Fewer make narrow transfers wait as long as published, but cut their tail: both at once need arrivals "
            "that are not published.",
        ),
    )


def _of_runs(topology: Topology) -> Sequence[Assumption]:
    return (
        Assumption(
            name="engines",
            kind=Kind.FITTED,
            value=_engines(topology),
            bounds="80 to 110 chips for prefill: 0.95 to 0.65 of it in use",
            why="How many chips serve 80 requests/s is not published. Weights need 16 H100 or 8 H200; prefill has "
            "somewhat more throughput than the line, else the line would never be what is waited for: with 90 chips "
            "prefill holds back so much that hiding the transfer is worth less than a fifth at P90.",
        ),
        Assumption(
            name="shares of the chips' peaks",
            kind=Kind.ASSUMED,
            value=_efficiencies(topology),
            bounds="0.15 to 0.6 of compute, 0.6 to 0.85 of bandwidth",
            why="With fewer FLOPs reached, more prefill engines serve the same load, and nothing else changes.",
        ),
        Assumption(
            name="delay of the line",
            kind=Kind.ASSUMED,
            value=", ".join(f"{link.delay_s:g} s one way" for link in topology.links),
            bounds="0.005 to 0.04 s",
            why="Two cities less than 2,000 km apart.",
        ),
        Assumption(
            name="relay threshold",
            kind=Kind.ASSUMED,
            value=f"{topology.router.policy.relay_threshold_s:g} s",
            bounds="0.1 to 2 s",
            why="With it a third or more of the requests relay; published are 20 to 30 %.",
        ),
        Assumption(
            name="load of the runs",
            kind=Kind.FITTED,
            value=f"{EVALUATION_ARRIVALS.requests_per_s:g} requests/s in waves of {EVALUATION_ARRIVALS.mean_wave_s:g} s, "
            f"{EVALUATION_ARRIVALS.swing:.0%} above and below",
            bounds="70 to 92 requests/s (0.98 of the line at 90), waves of 5 to 60 s, swings of up to 80 %",
            why="The nearest to transfers of 0.248 s at the median that the line can bear for long; these waves also bring "
            "their P99 and the share of relays to the size of what is published. They are regular, so that runs of one "
            "high and one low wave are alike. All times grow with the length of the waves.",
        ),
        Assumption(
            name="PDD's P99 below that of one datacenter",
            kind=Kind.GIVEN,
            value="14.4 s against 17.2 s",
            why="Hiding a transfer can't make an answer sooner than without any transfer: the published systems differ in "
            "something else (chips, batches or load), which is not simulated.",
        ),
        Assumption(
            name="collapse",
            kind=Kind.ASSUMED,
            value=f"{COLLAPSE_ARRIVALS.requests_per_s:g} requests/s of conversations of some twenty turns, on a topology of "
            "its own",
            why="Relay decode has places for a fifth of those who decode at once, four times what PDD uses, and no price "
            "is asked for them where relays stay: it is the published router's rule that collapses.",
        ),
    )


def _engines(topology: Topology) -> str:
    counts = Counter((role, each.num_chips, each.hardware) for role in Role for each in topology.engines_of(role))
    return ", ".join(f"{count} x {chips} {chip} for {role.value}" for (role, chips, chip), count in counts.items())


def _efficiencies(topology: Topology) -> str:
    names = dict.fromkeys(each.hardware for each in topology.engines if each.hardware is not None)
    chips = [load_hardware(name) for name in names]
    return ", ".join(f"{chip.name} {chip.compute_efficiency:g} and {chip.memory_efficiency:g}" for chip in chips)
