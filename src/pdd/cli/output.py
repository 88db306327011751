"""How commands speak: results to stdout, progress and errors to stderr, one JSON object where ``--json`` asks for it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec

from pdd.core.errors import ConfigError, Incompatible, InvalidRequest, PddError, Unauthorized

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are ConfigErrors, so that they are shown like every other error."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")


def print_json(value: object) -> None:
    """Prints exactly one JSON object, and nothing else, to stdout."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


@contextmanager
def opened(flag: str, path: Path | None) -> Generator[BinaryIO | None]:
    """The file that a flag names, opened before the work, not after: minutes later is too late for a typing error."""
    if path is None:
        yield None
        return
    try:
        file = path.open("wb")
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from error
    with file:
        yield file


def show_error(error: BaseException, *, as_json: bool) -> None:
    """One clear line on stderr, or ``{"error": {"type": ..., "message": ...}}`` on stdout."""
    message = message_of(error)
    if as_json:
        print_json({"error": {"type": _snake_case(type(error).__name__), "message": message}})
    else:
        print(f"pdd: {message}", file=sys.stderr)


def message_of(error: BaseException) -> str:
    """What went wrong in one line; what nobody foresaw is named as such."""
    text = " ".join(str(error).split())
    if isinstance(error, PddError):
        return text
    return f"internal error: {type(error).__name__}: {text}"


def exit_code_of(error: BaseException) -> int:
    """2 for bad input, also that of two roles which contradict each other; 1 for everything else that went wrong."""
    bad_input = isinstance(error, ConfigError | Incompatible | InvalidRequest | Unauthorized)
    return EXIT_BAD_INPUT if bad_input else EXIT_FAILURE


def root_cause(error: BaseException) -> BaseException:
    """The first single error inside of (nested) exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return error  # pyright: ignore[reportUnknownVariableType]


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
