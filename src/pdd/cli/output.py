"""How commands speak: results to stdout, progress and errors to stderr, one JSON object where ``--json`` asks for it.

Whatever the streams are: a terminal that knows ASCII only, a pipe whose reader has left, a full disk, nothing at all.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

import msgspec

from pdd.cli.given_text import as_text
from pdd.core.errors import ConfigError, Incompatible, InvalidRequest, PddError, Unauthorized

if TYPE_CHECKING:
    from typing_extensions import Buffer

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2

PLAIN_SIGNS = {"━": "=", "─": "-", "–": "-", "▪": "*", "·": ".", "►": ">", "└": "+", "┘": "+", "✓": "v", "✗": "x"}
"""What becomes of our own signs where they can't be shown."""

Replace = Callable[[UnicodeError], tuple[str | bytes, int]]
"""What Python calls where a character can't be encoded: what stands for it, and where to go on."""


# Streams --------------------------------------------------------------------------------------------------------------


class OutputLost(OSError):
    """What is written to stdout or stderr gets nowhere."""

    @property
    def nobody_reads(self) -> bool:
        """Whoever did has left, having seen enough; else the place where it is kept is full, say."""
        return self.errno == errno.EPIPE


class _Stream(io.TextIOWrapper):
    """Tells its own failures from all others. Closing it would close the standard stream: ``leave`` it."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise OutputLost(error.errno, error.strerror) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise OutputLost(error.errno, error.strerror) from error

    def leave(self) -> None:
        """What can't be written is dropped, or Python would try it once more and complain."""
        try:
            self.flush()
        except OutputLost:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        self.detach()


@contextmanager
def settled_streams() -> Generator[None]:
    """While it lasts stdout and stderr are there, take any text, and raise OutputLost where it gets nowhere."""
    before = sys.stdout, sys.stderr
    # Escapes tell more than question marks, and of an error a name of a file may be all that there is to know.
    with (
        _settled(sys.stdout, codecs.replace_errors) as out,
        _settled(sys.stderr, codecs.backslashreplace_errors) as err,
    ):
        sys.stdout, sys.stderr = out, err
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


@contextmanager
def _settled(stream: TextIO | None, replace: Replace) -> Generator[TextIO]:
    if stream is None:  # its descriptor is closed
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            yield nowhere
    elif isinstance(stream, io.TextIOWrapper):
        stream.flush()
        errors = f"pdd.{replace.__name__}"
        codecs.register_error(errors, partial(_replace, replace))
        settled = _Stream(
            cast("TextIO", stream).buffer,
            encoding=stream.encoding,
            errors=errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        try:
            yield settled
        finally:
            settled.leave()
    else:
        yield stream


def _replace(otherwise: Replace, error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    start = error.start
    plain = PLAIN_SIGNS.get(error.object[start])
    if plain is not None:
        return plain, start + 1
    return otherwise(UnicodeEncodeError(error.encoding, error.object, start, start + 1, error.reason))


def write_logs_as_utf8() -> None:
    """For a process whose output is its log: a file is UTF-8, whatever the locale. A terminal keeps its encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, _Stream) and not stream.isatty():
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def flush_output() -> None:
    """Raises OutputLost: what was written did not get through."""
    sys.stdout.flush()
    sys.stderr.flush()


# Results --------------------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Prints exactly one JSON object, and nothing else, to stdout; in ASCII, so that it is the same in
    every encoding.
    """
    plain = _sayable(msgspec.to_builtins(value, str_keys=True))
    sys.stdout.write(json.dumps(plain, allow_nan=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _sayable(value: object) -> object:
    """``value``, built in, with null for numbers that JSON lacks, and names of files as text."""
    match value:
        case dict():
            return {as_text(key): _sayable(each) for key, each in cast("dict[str, object]", value).items()}
        case list() | tuple():
            return [_sayable(each) for each in cast("Sequence[object]", value)]
        case str():
            return as_text(value)
        case float() if not isfinite(value):
            return None
        case _:
            return value


@contextmanager
def opened(flag: str, path: Path | None) -> Generator[BinaryIO | None]:
    """The file that a flag names, opened before the work, not after: minutes later is too late for a typing error."""
    if path is None:
        yield None
        return
    try:
        file = io.BufferedWriter(_NamedFile(flag, path))
    except OSError as error:
        raise ConfigError(f"{flag} {as_text(str(path))}: {error.strerror}") from error
    with file:
        yield file


class _NamedFile(io.FileIO):
    """Says which flag's file it is that can't be written."""

    def __init__(self, flag: str, path: Path) -> None:
        super().__init__(path, "wb")
        self._what = f"{flag} {as_text(str(path))}"

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise PddError(f"{self._what} can't be written: {error.strerror}") from error


# Errors ---------------------------------------------------------------------------------------------------------------


def show_error(error: BaseException, *, as_json: bool) -> None:
    """One clear line on stderr, or ``{"error": {"type": ..., "message": ...}}`` on stdout."""
    message = message_of(error)
    if as_json:
        print_json({"error": {"type": _snake_case(type(error).__name__), "message": message}})
    else:
        print(f"pdd: {message}", file=sys.stderr)


def message_of(error: BaseException) -> str:
    """What went wrong in one line; what nobody foresaw is named as such."""
    text = as_text(" ".join(str(error).split()))
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
