"""``pdd topology``: what one can do with a topology without running it."""

from __future__ import annotations

from pdd.cli.commands import CommandParser, Listed, add_group

_COMMANDS = (
    Listed(
        name="resolve",
        module="deploy.resolve",
        summary="write it with every port, every link's forwards and the KV format filled in",
    ),
)


def define(parser: CommandParser) -> None:
    """``pdd topology`` and what is below it."""
    parser.description = "What one can do with a topology without running it."
    parser.epilog = "Each command has its own --help."
    add_group(parser, title="commands", metavar="COMMAND", commands=_COMMANDS)
