"""Which modules of ``src`` differ from what this branch left main with: what a quick check has to be thorough about."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def changed_modules(root: Path = ROOT) -> frozenset[str] | None:
    """By name, uncommitted changes included. On main itself: what is not committed. None: git can't tell."""
    base = _git(root, "merge-base", "HEAD", "origin/main") or _git(root, "merge-base", "HEAD", "main")
    if base is None:
        return None
    names = _git(root, "diff", "--name-only", base.strip(), "--", "src")
    return None if names is None else frozenset(_module(Path(name)) for name in names.split())


def _module(path: Path) -> str:
    return ".".join(path.relative_to("src").with_suffix("").parts).removesuffix(".__init__")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout if result.returncode == 0 else None
