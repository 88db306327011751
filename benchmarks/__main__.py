"""``python -m benchmarks [NAME ...]``: all of them, or those named. Tables to stdout, JSON to build/benchmarks."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from time import monotonic
from typing import cast

from rich.console import Console

from benchmarks.report import Result, save, show

NAMES = ("link", "replication", "engine", "relay")


def main() -> None:
    """Runs one after the other: two at once would measure each other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--repetitions", type=int, default=3, help="of everything measured (default: %(default)s)")
    arguments = parser.parse_args()
    console, progress = Console(width=120), Console(stderr=True)
    for name in arguments.names or NAMES:
        progress.print(f"{name} ...")
        began = monotonic()
        # Imported one by one: torch must find its environment set before it comes in.
        module = importlib.import_module(f"benchmarks.{name}")
        run = cast(Callable[[int], Result], module.run)
        result = run(arguments.repetitions)
        show(result, console)
        progress.print(f"{name}: {monotonic() - began:.0f} s, {save(result)}")


if __name__ == "__main__":
    main()
