"""Every policy against its naive rivals, in the same worlds with the same requests.

A rival is PDD with one rule changed. What a rule is worth shows in what gets worse without it, where it matters: so
each setting names who competes in it. Differences are taken seed by seed, since both had the same requests: they are
far surer than the figures themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pdd.core.ids import RequestId
from pdd.core.topology import FilterRule, HandoffRule, PlacementRule, PolicyTable, RouteRule, Topology
from pdd.core.units import Seconds
from pdd.sim.compare.estimates import Estimate, estimate
from pdd.sim.compare.jobs import Progress, run_jobs
from pdd.sim.compare.measures import Measures, measure, settled
from pdd.sim.compare.systems import with_policy
from pdd.sim.report import main_hit_rate
from pdd.sim.run import simulate
from pdd.sim.workload.base import Workload

BASELINE = "pdd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """PDD but for one rule or constant of ``policy``."""

    name: str
    policy: PolicyTable


def rivals(policy: PolicyTable) -> tuple[Rival, ...]:
    """``policy`` first, then with one thing changed at a time."""
    return (
        Rival(name=BASELINE, policy=policy),
        Rival(name="nobody relays", policy=replace(policy, route=RouteRule.DIRECT)),
        Rival(name="by hit rate", policy=replace(policy, route=RouteRule.HIT_RATE)),
        Rival(name="relays end at RLD", policy=replace(policy, route=RouteRule.RELAY_ONLY)),
        Rival(name="relays after 2 s", policy=replace(policy, relay_threshold_s=Seconds(2.0))),
        Rival(name="always one-shot", policy=replace(policy, handoff=HandoffRule.ONE_SHOT)),
        Rival(name="always catch-up", policy=replace(policy, handoff=HandoffRule.CATCH_UP)),
        Rival(name="with filter", policy=replace(policy, filter=FilterRule.BACKGROUND)),
        Rival(name="filter cuts at once", policy=replace(policy, filter=FilterRule.CUT)),
        Rival(name="least loaded", policy=replace(policy, placement=PlacementRule.LEAST_LOADED)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A world and what it is asked; one workload per seed. ``rivals`` compete in it with PDD, by name."""

    name: str
    rivals: Sequence[str]
    topology: Topology
    workloads: Sequence[Workload]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a rival: ``mean`` over seeds, and how much ``more`` that is than PDD's with the same requests.

    ``more`` is None where PDD has no such figure.
    """

    mean: Estimate
    more: Estimate | None

    @property
    def differs(self) -> bool:
        """Whether chance is an unlikely reason."""
        if self.more is None or self.more.low is None or self.more.high is None:
            return False
        return self.more.low > 0 or self.more.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a rival did in a setting. Times in seconds. No figure where some seed has none, as gaps without hand-offs."""

    setting: str
    rival: str
    figures: Mapping[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    setting: str
    rival: str
    topology: Topology
    workload: Workload
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    measures: Measures
    next_hit: float | None


_FIGURES: Mapping[str, Callable[[_Found], float | None]] = {
    "ttst_p50": lambda found: found.measures.ttst.p50,
    "ttst_p90": lambda found: found.measures.ttst.p90,
    "ttst_p99": lambda found: found.measures.ttst.p99,
    "handoff_gap_p50": lambda found: found.measures.handoff_gap.p50,
    "handoff_gap_p99": lambda found: found.measures.handoff_gap.p99,
    "within_sla": lambda found: found.measures.within_sla,
    "goodput_per_s": lambda found: found.measures.goodput_per_s,
    "relay_share": lambda found: found.measures.relay_share,
    "rld_token_share": lambda found: found.measures.rld_token_share,
    "filtered_share": lambda found: found.measures.filtered_share,
    "wan_mb_per_request": lambda found: found.measures.wan_bytes_per_request / 1e6,
    "prefill_hit": lambda found: found.measures.prefill_hit,
    "main_hit": lambda found: found.measures.main_hit,
    "main_hit_after_singular": lambda found: found.next_hit,
}


def compare_rivals(settings: Sequence[Setting], *, num_processes: int, progress: Progress) -> list[Standing]:
    """PDD and its rivals in every setting, in that order."""
    jobs = list(_jobs(settings))
    found = run_jobs(_run, jobs, num_processes=num_processes, progress=progress)
    groups: dict[tuple[str, str], list[_Found]] = {}
    for job, each in zip(jobs, found, strict=True):
        groups.setdefault((job.setting, job.rival), []).append(each)
    return [
        Standing(setting=setting, rival=rival, figures=_figures(seeds, groups[setting, BASELINE]))
        for (setting, rival), seeds in groups.items()
    ]


def _jobs(settings: Sequence[Setting]) -> Iterator[_Job]:
    for setting in settings:
        for rival in rivals(setting.topology.router.policy):
            if rival.name not in {BASELINE, *setting.rivals}:
                continue
            topology = with_policy(setting.topology, rival.policy)
            for seed, workload in enumerate(setting.workloads, start=1):
                yield _Job(setting=setting.name, rival=rival.name, topology=topology, workload=workload, seed=seed)


def _run(job: _Job) -> _Found:
    result = simulate(job.topology, job.workload, seed=job.seed)
    after = _after_singular(job.workload)
    next_hit = main_hit_rate(sample for sample in settled(result.samples) if sample.request_id in after)
    return _Found(measures=measure(result, job.topology.router.sla), next_hit=next_hit)


def _after_singular(workload: Workload) -> frozenset[RequestId]:
    """The turns after those that promised to say less than others: the same ones whatever a rival does."""
    usual = max(request.max_tokens for request in workload.requests)
    brief = {request.request_id for request in workload.requests if request.max_tokens < usual}
    return frozenset(request.request_id for request in workload.requests if request.after in brief)


def _figures(seeds: Sequence[_Found], baseline: Sequence[_Found]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name, figure_of in _FIGURES.items():
        values = _known([figure_of(each) for each in seeds])
        usual = _known([figure_of(each) for each in baseline])
        if values:
            more = [value - other for value, other in zip(values, usual, strict=True)] if usual else []
            figures[name] = Figure(mean=estimate(values), more=estimate(more) if more else None)
    return figures


def _known(values: Sequence[float | None]) -> list[float]:
    """All of them, or none if one is unknown."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
