"""The program ``pdd``: finds the command that is meant and runs it.

Only that command is imported, and what it needs only when it runs: so ``pdd --help`` is quick, and a KV node's process
holds no engine.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import cast

from pdd import __version__
from pdd.cli.commands import Listed, Parser, add_group
from pdd.cli.options import Run
from pdd.cli.output import (
    EXIT_BAD_INPUT,
    OutputLost,
    exit_code_of,
    flush_output,
    root_cause,
    settled_streams,
    show_error,
)
from pdd.core.errors import PddError

_COMMANDS = (
    Listed(name="up", module="deploy.up", summary="run every role of a topology on this machine"),
    Listed(name="ask", module="ask.command", summary="send one prompt and see who computed which token"),
    Listed(name="demo", module="demo.command", summary="see a relayed answer, and what the relay is good for"),
    Listed(name="verify", module="verify.command", summary="prove that relayed answers are the same, token for token"),
    Listed(name="status", module="deploy.status", summary="show what a running deployment does"),
    Listed(name="link", module="deploy.link", summary="show or change an emulated link while it runs"),
    Listed(name="sim", module="sim.command", summary="simulate a deployment on a virtual clock"),
    Listed(name="topology", module="deploy.topology", summary="write what a topology's roles are started from"),
    Listed(
        name="node",
        module="roles.command",
        summary="run one KV node: a process that holds KV blocks in memory and replicates them",
    ),
    Listed(name="engine", module="roles.command", summary="run one engine: token IDs in, token IDs out, over HTTP"),
    Listed(name="wan", module="roles.command", summary="run one emulated link between two clusters"),
    Listed(name="router", module="roles.command", summary="run the router: the OpenAI-compatible front door"),
    Listed(
        name="export-model",
        module="export_model",
        summary="write a model of the catalog as a Hugging Face folder, or such a folder without its weights",
    ),
    Listed(name="version", module="version", summary="print PDD's version"),
)

_logger = logging.getLogger(__name__)


def run_program(given: Sequence[str]) -> int:
    """Runs the command that ``given`` names; returns its exit code. No error but KeyboardInterrupt gets out."""
    # Without it Python prints warnings of the library to stderr, between a command's own lines. Roles log to their
    # files.
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
    """The parser of every command; each defines itself when it is the one that is meant."""
    parser = Parser(
        prog="pdd",
        description="Prefill / relay-decode / main-decode serving of LLMs across datacenters.",
        epilog="Each command has its own --help.",
    )
    parser.add_argument("--version", action="version", version=f"pdd {__version__}", help="print the version and exit")
    add_group(parser, title="commands", metavar="COMMAND", commands=_COMMANDS)
    return parser
