"""The program ``pdd``: finds the command that is meant and runs it.

What a command needs is imported when it runs, so that ``pdd --help`` is quick and a KV node's process holds no engine.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from typing import cast

from pdd import __version__
from pdd.cli.options import Command, Run, Subparsers
from pdd.cli.output import EXIT_BAD_INPUT, Parser, exit_code_of, root_cause, show_error

_COMMAND_MODULES = (
    "deploy.up",
    "ask.command",
    "demo.command",
    "verify.command",
    "deploy.status",
    "deploy.link",
    "sim.command",
    "roles.command",
    "export_model",
    "version",
)
"""In the order in which ``pdd --help`` lists them."""

_logger = logging.getLogger(__name__)


def run_program(given: Sequence[str]) -> int:
    """Runs the command that ``given`` names; returns its exit code. No error but KeyboardInterrupt gets out."""
    # Without it Python prints warnings of the library to stderr, between a command's own lines. Roles log to their files.
    logging.getLogger("pdd").addHandler(logging.NullHandler())
    try:
        parser = build_parser()
        if not given:
            parser.print_help(sys.stderr)
            return EXIT_BAD_INPUT
        arguments = parser.parse_args(given)
        return cast("Run", arguments.run)(arguments)
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain about it once more when it flushes.
        sys.stdout = None
        return 0
    except Exception as raised:  # the outermost edge of the program
        error = root_cause(raised)
        _logger.debug("command_failed", exc_info=raised)
        show_error(error, as_json="--json" in given)
        return exit_code_of(error)


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = Parser(
        prog="pdd",
        description="Prefill / relay-decode / main-decode serving of LLMs across datacenters.",
        epilog="Each command has its own --help.",
    )
    parser.add_argument("--version", action="version", version=f"pdd {__version__}", help="print the version and exit")
    commands = cast(
        "Subparsers", parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    )
    for name in _COMMAND_MODULES:
        cast("Command", importlib.import_module(f"pdd.cli.{name}")).add_commands(commands)
    return parser
