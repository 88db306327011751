"""Plays many scenes, in as many processes as asked for, and adds up what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pdd.sim.chaos.play import Played, play_seed
from pdd.sim.chaos.verdict import Wrong
from pdd.sim.processes import spawned

_SEEDS_PER_TASK = 8


@dataclass(slots=True, kw_only=True)
class Tally:
    """Sums over scenes. ``found`` counts what must never be, by kind; ``failures`` are the scenes in which it was."""

    num_worlds: int = 0
    num_requests: int = 0
    num_faults: int = 0
    num_whole: int = 0
    num_refused: int = 0
    num_broken: int = 0
    num_left: int = 0
    found: Counter[Wrong] = field(default_factory=Counter[Wrong])
    commands: Counter[str] = field(default_factory=Counter[str])
    failures: list[Played] = field(default_factory=list[Played])

    def add(self, played: Played) -> None:
        """One more scene."""
        self.num_worlds += 1
        self.num_requests += played.num_requests
        self.num_faults += played.num_faults
        self.num_whole += played.num_whole
        self.num_refused += played.num_refused
        self.num_broken += played.num_broken
        self.num_left += played.num_left
        self.found.update(finding.wrong for finding in played.findings)
        self.commands.update(played.commands)
        if played.findings:
            self.failures.append(played)


def play_seeds(seeds: range, *, jobs: int, on_played: Callable[[Played], None] = lambda _: None) -> Tally:
    """Plays a scene for each seed; ``on_played`` is told of each, in order.

    Raises:
        WorkerFailed: one of the processes died.
    """
    tally = Tally()
    for played in _all_played(seeds, jobs):
        tally.add(played)
        on_played(played)
    return tally


def _all_played(seeds: range, jobs: int) -> Iterator[Played]:
    if jobs == 1:
        yield from map(play_seed, seeds)
        return
    with spawned(jobs) as pool:
        yield from pool.map(play_seed, seeds, chunksize=_SEEDS_PER_TASK)
