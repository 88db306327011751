"""``pdd verify`` with real vLLM engines, on the small random model: the same answers, whoever goes on with whose KV."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def verify(*flags: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "pdd.cli", "verify", *flags, "--json"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_three_vllm_engines_are_exact_without_any_tolerance():
    code, result, errors = verify("--topology", "vllm-tiny", "--prompts", "3")
    assert result["mismatches"] == result["near_ties"] == []
    assert (result["exact_rate"], code) == (1.0, 0)
    assert result["relays"] == 3 * 22
    assert list(result["per_direction"]) == ["vllm"]
    assert "Traceback" not in errors


def test_pdds_engine_and_vllm_go_on_with_each_others_kv_up_to_near_ties():
    code, result, errors = verify("--topology", "mixed-tiny", "--prompts", "3")
    assert (result["mismatches"], code) == ([], 0)
    assert result["relays"] == 2 * 3 * 22
    assert list(result["per_direction"]) == ["embedded_to_vllm", "vllm_to_embedded"]
    assert len(result["near_ties"]) <= 6
    assert "Traceback" not in errors
