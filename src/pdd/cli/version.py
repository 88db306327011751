"""``pdd version``."""

from __future__ import annotations

import argparse
import platform

from pdd import __version__
from pdd.cli.commands import CommandParser
from pdd.cli.options import add_json
from pdd.cli.output import print_json


def define(parser: CommandParser) -> None:
    """``pdd version``."""
    parser.description = "Print PDD's version."
    add_json(parser)
    parser.set_defaults(run=run_version)


def run_version(arguments: argparse.Namespace) -> int:
    """Prints the version."""
    if arguments.json:
        print_json({"version": __version__, "python": platform.python_version()})
    else:
        print(f"pdd {__version__}")
    return 0
