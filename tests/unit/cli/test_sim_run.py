"""``pdd sim run`` from its command line: tables, JSON, traces and refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from pdd.cli.program import run_program

TOPOLOGY = """
name = "small"
model = "Llama-3.1-70B"
block_tokens = 512
max_model_tokens = 140_000
{parts}
[[links]]
name = "wan"
clusters = ["A", "B"]
rate = "100 Gbit/s"
delay = "15 ms"

[router]
cluster = "A"
"""
PART = """
[[nodes]]
name = "node-{name}"
cluster = "{cluster}"
arena = "2 TiB"
[[engines]]
name = "{name}"
role = "{role}"
cluster = "{cluster}"
node = "node-{name}"
kind = "modelled"
hardware = "H100-SXM"
num_chips = 16
cache_tokens = 1_000_000
prefill_chunk_tokens = 8192
"""


@pytest.fixture
def topology(tmp_path):
    roles = (("P", "prefill", "A"), ("RLD", "relay_decode", "A"), ("MD", "main_decode", "B"))
    parts = "".join(PART.format(name=name, role=role, cluster=cluster) for name, role, cluster in roles)
    file = tmp_path / "small.toml"
    file.write_text(TOPOLOGY.format(parts=parts))
    return str(file)


def test_a_table_shows_what_clients_felt(topology, capsys):
    assert run_program(["sim", "run", topology, "--requests", "12", "--rate", "1"]) == 0
    out, err = capsys.readouterr()
    assert "first token" in out
    assert "within the SLA" in out
    assert "wan: " in out
    assert "requests after" in err


def test_json_is_one_object_and_a_trace_has_every_request(topology, tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    given = ["sim", "run", topology, "--requests", "12", "--rate", "1", "--json", "--trace", str(trace)]
    assert run_program(given) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["topology"] == "small"
    assert figures["requests"]["complete"] == figures["requests"]["sent"] == 12
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    assert events[0]["name"] == "trace_started"
    opened = {event["request"] for event in events if event["name"] == "opened"}
    assert opened >= {f"r{number}" for number in range(12)}


def test_the_same_seed_prints_the_same_bytes_under_any_hash_seed(topology):
    given = [sys.executable, "-m", "pdd.cli", "sim", "run", topology, "--requests", "20", "--rate", "2", "--json"]
    first, second = (
        subprocess.run(given, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True).stdout
        for hash_seed in ("1", "2")
    )
    assert first == second
    assert json.loads(first)["requests"]["sent"] == 20


def test_a_plot_is_a_page_by_itself_with_a_line_for_every_figure(topology, tmp_path, capsys):
    page = tmp_path / "run.html"
    assert run_program(["sim", "run", topology, "--requests", "20", "--rate", "2", "--plot", str(page)]) == 0
    capsys.readouterr()
    tree = ET.fromstring(re.sub(r"^<!doctype html>|<meta [^>]*>|<style>.*?</style>", "", page.read_text()))
    lines = tree.findall(".//polyline")
    assert len(lines) == 8
    assert len(tree.findall("svg")) == 5
    for line in lines:
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 720
            assert 20 <= y <= 150


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--seed", "-1"], "--seed -1: it must be 0 or more"),
        (["--rate", "0"], "--rate 0.0: it must be at least 1e-06, and finite"),
        (["--speed", "2"], "--speed 2.0: it is for traces; --rate sets"),
        (["--workload", __file__, "--rate", "3"], "--rate 3.0: a trace has its own; --speed plays it"),
        (["--speed", "nan"], "--speed nan: it must be at least 1e-06"),
        (["--requests", "-3"], "--requests -3: it must be from 1 to 10000000"),
        (["--requests", "9" * 20], "it must be from 1 to 10000000"),
        (["--rate", "2e-6"], "asks for 1.1"),
        (["--until", "10 s"], "--until or max_model_tokens leaves nothing of it but the warm-up"),
        (["--workload", "nothing-like-it"], "no file and no generated workload"),
        (["--trace-block-tokens", "64"], "--trace-block-tokens 64: it is for traces, not for generated workloads"),
        (["--workload", __file__, "--trace-block-tokens", "0"], "--trace-block-tokens 0: it must be from 1 to 1048576"),
        (["--requests", "3", "--plot", "/nowhere/at/all"], "--plot /nowhere/at/all: No such file or directory"),
        (["--trace", "/nowhere/at/all"], "--trace /nowhere/at/all: No such file or directory"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(topology, capsys, flags, complaint):
    assert run_program(["sim", "run", topology, *flags]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert complaint in err
    assert err.count("\n") == 1


def test_what_the_model_has_no_room_for_is_left_out_and_counted(topology, capsys, tmp_path):
    lines = [
        json.dumps({"timestamp": at, "input_length": tokens, "output_length": 5})
        for at, tokens in ((0, 600), (9, 200_000))
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines))
    assert run_program(["sim", "run", topology, "--workload", str(trace), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["left_out"], figures["requests"]["sent"], figures["requests"]["shed"]) == (1, 1, 0)
    trace.write_text(lines[1])
    assert run_program(["sim", "run", topology, "--workload", str(trace)]) == 2
    assert "max_model_tokens = 140000 holds none of it" in capsys.readouterr().err


def test_a_topology_of_live_engines_is_refused(capsys):
    assert run_program(["sim", "run", "default"]) == 2
    assert "packaged topology: " in capsys.readouterr().err


def test_what_is_doubtful_in_a_trace_is_told_beside_its_figures(topology, capsys, tmp_path):
    rows = [
        {"timestamp": at, "input_length": 1000, "output_length": answer, "hash_ids": ids}
        for at, answer, ids in ((1, 5, list(range(16))), (0, 0, [*range(15), 99]), (2, 5, [7] * 16))
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    flags = ["sim", "run", topology, "--workload", str(trace), "--json"]
    assert run_program(flags) == 2
    complaint = json.loads(capsys.readouterr().out)["error"]["message"]
    assert complaint.startswith(f"{trace}:1:")
    assert "16 ids for 1000 tokens: with one for 512 tokens it must be 1 or 2, or none" in complaint
    assert complaint.endswith("give --trace-block-tokens")
    assert run_program([*flags, "--trace-block-tokens", "64"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)["trace"]
    assert report == {
        "file": str(trace),
        "format": "Mooncake",
        "time_unit": "milliseconds",
        "looks_like": None,
        "block_tokens": 64,
        "doubts": {
            "empty_answer": {"count": 1, "first_line": 2},
            "backwards": {"count": 1, "first_line": 2},
            "two_prefixes": {"count": 1, "first_line": 3},
        },
    }
    told = [line for line in err.splitlines() if line.startswith(f"pdd: {trace}: ")]
    assert len(told) == 3
    assert told[0] == f"pdd: {trace}: answers of 0 tokens, played with 1: 1, the first in line 2"


def test_a_generated_workload_has_no_trace(topology, capsys):
    assert run_program(["sim", "run", topology, "--requests", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trace"] is None


@pytest.mark.parametrize("flag", ["--trace", "--plot"])
def test_a_file_that_a_full_disk_takes_no_more_of_is_one_line(topology, capsys, flag):
    assert run_program(["sim", "run", topology, "--requests", "12", "--rate", "1", flag, "/dev/full"]) == 1
    shown = capsys.readouterr().err.strip().splitlines()
    assert shown[-1] == f"pdd: {flag} /dev/full can't be written: No space left on device"
