"""The commands that run many simulations refuse what makes no sense, and show what they found."""

from __future__ import annotations

import json
import re

import pytest

from pdd.cli.program import run_program


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["paper", "--seeds", "0"], "--seeds 0"),
        (["compare", "--requests", "0"], "--requests 0"),
        (["compare", "--jobs", "65"], "--jobs 65"),
        (["compare", "--only", "nothing"], "the settings are agents, fast,"),
        (["traces", "nothing.jsonl", "--load", "0"], "--load 0.0: it must be from 0.001 to 10"),
        (["traces", "nothing.jsonl", "--load", "nan"], "--load nan"),
        (["traces", "nothing.jsonl", "--requests", "1"], "--requests"),
        (
            ["traces", "nothing.jsonl", "--trace-block-tokens", "0"],
            "--trace-block-tokens 0: it must be from 1 to 1048576",
        ),
        (["traces", "one/few.jsonl", "two/few.jsonl"], "the same name"),
        (["traces", "nothing.jsonl", "--plot", "/nowhere/at/all"], "--plot /nowhere/at/all: No such file"),
        (["traces", "nothing.jsonl", "--jobs", "1"], "No such file"),
    ],
)
def test_nonsense_is_refused_in_one_line(arguments, complaint, capsys):
    assert run_program(["sim", *arguments]) == 2
    shown = capsys.readouterr().err.strip().splitlines()
    assert complaint in shown[-1]


@pytest.fixture
def few(tmp_path):
    """A trace of twenty requests that share nothing."""
    rows = [
        {"timestamp": 100 * n, "input_length": 3000, "output_length": 20, "hash_ids": list(range(6 * n, 6 * n + 6))}
        for n in range(20)
    ]
    path = tmp_path / "few.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_traces_are_shown_with_a_verdict_each(few, tmp_path, capsys):
    page = tmp_path / "page.html"
    flags = ["sim", "traces", str(few), "--load", "0.5", "--jobs", "1"]
    assert run_program([*flags, "--plot", str(page)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "same_dc" in shown
    assert re.search(r"load 0\.5 \(0\.[45]\d as played\): P90", shown)
    assert "few; P50 to P99: seconds" in shown
    assert "[" not in shown, "markup is shown as it is"
    drawn = page.read_text()
    assert "few: time to second token, P90, seconds" in drawn
    assert drawn.count("<polyline") == 4 * 3
    assert "nan" not in drawn

    assert run_program([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["system"] for each in found["standings"]] == ["same_dc", "cross_dc", "pdd"]
    assert found["verdicts"][0]["relay_is_swamped"] is False
    assert [(each["format"], each["block_tokens"], each["doubts"]) for each in found["traces"]] == [
        ("Mooncake", 512, {})
    ]


def test_what_is_doubtful_in_a_trace_is_told_before_it_is_played(few, capsys):
    rows = [{**json.loads(line), "timestamp": 0.1 * number} for number, line in enumerate(few.read_text().splitlines())]
    few.write_text("\n".join(json.dumps({**row, "hash_ids": row["hash_ids"][:5]}) for row in rows))
    assert run_program(["sim", "traces", str(few), "--load", "0.5", "--jobs", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"pdd: {few}: its times are read as milliseconds, but look like seconds\n")
    assert json.loads(out)["traces"][0]["looks_like"] == "seconds"


@pytest.mark.thorough
def test_one_setting_is_compared_alone(capsys):
    flags = ["sim", "compare", "--only", "fast", "--seeds", "2", "--requests", "12", "--jobs", "1"]
    assert run_program(flags) == 0
    shown = capsys.readouterr().out
    assert "fast: four times the line" in shown
    assert "forgetful" not in shown

    assert run_program([*flags, "--json"]) == 0
    standings = json.loads(capsys.readouterr().out)["standings"]
    assert [each["rival"] for each in standings] == ["pdd", "by hit rate"]
    assert set(standings[1]["figures"]["ttst_p90"]) == {"mean", "more"}
