"""Recorded traces at rising load: PDD, the same across the line without hiding, and the same in one datacenter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pdd.core.topology import Topology
from pdd.sim.compare.jobs import Progress, run_jobs
from pdd.sim.compare.measures import Measures, measure
from pdd.sim.compare.systems import System, as_system
from pdd.sim.run import simulate
from pdd.sim.workload.base import Workload
from pdd.sim.workload.traces import fitting, read_trace, speed_up

SWAMPED_TOKEN_SHARE = 0.25
"""Relay decode is sized for some 6 % of the output tokens; where it makes so many, it serves as a second decode cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One trace, ``speed`` times as many users, on one system."""

    trace: Path
    speed: float
    system: System
    topology: Topology
    max_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStanding:
    """``goodput`` is within the topology's SLA."""

    trace: str
    speed: float
    system: System
    requests_per_s: float
    measures: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What PDD is worth on a trace at a load; ``ttst_p90`` of cross-datacenter over PDD's, goodput of PDD over its."""

    trace: str
    speed: float
    ttst_gain: float | None
    goodput_gain: float | None
    relay_is_swamped: bool


def study_traces(
    topology: Topology,
    traces: Sequence[Path],
    speeds: Sequence[float],
    *,
    max_requests: int,
    num_processes: int,
    progress: Progress,
) -> list[TraceStanding]:
    """Every system at every load on every trace, in that order.

    Raises:
        ConfigError: a trace can't be read.
    """
    jobs = [
        TraceJob(trace=trace, speed=speed, system=system, topology=topology, max_requests=max_requests)
        for trace in traces
        for speed in speeds
        for system in System
    ]
    return run_jobs(measure_trace, jobs, num_processes=num_processes, progress=progress)


def measure_trace(job: TraceJob) -> TraceStanding:
    """Simulates one."""
    workload = load(job)
    result = simulate(as_system(job.topology, job.system), workload, seed=0)
    measures = measure(result, job.topology.router.sla)
    return TraceStanding(
        trace=workload.name,
        speed=job.speed,
        system=job.system,
        requests_per_s=len(workload.requests) / max(1.0, workload.requests[-1].arrival),
        measures=measures,
    )


def load(job: TraceJob) -> Workload:
    """What is sent: the conversations that fit the model, the first ``max_requests`` of them all."""
    whole = fitting(speed_up(read_trace(job.trace), job.speed), job.topology.max_model_tokens)
    return replace(whole, requests=whole.requests[: job.max_requests])


def verdicts(standings: Sequence[TraceStanding]) -> Iterator[Verdict]:
    """One for each trace and load."""
    by_key = {(each.trace, each.speed, each.system): each.measures for each in standings}
    for trace, speed in dict.fromkeys((each.trace, each.speed) for each in standings):
        pdd, cross = (by_key[trace, speed, system] for system in (System.PDD, System.CROSS_DC))
        yield Verdict(
            trace=trace,
            speed=speed,
            ttst_gain=_ratio(cross.ttst.p90, pdd.ttst.p90),
            goodput_gain=_ratio(pdd.goodput_per_s, cross.goodput_per_s),
            relay_is_swamped=pdd.rld_token_share > SWAMPED_TOKEN_SHARE,
        )


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
