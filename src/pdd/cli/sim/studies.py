"""What the commands that run many simulations share: their flags, their progress, how they write numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import monotonic

from pdd.cli.console import open_console
from pdd.cli.options import check_range
from pdd.cli.tables import WholeTable

_MAX_SEEDS = 100
MAX_JOBS = 64
MAX_REQUESTS = 10_000_000


def add_extent(parser: argparse.ArgumentParser, *, seeds: int, requests: int) -> None:
    """``--seeds``, ``--requests``, ``--jobs``."""
    parser.add_argument(
        "--seeds", type=int, default=seeds, metavar="N", help="how often, each time drawn anew (default: %(default)s)"
    )
    parser.add_argument(
        "--requests", type=int, default=requests, metavar="N", help="requests of each simulation (default: %(default)s)"
    )
    add_jobs(parser)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """``--jobs``."""
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="processes (default: %(default)s)")


def check_extent(args: argparse.Namespace) -> None:
    """Raises ConfigError if a flag is out of range."""
    for flag, most in (("seeds", _MAX_SEEDS), ("requests", MAX_REQUESTS), ("jobs", MAX_JOBS)):
        check_range(f"--{flag}", getattr(args, flag), least=1, most=most)


def tell_progress() -> Callable[[str], None]:
    """Lines on stderr, with the time that has passed."""
    console, began = open_console(stderr=True), monotonic()
    return lambda line: console.print(f"  {line} after {monotonic() - began:.0f} s")


def plain_table(*headings: str) -> WholeTable:
    """The first column to the left, numbers to the right."""
    table = WholeTable(gap=1)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left")
    return table


def number(value: float | None) -> str:
    """Three digits that matter."""
    return "–" if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share."""
    return "–" if value is None else f"{value:.1%}"
