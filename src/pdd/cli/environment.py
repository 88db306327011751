"""What is read from the process's environment, and set there for libraries that read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def set_defaults(environment: Mapping[str, str]) -> None:
    """Sets what the user has not. Before the library is imported: most read their environment once, then."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def default_state_root() -> Path:
    """``$XDG_RUNTIME_DIR/pdd``, or ``/tmp/pdd-<uid>`` where there is no such directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "pdd"
    return Path(f"/tmp/pdd-{os.getuid()}")  # noqa: S108 (made for its owner only, and refused if it is another's)
