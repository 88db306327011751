"""Random small worlds in which everything breaks: every answer is the right one, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdd.sim.chaos.campaign import Tally
from pdd.sim.chaos.play import play_seed

ROOT = Path(__file__).parents[2]
WORLDS_PER_BATCH = 20
BATCHES = 15
QUICK_BATCHES = 4
"""So many are played by ``make check``, the rest by ``make test``."""
BATCHES_WITH_ALL_PHASES = 2
"""So many are looked at together: a single one need not meet every phase."""


def played(first_batch: int, num_batches: int = 1) -> Tally:
    """What became of these worlds, in each of which all must be right."""
    first, num_worlds = first_batch * WORLDS_PER_BATCH, num_batches * WORLDS_PER_BATCH
    tally = Tally()
    for seed in range(first, first + num_worlds):
        tally.add(play_seed(seed))
    failures = {played.seed: [finding.what for finding in played.findings] for played in tally.failures}
    assert failures == {}, "pdd sim chaos --seeds 1 --verbose --first-seed <seed> shows what happened"
    assert tally.num_requests > 12 * num_worlds
    assert tally.num_whole > tally.num_requests / 2
    return tally


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(batch, marks=[] if batch < QUICK_BATCHES else pytest.mark.thorough)
        for batch in range(BATCHES_WITH_ALL_PHASES, BATCHES)
    ],
)
def test_whatever_breaks_answers_are_right_and_nothing_is_left_behind(batch: int) -> None:
    assert played(batch).num_faults > 0


def test_faults_meet_every_phase_of_a_request() -> None:
    tally = played(0, BATCHES_WITH_ALL_PHASES)
    for command in (
        "StartDecode prefill",
        "StartDecode relay_decode",
        "StartDecode main_decode",
        "StartExtend",
        "AskHandoff",
        "Stop",
        "CancelReplication",
        "SetTimer",
        "Finish",
    ):
        assert tally.commands[command] > 10, f"hardly any {command}"
    assert tally.num_faults > 100


def test_a_world_is_the_same_to_the_byte_under_two_hash_seeds() -> None:
    traces = [_trace(hash_seed) for hash_seed in ("1", "2")]
    assert traces[0].count("\n") > 1000
    assert traces[0] == traces[1]


def _trace(hash_seed: str) -> str:
    """All that happens in a few worlds with many faults."""
    text = (
        "from pdd.sim.chaos.play import play_seed\n"
        "for seed in (2, 3, 11, 19):\n"
        "    print(play_seed(seed, lambda at, what: print(at, what)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
