"""Flags that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import inf, isfinite, nan
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from pdd.cli.environment import default_state_root
from pdd.cli.given_text import as_text, text
from pdd.cli.quantities import Dimension, describe, parse_quantity
from pdd.core.errors import ConfigError
from pdd.core.topology import RouterTable

ENGINE_CHOICES = ("embedded", "vllm", "mixed")

Run = Callable[[argparse.Namespace], int]
"""Runs a command with its parsed arguments; returns the exit code."""


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument(
        "--json", action="store_true", help="print exactly one JSON object to stdout; progress goes to stderr"
    )


def add_topology(parser: argparse.ArgumentParser) -> None:
    """``--topology`` and ``--engine``: what a command that runs a deployment of its own starts
    (``choose_topology``).
    """
    parser.add_argument(
        "--topology",
        metavar="TOPOLOGY",
        help="a packaged topology's name or a TOML file; needs the three roles (default: the one of --engine)",
    )
    add_engine(parser)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """``--engine``: which packaged topology runs where none is named; None where the flag isn't given."""
    parser.add_argument(
        "--engine",
        choices=ENGINE_CHOICES,
        help="without a topology: PDD's own engine, vLLM (needs `make install-vllm`), or vLLM as main decode beside PDD's "
        "own (default: embedded)",
    )


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """``--state-dir``."""
    parser.add_argument(
        "--state-dir",
        type=_directory,
        default=default_state_root(),
        metavar="DIR",
        help="where running deployments keep their files (default: %(default)s)",
    )


def _directory(text: str) -> Path:
    """An empty path means the current directory to ``Path``, and an unset variable to whoever wrote it."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a directory")
    return Path(text)


def add_insecure_plaintext(parser: argparse.ArgumentParser) -> None:
    """``--insecure-plaintext``."""
    parser.add_argument(
        "--insecure-plaintext",
        action="store_true",
        help="allow nodes and engines, whose traffic is not encrypted, to listen on other addresses than loopback",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """``--run``: which of several live deployments."""
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="NAME",
        help="the topology's name, if several run below --state-dir (default: the only one)",
    )


def add_callers(parser: argparse.ArgumentParser) -> None:
    """``--allow-origin`` and ``--allow-host``: who else may call the router (``with_callers``)."""
    parser.add_argument(
        "--allow-origin",
        dest="allowed_origins",
        action="append",
        default=[],
        type=_origin,
        metavar="ORIGIN",
        help="let web pages of this origin, such as http://localhost:3000, call the router; may be repeated",
    )
    parser.add_argument(
        "--allow-host",
        dest="allowed_hosts",
        action="append",
        default=[],
        type=_host,
        metavar="HOST",
        help="a name, besides localhost, under which a router without API keys may be called; may be repeated",
    )


def with_callers(router: RouterTable, arguments: argparse.Namespace) -> RouterTable:
    """The same router that also lets in what flags name."""
    return msgspec.structs.replace(
        router,
        allowed_origins=(*router.allowed_origins, *arguments.allowed_origins),
        allowed_hosts=(*router.allowed_hosts, *arguments.allowed_hosts),
    )


def _origin(text: str) -> str:
    from pdd.router.api.callers import read_origin

    return _flag_value(read_origin, text)


def _host(text: str) -> str:
    from pdd.router.api.callers import read_host

    return _flag_value(read_host, text)


def _flag_value(read: Callable[[str], str], text: str) -> str:
    try:
        return read(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def quantity(dimension: Dimension, *, most: float = inf) -> Callable[[str], float]:
    """The type of a flag that takes a number with a unit; ``most`` is in the dimension's plain unit."""

    def parse(text: str) -> float:
        try:
            number = parse_quantity(text, dimension)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {describe(dimension)}") from error
        return _in_range(number, text, most)

    return parse


def duration(*, most: float) -> Callable[[str], float]:
    """The type of a flag that takes a time with a unit, or a plain number of seconds."""
    with_unit = quantity(Dimension.TIME, most=most)

    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            return with_unit(text)
        return _in_range(seconds, text, most)

    return parse


def _in_range(number: float, text: str, most: float) -> float:
    if not 0 <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range: it must be from 0 to {most:g} s")
    return number


def router_url(text: str) -> str:
    """The type of a flag that takes a router's address: without a trailing slash, and without the API's ``/v1``."""
    url = text.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # as whoever looks it up will do
    except ValueError:
        is_url = False
    if not is_url:
        raise argparse.ArgumentTypeError(f"{text!r} is not a router's address, such as http://127.0.0.1:8000")
    return url


def api_key(given: str) -> str:
    """The type of a flag that takes a key, of which a header and a topology hold any text but white space
    and controls.
    """
    key = text(given)
    if not key.isprintable() or " " in key:
        raise argparse.ArgumentTypeError("a key holds neither white space nor control characters")
    return key


def finite(given: str) -> float:
    """The type of a flag that takes a number which is sent on: JSON has neither infinite ones nor NaN."""
    try:
        number = float(given)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise argparse.ArgumentTypeError(f"{as_text(given)!r} is not a number")
    return number


def check_range(flag: str, number: int | None, *, least: int, most: int) -> None:
    """Raises ConfigError if a flag's number is out of range; None is none."""
    if number is not None and not least <= number <= most:
        raise ConfigError(f"{flag} {number}: it must be from {least} to {most}")


def port(text: str) -> int:
    """The type of a port flag."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to 65535, or 0 for any that is free")
    return number
