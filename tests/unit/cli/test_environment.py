"""What is read from the environment."""

import os

from pdd.cli.environment import default_state_root


def test_the_default_root_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_state_root() == tmp_path / "pdd"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    assert default_state_root().name == f"pdd-{os.getuid()}"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_state_root().name == f"pdd-{os.getuid()}"
