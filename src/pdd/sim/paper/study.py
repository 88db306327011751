"""The paper in one go: every run that its figures need, on several processes, and the report on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from pdd.core.topology import RouteRule, Topology
from pdd.sim.compare.jobs import run_jobs
from pdd.sim.compare.systems import System
from pdd.sim.paper.assumptions import assumptions
from pdd.sim.paper.report import PaperReport, build_report
from pdd.sim.paper.runs import (
    CollapseJob,
    CollapseTable,
    Purpose,
    RunJob,
    RunTable,
    evaluation_spec,
    measure_collapse,
    measure_run,
    rld_share_spec,
)
from pdd.sim.paper.transfers import TransferJob, TransferTable, measure_transfers
from pdd.sim.workload.hits import NARROW, SKEWED

NUM_TRANSFER_SEEDS = 5
NUM_SHARE_SEEDS = 3
NUM_COLLAPSE_SEEDS = 3

Progress = Callable[[int, int], None]
"""Told after each simulation how many are done, of how many."""

_Job = RunJob | CollapseJob | TransferJob
_Table = RunTable | CollapseTable | TransferTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is simulated."""

    num_seeds: int = 5
    requests_per_run: int = 2700
    requests_per_collapse: int = 1000
    transfers_per_run: int = 200_000


def study_paper(
    topology: Topology, collapsing: Topology, extent: Extent, *, num_processes: int, progress: Progress
) -> PaperReport:
    """Simulates everything: the collapse on ``collapsing``, all else on ``topology``.

    The same report for the same arguments, on however many processes.
    """
    seeds = tuple(range(1, extent.num_seeds + 1))
    jobs: list[_Job] = [
        *_run_jobs(topology, extent, seeds),
        *_collapse_jobs(collapsing, extent, seeds),
        *_transfer_jobs(extent),
    ]
    done = count(1)
    tables = run_jobs(_measure, jobs, num_processes=num_processes, progress=lambda _: progress(next(done), len(jobs)))
    return build_report(
        transfers=[table for table in tables if isinstance(table, TransferTable)],
        runs=[table for table in tables if isinstance(table, RunTable)],
        collapses=[table for table in tables if isinstance(table, CollapseTable)],
        assumptions=assumptions(topology),
        seeds=seeds,
        requests_per_run=extent.requests_per_run,
    )


def _measure(job: _Job) -> _Table:
    match job:
        case RunJob():
            return measure_run(job)
        case CollapseJob():
            return measure_collapse(job)
        case TransferJob():
            return measure_transfers(job)


def _run_jobs(topology: Topology, extent: Extent, seeds: Sequence[int]) -> Iterator[RunJob]:
    spec = evaluation_spec(extent.requests_per_run)
    for seed in seeds:
        for system in System:
            yield RunJob(purpose=Purpose.TTFT, system=system, topology=topology, spec=spec, seed=seed)
    for seed in seeds[:NUM_SHARE_SEEDS]:
        yield RunJob(
            purpose=Purpose.RLD_SHARE,
            system=System.PDD,
            topology=topology,
            spec=rld_share_spec(extent.requests_per_run),
            seed=seed,
        )


def _collapse_jobs(topology: Topology, extent: Extent, seeds: Sequence[int]) -> Iterator[CollapseJob]:
    for seed in seeds[:NUM_COLLAPSE_SEEDS]:
        for route in (RouteRule.MISSING_BYTES, RouteRule.RELAY_ONLY):
            yield CollapseJob(route=route, topology=topology, num_requests=extent.requests_per_collapse, seed=seed)


def _transfer_jobs(extent: Extent) -> Iterator[TransferJob]:
    for kind, hit_rates in (("skewed", SKEWED), ("narrow", NARROW)):
        for seed in range(1, NUM_TRANSFER_SEEDS + 1):
            yield TransferJob(kind=kind, hit_rates=hit_rates, seed=seed, num_requests=extent.transfers_per_run)
