"""Small line charts as an HTML page that needs nothing else, one below the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from math import ceil, floor, log10

_WIDTH, _HEIGHT, _MARGIN = 720, 150, 48
_COLOURS = ("#1f6feb", "#d1570b", "#2a8a3e", "#8250df")
_STYLE = "body{font:14px sans-serif;margin:2em}svg{display:block;margin:0 0 1.5em}text{font:11px sans-serif}"

Point = tuple[float, float | None]
"""A place on each axis; None: there is no value there."""


class Scale(StrEnum):
    """How far apart values are drawn."""

    LINEAR = "linear"
    """From 0."""
    LOGARITHMIC = "logarithmic"
    """Between powers of ten; what is not above 0 is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """``unit`` follows the numbers of the horizontal axis."""

    title: str
    lines: Mapping[str, Sequence[Point]]
    unit: str
    scale: Scale = Scale.LINEAR


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values as places between 0, ``low``, and 1, ``high``."""

    low: float
    high: float
    scale: Scale

    def place(self, value: float) -> float | None:
        match self.scale:
            case Scale.LINEAR:
                return (value - self.low) / (self.high - self.low)
            case Scale.LOGARITHMIC:
                return log10(value / self.low) / log10(self.high / self.low) if value > 0 else None


def chart_page(heading: str, charts: Iterable[Chart]) -> str:
    """The whole page."""
    drawn = "\n".join(map(_draw, charts))
    title = escape(heading)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{title}</h1>\n{drawn}\n</html>\n"
    )


def _draw(chart: Chart) -> str:
    points = [point for line in chart.lines.values() for point in line]
    across = _Axis(*_extent(x for x, _ in points), Scale.LINEAR)
    upwards = _upwards([y for _, y in points if y is not None], chart.scale)
    parts = [_frame(chart, across, upwards)]
    for (name, line), colour, row in zip(chart.lines.items(), _COLOURS, range(len(chart.lines)), strict=False):
        path = " ".join(_places(line, across, upwards))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{_WIDTH - 90}" y="{14 * (row + 1)}" fill="{colour}">{escape(name)}</text>')
    return f'<svg width="{_WIDTH}" height="{_HEIGHT + 30}">{"".join(parts)}</svg>'


def _places(line: Sequence[Point], across: _Axis, upwards: _Axis) -> Iterable[str]:
    for x, y in line:
        place, height = across.place(x), None if y is None else upwards.place(y)
        if place is not None and height is not None:
            yield f"{_MARGIN + (_WIDTH - 2 * _MARGIN) * place:.1f},{_HEIGHT - (_HEIGHT - 20) * height:.1f}"


def _extent(values: Iterable[float]) -> tuple[float, float]:
    ordered = sorted(values) or [0.0]
    return ordered[0], max(ordered[-1], ordered[0] + 1e-9)


def _upwards(values: Sequence[float], scale: Scale) -> _Axis:
    match scale:
        case Scale.LINEAR:
            return _Axis(0.0, _round_up(max(values, default=0.0)), scale)
        case Scale.LOGARITHMIC:
            exponents = [log10(value) for value in values if value > 0] or [0.0]
            low, high = floor(min(exponents)), ceil(max(exponents))
            return _Axis(10.0**low, 10.0 ** max(high, low + 1), scale)


def _frame(chart: Chart, across: _Axis, upwards: _Axis) -> str:
    right, bottom = _WIDTH - _MARGIN, _HEIGHT
    return (
        f'<text x="{_MARGIN}" y="12" font-weight="bold">{escape(chart.title)}</text>'
        f'<path d="M{_MARGIN} 20V{bottom}H{right}" fill="none" stroke="#888"/>'
        f'<text x="{_MARGIN - 6}" y="26" text-anchor="end">{upwards.high:g}</text>'
        f'<text x="{_MARGIN - 6}" y="{bottom}" text-anchor="end">{upwards.low:g}</text>'
        f'<text x="{_MARGIN}" y="{bottom + 16}">{across.low:.3g}{chart.unit}</text>'
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{across.high:.3g}{chart.unit}</text>'
    )


def _round_up(value: float) -> float:
    """To one significant digit, so that the axis ends at a round number."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** ceil(log10(value) - 1)
    return ceil(value / unit) * unit
