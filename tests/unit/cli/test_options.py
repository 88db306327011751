"""Flags that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from pdd.cli.options import add_state_dir


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_state_dir(parser)
    return parser.parse_args(arguments)


def test_an_empty_state_dir_is_refused_and_not_taken_for_the_current_one(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parsed("--state-dir", "")
    assert "--state-dir: is empty; give a directory" in capsys.readouterr().err
    assert parsed("--state-dir", ".").state_dir == Path()
