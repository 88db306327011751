"""The runs of the whole system behind the paper's figures: which worlds, and what is kept of each.

All three systems get the same requests in the same order (same seed), so that differences between them are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from msgspec.structs import replace as with_fields

from pdd.core.topology import RouteRule, Topology
from pdd.core.units import Seconds
from pdd.sim.compare.measures import Measures, in_thirds, measure, measure_samples, settled
from pdd.sim.compare.systems import System, as_system, with_policy
from pdd.sim.paper.published import ANSWER_TOKENS, PROMPT_TOKENS
from pdd.sim.paper.transfers import LENGTH_SPREAD
from pdd.sim.run import simulate
from pdd.sim.workload.arrivals import Arrivals
from pdd.sim.workload.conversations import ConversationSpec, Lengths, generate
from pdd.sim.workload.hits import SKEWED

EVALUATION_ARRIVALS = Arrivals(requests_per_s=90.0, swing=0.4, mean_wave_s=Seconds(5.0), wave_shape=16.0)
"""Shorter and more regular waves than those of the transfer tables: a run of a minute must see as many high as low ones."""
COLLAPSE_ARRIVALS = Arrivals(requests_per_s=7.5, swing=0.25)
MAX_PROMPT_TOKENS = 2 * PROMPT_TOKENS - 4096
FIRST_PROMPT_TOKENS = 68_000
"""Conversations grow from here; the mean over all turns is then 64 K."""


class Purpose(StrEnum):
    """What a run is for."""

    TTFT = "ttft"
    RLD_SHARE = "rld_share"
    COLLAPSE = "collapse"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """One run; ``route`` is PDD's."""

    purpose: Purpose
    system: System
    topology: Topology
    spec: ConversationSpec
    seed: int
    route: RouteRule = RouteRule.MISSING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """What is kept of a run: all of it, and its beginning, middle and end."""

    purpose: Purpose
    system: System
    route: RouteRule
    seed: int
    whole: Measures
    thirds: tuple[Measures, ...]


def evaluation_spec(num_requests: int) -> ConversationSpec:
    """The published workload: 64 K in the mean, 90 % hits, 512 tokens of answer, in waves."""
    return ConversationSpec(
        name="paper",
        num_requests=num_requests,
        arrivals=EVALUATION_ARRIVALS,
        first_prompts=Lengths(mean=FIRST_PROMPT_TOKENS, spread=LENGTH_SPREAD, least=4096, most=MAX_PROMPT_TOKENS),
        answers=Lengths(mean=ANSWER_TOKENS, most=ANSWER_TOKENS),
        max_tokens=1024,
        hit_rates=SKEWED,
        num_conversations=4000,
    )


def rld_share_spec(num_requests: int) -> ConversationSpec:
    """64 K of input and output together, 90 % hits, 1 K of output."""
    return replace(
        evaluation_spec(num_requests),
        name="rld-share",
        answers=Lengths(mean=1024, most=1024),
    )


def collapse_spec(num_requests: int) -> ConversationSpec:
    """Agents whose conversations have many turns: what a turn leaves out at main decode, all later ones pay for."""
    return ConversationSpec(
        name="collapse",
        num_requests=num_requests,
        arrivals=COLLAPSE_ARRIVALS,
        first_prompts=Lengths(mean=55_000, spread=LENGTH_SPREAD, least=4096, most=MAX_PROMPT_TOKENS),
        answers=Lengths(mean=ANSWER_TOKENS, most=ANSWER_TOKENS),
        max_tokens=1024,
        num_conversations=200,
    )


def measure_run(job: RunJob) -> RunTable:
    """Simulates it."""
    topology = as_system(job.topology, job.system)
    if job.route is not topology.router.policy.route and job.system is System.PDD:
        topology = with_policy(topology, with_fields(topology.router.policy, route=job.route))
    result = simulate(topology, generate(job.spec, seed=job.seed), seed=job.seed)
    samples = settled(result.samples)
    sla = topology.router.sla
    return RunTable(
        purpose=job.purpose,
        system=job.system,
        route=job.route,
        seed=job.seed,
        whole=measure(result, sla),
        thirds=tuple(measure_samples(third, sla) for third in in_thirds(samples)),
    )
