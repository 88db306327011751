"""``pdd sim chaos`` from its command line: figures, failures with their seeds, one world aloud, refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pdd.cli.program import run_program
from pdd.cli.sim import chaos
from pdd.sim.chaos.campaign import Tally, play_seeds
from pdd.sim.chaos.play import Played
from pdd.sim.chaos.verdict import Finding, Wrong

NOTHING_WRONG = {wrong.value: 0 for wrong in Wrong}
PLAYED = Played(
    seed=7,
    num_requests=10,
    num_faults=2,
    num_whole=8,
    num_refused=1,
    num_broken=0,
    num_left=1,
    commands={"Emit": 3},
    virtual_s=60.0,
    findings=(),
)
LOST = Finding(wrong=Wrong.LOST, what="request r: token 3 is missing")


def test_worlds_are_counted_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["sim", "chaos", "--seeds", "2", "--first-seed", "1", "--jobs", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert NOTHING_WRONG.items() <= record.items()
    assert (record["worlds"], record["failures"]) == (2, [])
    assert record["requests"] > 20
    assert record["complete"] + record["refused"] + record["broken_off"] + record["left"] <= record["requests"]
    assert record["requests_per_s"] > 0


def test_several_processes_play_the_same_as_one() -> None:
    assert play_seeds(range(3), jobs=2) == play_seeds(range(3), jobs=1)


def test_a_failure_comes_with_the_seed_that_repeats_it() -> None:
    tally = Tally()
    tally.add(PLAYED)
    tally.add(replace(PLAYED, seed=8, findings=(LOST,)))
    record = chaos.record(tally, seconds=2.0)
    assert record["lost"] == 1
    assert record["failures"] == [{"seed": 8, "what": [LOST.what]}]
    assert (record["worlds"], record["requests"], record["requests_per_s"]) == (2, 20, 10.0)
    assert record["commands"] == {"Emit": 6}


def test_a_table_ends_with_how_to_see_the_first_failure_again(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    tally.add(replace(PLAYED, findings=(LOST,)))
    chaos.show(tally, seconds=2.0)
    out = capsys.readouterr().out
    assert "token 3 is missing" in out
    assert "--first-seed 7" in out


def test_one_world_is_played_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["sim", "chaos", "--seeds", "1", "--first-seed", "3", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "asked:" in out
    assert "StartDecode" in out
    assert "0 lost" in out


@pytest.mark.parametrize(
    "flags",
    [
        ["--seeds", "0"],
        ["--first-seed", "-1"],
        ["--jobs", "0"],
        ["--seeds", "2", "--verbose"],
    ],
)
def test_flags_out_of_range_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["sim", "chaos", *flags]) == 2
    assert flags[0] in capsys.readouterr().err
