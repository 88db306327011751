"""Bars that only go down: what a measure may be at most is checked in, and lowered whenever it has become less.

A bar that isn't there is 0, so that a measure without any is a plain rule.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Bars = Mapping[str, Mapping[str, int]]
"""By measure, then by what is counted."""

_SHOWN = 20
_HEADER = """\
# What `python -m tests.support.house` may find at most; what isn't here is 0. Numbers only go down: when the check says
# that one can, `--tighten` writes it. Raising one, or adding a line, is a decision to defend in review.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How much there is of ``key``, and where: ``path:line`` and what stands there."""

    key: str
    number: int
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    name: str
    counts: tuple[Count, ...]

    @property
    def total(self) -> int:
        return sum(each.number for each in self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A number that isn't its bar."""

    measure: str
    key: str
    number: int
    bar: int
    where: tuple[str, ...]

    @property
    def is_worse(self) -> bool:
        return self.number > self.bar

    def __str__(self) -> str:
        if not self.is_worse:
            return f"{self.measure}: {self.key}: {self.number}, the bar is at {self.bar}: --tighten lowers it"
        places = [f"    {each}" for each in self.where[:_SHOWN]]
        if len(self.where) > _SHOWN:
            places.append(f"    and {len(self.where) - _SHOWN} more: --json has them all")
        return "\n".join([f"{self.measure}: {self.key}: {self.number}, at most {self.bar} allowed", *places])


def read_bars(path: Path) -> Bars:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def differences(measures: Iterable[Measure], bars: Bars) -> Iterator[Difference]:
    """Every number that is above or below its bar, and every bar that nothing is measured for any more."""
    for measure in measures:
        of_measure = bars.get(measure.name, {})
        counts = {each.key: each for each in measure.counts}
        for key in sorted(counts.keys() | of_measure.keys()):
            count = counts.get(key, Count(key=key, number=0))
            bar = of_measure.get(key, 0)
            if count.number != bar:
                yield Difference(measure=measure.name, key=key, number=count.number, bar=bar, where=count.where)


def tightened(measures: Sequence[Measure], bars: Bars) -> Bars:
    """``bars`` with every number that can be lower; none becomes higher and none is added."""
    numbers = {measure.name: {each.key: each.number for each in measure.counts} for measure in measures}
    return {
        name: {key: min(bar, numbers[name].get(key, 0)) for key, bar in of_measure.items()}
        for name, of_measure in bars.items()
        if name in numbers
    }


def write_bars(path: Path, bars: Bars) -> None:
    """As TOML, without zeros: they are the rule."""
    tables: list[str] = []
    for name, of_measure in sorted(bars.items()):
        lines = [f"{json.dumps(key)} = {bar}" for key, bar in sorted(of_measure.items()) if bar]
        if lines:
            tables.append("\n".join([f"[{name}]", *lines]) + "\n")
    path.write_text("\n".join([_HEADER, *tables]), encoding="utf-8")
