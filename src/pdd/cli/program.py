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
from pdd.cli.output import (
    EXIT_BAD_INPUT,
    OutputLost,
    Parser,
    exit_code_of,
    flush_output,
    root_cause,
    settled_streams,
    show_error,
)
from pdd.core.errors import PddError

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
    with settled_streams():
        try:
            code = _run_command(given)
            flush_output()
        except Exception as raised:  # the outermost edge of the program
            _logger.debug("command_failed", exc_info=raised)
            code = _fail(root_cause(raised), as_json="--json" in given)
        return code


def _run_command(given: Sequence[str]) -> int:
    parser = build_parser()
    if not given:
        parser.print_help(sys.stderr)
        return EXIT_BAD_INPUT
    try:
        arguments = parser.parse_args(given)
    except SystemExit as done:  # argparse has shown what was asked for
        return cast("int", done.code)
    return cast("Run", arguments.run)(arguments)


def _fail(error: BaseException, *, as_json: bool) -> int:
    if isinstance(error, OutputLost):
        if error.nobody_reads:
            return 0
        error, as_json = PddError(f"the output can't be written: {error.strerror}"), False
    try:
        show_error(error, as_json=as_json)
        flush_output()
    except OutputLost:
        pass  # the exit code says it
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
