"""Every policy against its naive rival, in the same worlds with the same requests.

A rival is PDD with one rule changed. What a rule is worth shows in what gets worse without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pdd.core.topology import FilterRule, HandoffRule, PlacementRule, PolicyTable, RouteRule, Topology
from pdd.sim.compare.estimates import Estimate, estimate
from pdd.sim.compare.jobs import Progress, run_jobs
from pdd.sim.compare.measures import Measures, measure
from pdd.sim.compare.systems import with_policy
from pdd.sim.run import simulate
from pdd.sim.workload.base import Workload

BASELINE = "pdd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """``instead_of`` names the policy that it lacks."""

    name: str
    instead_of: str
    policy: PolicyTable


def rivals(policy: PolicyTable) -> tuple[Rival, ...]:
    """``policy`` first, then with one rule changed at a time."""
    return (
        Rival(name=BASELINE, instead_of="", policy=policy),
        Rival(name="route: nobody relays", instead_of="route", policy=replace(policy, route=RouteRule.DIRECT)),
        Rival(name="route: by hit rate", instead_of="route", policy=replace(policy, route=RouteRule.HIT_RATE)),
        Rival(name="route: relays end at RLD", instead_of="route", policy=replace(policy, route=RouteRule.RELAY_ONLY)),
        Rival(name="hand-off: one-shot", instead_of="hand-off", policy=replace(policy, handoff=HandoffRule.ONE_SHOT)),
        Rival(name="hand-off: catch-up", instead_of="hand-off", policy=replace(policy, handoff=HandoffRule.CATCH_UP)),
        Rival(name="filter: none", instead_of="filter", policy=replace(policy, filter=FilterRule.OFF)),
        Rival(name="filter: cuts at once", instead_of="filter", policy=replace(policy, filter=FilterRule.CUT)),
        Rival(
            name="placement: least loaded",
            instead_of="placement",
            policy=replace(policy, placement=PlacementRule.LEAST_LOADED),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A world and what it is asked; one workload per seed."""

    name: str
    topology: Topology
    workloads: Sequence[Workload]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    setting: str
    rival: str
    topology: Topology
    workload: Workload
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a rival did in a setting: means over seeds. Times in seconds."""

    setting: str
    rival: str
    ttst_p50: Estimate
    ttst_p90: Estimate
    ttst_p99: Estimate
    max_itl_p99: Estimate
    handoff_gap_p99: Estimate | None
    within_sla: Estimate
    goodput_per_s: Estimate
    relay_share: Estimate
    filtered_share: Estimate
    rld_token_share: Estimate
    wan_mb_per_request: Estimate
    prefill_hit: Estimate
    main_hit: Estimate


def compare_rivals(settings: Sequence[Setting], *, num_processes: int, progress: Progress) -> list[Standing]:
    """Every rival in every setting, in that order."""
    jobs = list(_jobs(settings))
    found = run_jobs(_measure, jobs, num_processes=num_processes, progress=progress)
    groups: dict[tuple[str, str], list[Measures]] = {}
    for job, measures in zip(jobs, found, strict=True):
        groups.setdefault((job.setting, job.rival), []).append(measures)
    return [_standing(setting, rival, measures) for (setting, rival), measures in groups.items()]


def _jobs(settings: Sequence[Setting]) -> Iterator[_Job]:
    for setting in settings:
        for rival in rivals(setting.topology.router.policy):
            topology = with_policy(setting.topology, rival.policy)
            for seed, workload in enumerate(setting.workloads, start=1):
                yield _Job(setting=setting.name, rival=rival.name, topology=topology, workload=workload, seed=seed)


def _measure(job: _Job) -> Measures:
    return measure(simulate(job.topology, job.workload, seed=job.seed), job.topology.router.sla)


def _standing(setting: str, rival: str, seeds: Sequence[Measures]) -> Standing:
    gaps = [each.handoff_gap.p99 for each in seeds if each.handoff_gap.p99 is not None]
    return Standing(
        setting=setting,
        rival=rival,
        ttst_p50=_estimate(each.ttst.p50 for each in seeds),
        ttst_p90=_estimate(each.ttst.p90 for each in seeds),
        ttst_p99=_estimate(each.ttst.p99 for each in seeds),
        max_itl_p99=_estimate(each.max_itl.p99 for each in seeds),
        handoff_gap_p99=estimate(gaps) if gaps else None,
        within_sla=_estimate(each.within_sla for each in seeds),
        goodput_per_s=_estimate(each.goodput_per_s for each in seeds),
        relay_share=_estimate(each.relay_share for each in seeds),
        filtered_share=_estimate(each.filtered_share for each in seeds),
        rld_token_share=_estimate(each.rld_token_share for each in seeds),
        wan_mb_per_request=_estimate(each.wan_bytes_per_request / 1e6 for each in seeds),
        prefill_hit=_estimate(each.prefill_hit for each in seeds),
        main_hit=_estimate(each.main_hit for each in seeds),
    )


def _estimate(values: Iterable[float | None]) -> Estimate:
    return estimate([0.0 if value is None else value for value in values])
