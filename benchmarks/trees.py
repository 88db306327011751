"""The sources that a benchmark compares: those here, and those of another commit beside them."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import OUTPUT
from pdd.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """One version of PDD; ``source`` is the folder that has its package in it."""

    name: str
    source: Path


THIS_TREE = Tree(name="this tree", source=ROOT / "src")
"""As it lies there, changes that are not committed included."""


@contextmanager
def checked_out(ref: str, *, root: Path = ROOT) -> Generator[Tree]:
    """The commit that ``ref`` names in the repository at ``root``, in a worktree that is removed afterwards.

    Raises:
        ConfigError: there is no git, no repository, or no such commit in it.
    """
    commit = _git(root, ref, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
    folder = (OUTPUT / "trees" / commit).resolve()
    if folder.exists():  # a run that was killed has left it
        _git(root, ref, "worktree", "remove", "--force", str(folder))
    # Forced, since git may still know of one that somebody has deleted.
    _git(root, ref, "worktree", "add", "--force", "--detach", str(folder), commit)
    try:
        yield Tree(name=ref, source=folder / "src")
    finally:
        _git(root, ref, "worktree", "remove", "--force", str(folder))


def _git(root: Path, ref: str, *arguments: str) -> str:
    command = ("git", "-C", str(root), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"--against {ref}: git can't be run: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise ConfigError(f"--against {ref}: no such commit can be checked out from {root}; git says: {last}")
    return done.stdout.strip()
