"""Processes for simulations that are independent of each other."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context

from pdd.core.errors import WorkerFailed


@contextmanager
def spawned(num_processes: int) -> Generator[ProcessPoolExecutor]:
    """Children that are started anew, not forked: nothing of this process decides what they compute.

    Raises:
        WorkerFailed: one of them died.
    """
    with ProcessPoolExecutor(max_workers=num_processes, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise WorkerFailed("a process that simulated died") from error
