"""Quantities as people write them, "20 Mbit/s" or "15 ms" or "512 MiB", to and from plain numbers."""

from __future__ import annotations

import re
from enum import Enum

from pdd.core.errors import ConfigError

_QUANTITY = re.compile(r"\s*(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(?P<unit>[A-Za-zµ][A-Za-zµ/]*)\s*")


class Dimension(Enum):
    """What a quantity measures; the value is what a key that holds it as a plain number ends in."""

    RATE = "_bits_per_s"
    SIZE = "_bytes"
    TIME = "_s"


_UNITS: dict[Dimension, dict[str, float]] = {
    Dimension.RATE: {"bit/s": 1, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9},
    Dimension.SIZE: {
        "B": 1,
        "KB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
        "TiB": 2**40,
    },
    Dimension.TIME: {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60},
}
_EXAMPLES = {Dimension.RATE: "20 Mbit/s", Dimension.SIZE: "512 MiB", Dimension.TIME: "15 ms"}


def dimension_of(key: str) -> Dimension | None:
    """What the number under ``key`` measures, by the key's ending; None for a bare number or one of another unit."""
    if key.endswith(Dimension.RATE.value):
        return Dimension.RATE
    if key.endswith(Dimension.SIZE.value):
        return Dimension.SIZE
    return Dimension.TIME if key.endswith(Dimension.TIME.value) and not key.endswith("_per_s") else None


def describe(dimension: Dimension) -> str:
    """How a quantity of this dimension is written, for messages and help."""
    return f'a number and a unit ({", ".join(_UNITS[dimension])}), such as "{_EXAMPLES[dimension]}"'


def parse_quantity(text: str, dimension: Dimension) -> float:
    """The plain number of bits per second, bytes or seconds. Never negative.

    Raises:
        ConfigError: it isn't a number and a unit of that dimension.
    """
    match = _QUANTITY.fullmatch(text)
    factor = _UNITS[dimension].get(match["unit"]) if match else None
    if match is None or factor is None:
        raise ConfigError(f"{text!r} is not {describe(dimension)}")
    return float(match["number"]) * factor


def format_rate(bits_per_s: float) -> str:
    """``20 Mbit/s``."""
    for unit in ("Gbit/s", "Mbit/s", "kbit/s"):
        factor = _UNITS[Dimension.RATE][unit]
        if bits_per_s >= factor:
            return f"{bits_per_s / factor:g} {unit}"
    return f"{bits_per_s:g} bit/s"


def format_size(num_bytes: float) -> str:
    """``28.3 MB``, decimal, as lines are sold."""
    for unit in ("GB", "MB", "KB"):
        factor = _UNITS[Dimension.SIZE][unit]
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:g} B"


def format_memory(num_bytes: int) -> str:
    """``512 MiB``, binary and rounded up, as memory is sized; KiB below one MiB."""
    power, unit = (20, "MiB") if num_bytes >= 2**20 else (10, "KiB")
    return f"{-(-num_bytes // 2**power)} {unit}"


def format_time(seconds: float) -> str:
    """``15 ms``, ``2 s``."""
    return f"{seconds * 1e3:g} ms" if seconds < 1 else f"{seconds:g} s"
