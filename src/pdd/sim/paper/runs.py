"""The runs of the whole system behind the paper's figures: which worlds, and what is kept of each.

All three systems get the same requests in the same order (same seed), so that differences between them are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from msgspec.structs import replace as with_fields

from pdd.core.errors import ConfigError
from pdd.core.ids import RequestId, TokenId
from pdd.core.request import Route, Steering
from pdd.core.topology import RouteRule, SlaTable, Topology
from pdd.core.units import Seconds
from pdd.sim.compare.measures import Measures, in_thirds, measure, measure_samples, settled
from pdd.sim.compare.systems import System, as_system, with_policy
from pdd.sim.paper.published import ANSWER_TOKENS, PROMPT_TOKENS
from pdd.sim.paper.transfers import LENGTH_SPREAD
from pdd.sim.result import RequestSample
from pdd.sim.run import simulate
from pdd.sim.workload.arrivals import Arrivals
from pdd.sim.workload.base import SimRequest, Workload
from pdd.sim.workload.conversations import ConversationSpec, Lengths, generate, is_warm_up
from pdd.sim.workload.hits import SKEWED, HitBand, HitRates

EVALUATION_ARRIVALS = Arrivals(requests_per_s=90.0, swing=0.7, mean_wave_s=Seconds(15.0), wave_shape=400.0)
"""Waves as good as regular, so that a run of one high and one low wave sees as much of both, whatever its seed."""
COLLAPSE_ARRIVALS = Arrivals(requests_per_s=2.4, swing=0.25)
LONG_CONVERSATIONS: HitRates = (HitBand(low=0.02, high=0.90, share=0.05), HitBand(low=0.96, high=1.00, share=0.95))
"""One turn in twenty begins a new conversation."""
MAX_PROMPT_TOKENS = 2 * PROMPT_TOKENS - 4096
FIRST_PROMPT_TOKENS = 68_000
"""Conversations grow from here; the mean over all turns is then 64 K."""


class Purpose(StrEnum):
    """What a run is for."""

    TTFT = "ttft"
    RLD_SHARE = "rld_share"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """One run of the evaluation."""

    purpose: Purpose
    system: System
    topology: Topology
    spec: ConversationSpec
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """What is kept of it."""

    purpose: Purpose
    system: System
    seed: int
    whole: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseJob:
    """One run of long conversations by ``route``."""

    route: RouteRule
    topology: Topology
    num_requests: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseTable:
    """Its beginning, middle and end."""

    route: RouteRule
    seed: int
    thirds: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A third of a run.

    The hit rates are parts of all prompt tokens, also of prompts that never went to main decode.
    """

    relay_share: float
    rld_token_share: float
    ttst_p90_s: float
    prefill_hit: float
    main_hit: float
    within_sla: float


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
        num_conversations=1500,
    )


def rld_share_spec(num_requests: int) -> ConversationSpec:
    """64 K of input and output together, 90 % hits, 1 K of output."""
    return replace(
        evaluation_spec(num_requests),
        name="rld-share",
        answers=Lengths(mean=1024, most=1024),
    )


def collapse_workload(num_requests: int, *, seed: int) -> Workload:
    """Thirty agents whose conversations have some twenty turns: what a turn leaves out at main decode, all later ones
    lack.

    The stems that they begin with are at main decode, whatever rule is asked about what comes then.
    """
    spec = ConversationSpec(
        name="collapse",
        num_requests=num_requests,
        arrivals=COLLAPSE_ARRIVALS,
        first_prompts=Lengths(mean=45_000, spread=0.3, least=4096, most=MAX_PROMPT_TOKENS),
        answers=Lengths(mean=ANSWER_TOKENS, most=ANSWER_TOKENS),
        max_tokens=1024,
        hit_rates=LONG_CONVERSATIONS,
        num_conversations=30,
        warm_up_s=Seconds(120.0),
    )
    workload = generate(spec, seed=seed)
    return replace(workload, requests=tuple(map(_directly_if_stem, workload.requests)))


def _directly_if_stem(request: SimRequest) -> SimRequest:
    return replace(request, steering=Steering(route=Route.DIRECT)) if is_warm_up(request.request_id) else request


def measure_run(job: RunJob) -> RunTable:
    """Simulates it."""
    topology = as_system(job.topology, job.system)
    result = simulate(topology, generate(job.spec, seed=job.seed), seed=job.seed)
    return RunTable(purpose=job.purpose, system=job.system, seed=job.seed, whole=measure(result, topology.router.sla))


def measure_collapse(job: CollapseJob) -> CollapseTable:
    """Simulates it."""
    topology = with_policy(job.topology, with_fields(job.topology.router.policy, route=job.route))
    workload = collapse_workload(job.num_requests, seed=job.seed)
    result = simulate(topology, workload, seed=job.seed)
    held = held_at_main(workload, {sample.request_id: sample.route for sample in result.samples})
    thirds = in_thirds(settled(result.samples))
    return CollapseTable(
        route=job.route, seed=job.seed, thirds=tuple(_stage(third, held, topology.router.sla) for third in thirds)
    )


def held_at_main(workload: Workload, routes: Mapping[RequestId, Route | None]) -> Mapping[RequestId, int]:
    """How many tokens of each prompt main decode's node has before the request comes, if it loses nothing.

    It has what a request that went there left, prompt and answer; of one that did not, only what was there before.
    """
    held: dict[RequestId, int] = {}
    kept: dict[RequestId, int] = {}
    stems: dict[TokenId, int] = {}
    for request in workload.requests:
        token, length = request.prompt[0]
        before = min(length, stems.get(token, 0)) if request.after is None else kept[request.after]
        held[request.request_id] = before
        reaches = routes.get(request.request_id) in {Route.DIRECT, Route.RELAY}
        kept[request.request_id] = request.num_prompt_tokens + request.num_answer_tokens if reaches else before
        if is_warm_up(request.request_id) and reaches:
            stems[token] = length
    return held


def _stage(samples: Sequence[RequestSample], held: Mapping[RequestId, int], sla: SlaTable) -> Stage:
    found = measure_samples(samples, sla)
    if found.ttst.p90 is None:
        raise ConfigError(f"{len(samples)} requests are too few to see a collapse")
    return Stage(
        relay_share=found.relay_share,
        rld_token_share=found.rld_token_share,
        ttst_p90_s=found.ttst.p90,
        prefill_hit=found.prefill_hit or 0.0,
        main_hit=sum(held[each.request_id] for each in samples) / sum(each.num_prompt_tokens for each in samples),
        within_sla=found.within_sla,
    )
