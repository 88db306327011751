"""``pdd export-model``."""

import json

import pytest

from pdd.cli.program import run_program
from pdd.engine.catalog import find_model


def test_the_written_folder_is_a_model(tmp_path, capsys):
    assert run_program(["export-model", "tiny-random-32", str(tmp_path / "Tiny"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] == str(tmp_path / "Tiny")
    assert said["bytes"] == sum(file.stat().st_size for file in (tmp_path / "Tiny").iterdir())
    assert find_model(said["folder"]).vocab_size == 512


@pytest.mark.parametrize(
    ("model", "why"), [("gpt-9", "unknown model"), ("scripted", "no weights"), ("tiny-random-32", "exists already")]
)
def test_what_cannot_be_written_is_said_in_a_line(tmp_path, capsys, model, why):
    (tmp_path / "taken").write_text("a file")
    assert run_program(["export-model", model, str(tmp_path / "taken")]) != 0
    assert why in capsys.readouterr().err
