"""``pdd demo`` with real processes: scripted engines behind a line so slow that the router sees the need
for a relay.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.fixture
def slow_line(tmp_path: Path) -> Path:
    """The scripted topology, its line forty times slower: a prompt's KV takes about two seconds."""
    text = (files("pdd.cli.topology") / "packaged" / "scripted.toml").read_text()
    for line, slow in (
        ('\nname = "scripted"', '\nname = "slow"'),
        ('\nrate = "20 Mbit/s"', '\nrate = "500 kbit/s"'),
        ("\nport = 8000", "\nport = 0"),
    ):
        assert text.count(line) == 1
        text = text.replace(line, slow)
    path = tmp_path / "slow.toml"
    path.write_text(text + "\n[router.policy]\nrelay_threshold_s = 0.3\n")
    return path


def demo(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user would, with temporary files of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pdd.cli", "demo", *flags],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


def test_the_demo_relays_and_says_so_in_one_json_object(slow_line: Path, tmp_path: Path):
    done = demo(tmp_path, "--topology", str(slow_line), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    relay, direct, _ = result["runs"]
    assert [run["name"] for run in result["runs"]] == ["relay", "direct", "second_turn"]
    assert (relay["route"], direct["route"]) == ("relay", "direct")
    assert min(relay["p_tokens"], relay["rld_tokens"], relay["md_tokens"]) >= 1
    assert direct["rld_tokens"] == 0
    assert relay["text"] == direct["text"]
    assert all(run["exact"] is True for run in result["runs"])
    assert relay["ttft_s"] < relay["ttst_s"] < direct["ttst_s"]
    assert relay["wan_kv_bytes"] == direct["wan_kv_bytes"] > 100_000
    assert result["checks"]["second_turn_bytes_ratio"]["ok"]
    assert result["checks"]["relayed"]["ok"]
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("pdd-*"))


def test_the_demo_shows_the_answer_a_timeline_a_table_and_the_verdict(slow_line: Path, tmp_path: Path):
    done = demo(tmp_path, "--topology", str(slow_line))
    assert done.returncode == 0, done.stderr
    for shown in ("[P]", "[RLD]", "[MD]", "hand-off of token IDs", "KV to MD, by WAN", "P-RLD-MD", "P-MD", "✓"):
        assert shown in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "all ready" in done.stderr


def test_a_topology_that_does_not_exist_is_named_and_nothing_starts(tmp_path: Path):
    done = demo(tmp_path, "--topology", "nowhere.toml")
    assert done.returncode == 2
    assert done.stderr.startswith("pdd: nowhere.toml: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_demo_that_is_ended_leaves_nothing_behind(slow_line: Path, tmp_path: Path, number: int, status: int):
    running = subprocess.Popen(
        [sys.executable, "-m", "pdd.cli", "demo", "--topology", str(slow_line)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with running:
        assert running.stderr is not None
        assert any("all ready" in line for line in running.stderr)
        running.send_signal(number)
        rest = running.stderr.read()
        assert running.wait(30) == status
    assert "Traceback" not in rest
    assert not list(tmp_path.glob("pdd-*"))
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in _command_line(pid)]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
