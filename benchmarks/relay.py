"""What the relay hides, from whole ``pdd demo`` runs: a real model, two clusters, an emulated wide-area line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from benchmarks.report import Result, row

_TIMEOUT_S = 400


def run(repetitions: int) -> Result:
    """Each run asks the same question with and without the relay, then continues the conversation."""
    demos = [_demo() for _ in range(repetitions)]
    relays, directs, seconds = ([_named(demo, name) for demo in demos] for name in ("relay", "direct", "second_turn"))
    checks = [demo["checks"] for demo in demos]
    return Result(
        name="relay",
        title="the default topology: 20 Mbit/s, 30 ms; a prompt of about 640 tokens, 29 MB of KV",
        rows=(
            row("wait for the second token, relay", "s", [_second_gap(run) for run in relays]),
            row("wait for the second token, direct", "s", [_second_gap(run) for run in directs]),
            row(
                "relay over direct",
                "ratio",
                [_second_gap(a) / _second_gap(b) for a, b in zip(relays, directs, strict=True)],
                "<= 0.1",
            ),
            row("hand-off gap", "s", [check["handoff_gap_s"]["value"] for check in checks]),
            row(
                "hand-off gap over its bound",
                "ratio",
                [check["handoff_gap_s"]["value"] / check["handoff_gap_s"]["bound"] for check in checks],
                "<= 1",
            ),
            row(
                "second turn's KV over the first's",
                "ratio",
                [b["wan_kv_bytes"] / a["wan_kv_bytes"] for a, b in zip(relays, seconds, strict=True)],
                "<= 0.15",
            ),
            row("relay text equals direct text", "share", [float(run["exact"]) for run in relays], "1"),
        ),
    )


def _demo() -> dict[str, Any]:
    """A check that the demo itself finds missed makes its exit code 1; the figures are there all the same."""
    command = [sys.executable, "-m", "pdd.cli", "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    result: dict[str, Any] = json.loads(done.stdout)
    if "runs" not in result:
        raise RuntimeError(f"the demo did not run: {result}")
    return result


def _named(demo: dict[str, Any], name: str) -> dict[str, Any]:
    return next(run for run in demo["runs"] if run["name"] == name)


def _second_gap(run: dict[str, Any]) -> float:
    return run["ttst_s"] - run["ttft_s"]
