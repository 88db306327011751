"""How a group of commands is listed: each with its summary, and with a module that is imported only if it is meant.

So help and complaints know every command at once, and a role's process holds no other command's imports.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from pdd.core.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One command of a group. ``module``, below ``pdd.cli``, defines it (``Definition``)."""

    name: str
    summary: str
    module: str


class Definition(Protocol):
    """A module that defines commands."""

    def define(self, parser: CommandParser) -> None:
        """Gives the parser its description and flags, and a default ``run`` of type ``options.Run``."""
        ...


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are ConfigErrors, so that they are shown like every other error."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Of help and version. argparse's own takes no notice of what can't be written."""
        (file or sys.stderr).write(message)


class CommandParser(Parser):
    """The parser of one command, which knows only what is listed until it is asked for more."""

    def __init__(self, *, listed: Listed, prog: str) -> None:
        super().__init__(prog=prog)
        self.listed = listed
        self._is_defined = False

    def define(self) -> None:
        """Imports the command's module, once."""
        if not self._is_defined:
            self._is_defined = True
            cast("Definition", importlib.import_module(f"pdd.cli.{self.listed.module}")).define(self)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] (argparse's has overloads)
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """What argparse calls when the command is the one that is meant."""
        self.define()
        return super().parse_known_args(args, namespace or argparse.Namespace())


class _Subparsers(Protocol):
    """What argparse returns from ``add_subparsers``."""

    def add_parser(self, name: str, *, help: str, listed: Listed) -> CommandParser: ...  # noqa: A002 (argparse's name)


def add_group(parser: argparse.ArgumentParser, *, title: str, metavar: str, commands: Sequence[Listed]) -> None:
    """Gives ``parser`` commands of its own, one of which must be named; help lists them in this order."""
    subparsers = cast(
        "_Subparsers",
        parser.add_subparsers(title=title, metavar=metavar, required=True, parser_class=CommandParser),
    )
    for listed in commands:
        subparsers.add_parser(listed.name, help=listed.summary, listed=listed)
