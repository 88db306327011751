"""The paper in one go: every run that its figures need, on several processes, and the report on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdd.core.topology import RouteRule, Topology
from pdd.sim.compare.jobs import Progress, run_jobs
from pdd.sim.compare.systems import System
from pdd.sim.paper.assumptions import assumptions
from pdd.sim.paper.report import PaperReport, build_report
from pdd.sim.paper.runs import Purpose, RunJob, RunTable, collapse_spec, evaluation_spec, measure_run, rld_share_spec
from pdd.sim.paper.transfers import TransferJob, TransferTable, measure_transfers
from pdd.sim.workload.hits import NARROW, SKEWED

TRANSFER_SEEDS = 5
NUM_SHARE_SEEDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is simulated."""

    num_seeds: int = 3
    requests_per_run: int = 4000
    transfers_per_run: int = 200_000


def study_paper(
    topology: Topology, collapsing: Topology, extent: Extent, *, num_processes: int, progress: Progress
) -> PaperReport:
    """Simulates everything: the collapse on ``collapsing``, all else on ``topology``.

    The same report for the same arguments, on however many processes.
    """
    seeds = tuple(range(1, extent.num_seeds + 1))
    jobs = [
        *_run_jobs(topology, extent, seeds),
        *_collapse_jobs(collapsing, extent),
        *_transfer_jobs(extent),
    ]
    tables = run_jobs(_measure, jobs, num_processes=num_processes, progress=progress)
    return build_report(
        [table for table in tables if isinstance(table, TransferTable)],
        [table for table in tables if isinstance(table, RunTable)],
        assumptions=assumptions(topology),
        seeds=seeds,
        requests_per_run=extent.requests_per_run,
    )


def _measure(job: RunJob | TransferJob) -> RunTable | TransferTable:
    match job:
        case RunJob():
            return measure_run(job)
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


def _collapse_jobs(topology: Topology, extent: Extent) -> Iterator[RunJob]:
    for route in (RouteRule.MISSING_BYTES, RouteRule.RELAY_ONLY):
        yield RunJob(
            purpose=Purpose.COLLAPSE,
            system=System.PDD,
            topology=topology,
            spec=collapse_spec(extent.requests_per_run),
            seed=1,
            route=route,
        )


def _transfer_jobs(extent: Extent) -> Iterator[TransferJob]:
    for kind, hit_rates in (("skewed", SKEWED), ("narrow", NARROW)):
        for seed in range(1, TRANSFER_SEEDS + 1):
            yield TransferJob(kind=kind, hit_rates=hit_rates, seed=seed, num_requests=extent.transfers_per_run)
