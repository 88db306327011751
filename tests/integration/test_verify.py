"""``pdd verify`` with real processes, on the small random model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def verify(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdd.cli", "verify", *flags], capture_output=True, text=True, timeout=220, check=False
    )


def test_a_prompt_is_exact_whichever_way_it_takes():
    done = verify("--topology", "tiny", "--prompts", "1", "--json")
    result = json.loads(done.stdout)
    assert result["mismatches"] == []
    assert result["exact_rate"] == 1.0
    assert result["relays"] >= 8
    assert result["per_case"]["one_shot_17"] == {"requests": 2, "exact": 2, "relays": 2}
    assert result["per_case"]["catch_up"] == {"requests": 2, "exact": 2, "relays": 2}
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "named"),
    [(("--prompts", "0"), "--prompts 0"), (("--seed", "-1"), "--seed -1"), (("--prompts", "many"), "--prompts")],
)
def test_flags_out_of_range_are_refused_by_name(flags: tuple[str, ...], named: str):
    done = verify(*flags)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
