"""Runs many independent simulations on several processes.

Results come in the order of the jobs, whoever is done first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from typing import TypeVar

from pdd.sim.processes import spawned

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")

Progress = Callable[[str], None]
"""Told one line after each job."""


def run_jobs(
    run: Callable[[_Job], _Result], jobs: Sequence[_Job], *, num_processes: int, progress: Progress
) -> list[_Result]:
    """``run``, jobs and results cross process boundaries if ``num_processes`` is above 1: a module's function, and
    plain data.

    Raises:
        WorkerFailed: one of the processes died.
    """
    if num_processes == 1:
        return list(_run_here(run, jobs, progress))
    with spawned(num_processes) as pool:
        running = [pool.submit(run, job) for job in jobs]
        _watch(running, progress)
        return [each.result() for each in running]


def _run_here(run: Callable[[_Job], _Result], jobs: Sequence[_Job], progress: Progress) -> Iterator[_Result]:
    for number, job in enumerate(jobs, start=1):
        yield run(job)
        progress(f"{number} of {len(jobs)} simulations")


def _watch(running: Sequence[Future[_Result]], progress: Progress) -> None:
    """Stops at the first failure: what has not begun is not worth beginning."""
    for number, each in enumerate(as_completed(running), start=1):
        if each.exception() is not None:
            for other in running:
                other.cancel()
            return
        progress(f"{number} of {len(running)} simulations")
