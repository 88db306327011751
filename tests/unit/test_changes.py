"""What a quick check is thorough about: modules that differ from main, committed or not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.changes import changed_modules


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Main has three modules."""
    package = tmp_path / "src" / "pdd"
    package.mkdir(parents=True)
    for name in ("__init__", "one", "other"):
        (package / f"{name}.py").write_text("")
    git(tmp_path, "init", "--initial-branch", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "begin")
    return tmp_path


def test_on_main_nothing_has_changed(repository: Path) -> None:
    assert changed_modules(repository) == frozenset()


def test_what_a_branch_has_committed_and_what_it_has_not_are_both_changes(repository: Path) -> None:
    git(repository, "checkout", "-b", "branch")
    (repository / "src" / "pdd" / "one.py").write_text("a = 1\n")
    git(repository, "commit", "-am", "one")
    (repository / "src" / "pdd" / "__init__.py").write_text("b = 1\n")
    assert changed_modules(repository) == {"pdd.one", "pdd"}


def test_without_git_nothing_is_known(tmp_path: Path) -> None:
    assert changed_modules(tmp_path) is None
