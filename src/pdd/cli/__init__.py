"""The composition root: the only place that reads files, flags and the environment.

One folder per group of commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0, 1 for failures, 2 for bad input. No traceback reaches a user.

    Even importing the rest happens inside: Ctrl-C may come at any moment.
    """
    try:
        from pdd.cli.program import run_program

        return run_program(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
