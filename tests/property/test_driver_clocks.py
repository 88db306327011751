"""The driver does the same on any clock and under any hash seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from pdd.sim.loop import run
from tests.support.trace_world import record, record_steady

ROOT = Path(__file__).parents[2]


def test_the_real_loop_and_the_virtual_loop_give_the_same_commands() -> None:
    virtual = run(record_steady())
    for kind in (
        "Replicate",
        "CancelReplication",
        "StartDecode",
        "StartExtend",
        "Stop",
        "Emit",
        "AskRoute",
        "SetTimer",
    ):
        assert any(f" {kind}(" in line for line in virtual), f"the script shows no {kind}"
    assert asyncio.run(record_steady()) == virtual


def test_the_virtual_loop_gives_the_same_trace_twice() -> None:
    assert run(record(30, with_losses=True, gap_s=0.11)) == run(record(30, with_losses=True, gap_s=0.11))


def test_the_trace_is_the_same_to_the_byte_under_two_hash_seeds() -> None:
    traces = [_run_python("-m", "tests.support.trace_world", hash_seed=seed) for seed in ("1", "2")]
    assert traces[0].count("\n") > 400
    assert traces[0] == traces[1]


def _run_python(*arguments: str, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
