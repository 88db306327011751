"""Where commands print for people: Rich's console, which takes longer to import than a role's process has use for."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 100


def open_console(*, stderr: bool = False) -> Console:
    """Standard output, or standard error for progress; as wide as the terminal is, or as ``COLUMNS`` says."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_WITHOUT_TERMINAL
    return _Console(stderr=stderr, width=width, highlight=False, markup=False)


class _Console(Console):
    """Cuts nothing: what is wider than the terminal runs over its edge."""

    def print(self, *objects: object, crop: bool = False, **how: Any) -> None:  # noqa: ANN401 (Rich's own)
        super().print(*objects, crop=crop, **how)
