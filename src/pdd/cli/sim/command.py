"""``pdd sim``: finds the simulation that is meant."""

from __future__ import annotations

import importlib
from typing import cast

from pdd.cli.options import Command, Subparsers
from pdd.cli.output import Parser

_COMMAND_MODULES: tuple[str, ...] = (
    "run",
    "paper",
    "compare",
    "traces",
    "chaos",
)
"""In the order in which ``pdd sim --help`` lists them."""


def add_commands(commands: Subparsers) -> None:
    """Adds ``pdd sim`` and what is below it."""
    parser = commands.add_parser(
        "sim",
        help="simulate a deployment on a virtual clock",
        description="Runs the driver, policies and index that serve live traffic on a virtual clock, against modelled "
        "engines, nodes and lines. The same seed gives the same run.",
        epilog="Each simulation has its own --help, and --json for programs.",
    )
    simulations = cast(
        "Subparsers",
        parser.add_subparsers(title="simulations", metavar="SIMULATION", required=True, parser_class=Parser),
    )
    for name in _COMMAND_MODULES:
        cast("Command", importlib.import_module(f"pdd.cli.sim.{name}")).add_commands(simulations)
