"""Text that comes from outside as bytes: arguments and names of files.

Python hides bytes that are no text in its encoding as lone surrogates. That finds files again, but is nothing to show,
send or write. And where the locale knows ASCII only, all that is beyond it is hidden so, though it is good UTF-8.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pdd.core.errors import ConfigError


def as_text(given: str) -> str:
    """What was given, read as UTF-8; U+FFFD for what isn't."""
    try:
        raw = given.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a pair, which no argument holds
        raw = given.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "replace")


def text(given: str) -> str:
    """The type of a flag that takes text which is sent on."""
    try:
        return given.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{as_text(given)!r} is not UTF-8 text") from error


def require_text(flag: str, path: Path) -> Path:
    """A path that is written into files of text.

    Raises:
        ConfigError: it isn't text in this locale.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{flag}: {as_text(str(path))!r} is not UTF-8 text in this locale") from error
    return path
