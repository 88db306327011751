"""A run's figures over time as one HTML page that needs nothing else: small charts, one below the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10
from typing import cast

_WIDTH, _HEIGHT, _MARGIN = 720, 150, 48
_COLOURS = ("#1f6feb", "#d1570b", "#2a8a3e", "#8250df")

_Figures = Mapping[str, object]
_Value = Callable[[_Figures], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    title: str
    lines: Mapping[str, _Value]


def plot_page(figures: _Figures) -> str:
    """The page for what ``sim.report.summarize`` returned, with ``topology``, ``workload`` and ``seed`` added."""
    periods = cast("Sequence[_Figures]", figures["over_time"])
    heading = escape(f"{figures['workload']} on {figures['topology']}, seed {figures['seed']}")
    charts = "\n".join(_draw(chart, periods) for chart in _charts(figures))
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{heading}</title>\n'
        "<style>body{font:14px sans-serif;margin:2em}svg{display:block;margin:0 0 1.5em}text{font:11px sans-serif}</style>\n"
        f"<h1>{heading}</h1>\n{charts}\n</html>\n"
    )


def _charts(figures: _Figures) -> tuple[_Chart, ...]:
    links = tuple(cast("_Figures", figures["wan"]))
    return (
        _Chart(title="requests sent in each period", lines={"sent": _at("sent")}),
        _Chart(
            title="time to second token, seconds",
            lines={name.upper(): _at("ttst_s", name) for name in ("p50", "p90", "p99")},
        ),
        _Chart(title="share of requests that relay", lines={"relay share": _at("relay_share")}),
        _Chart(
            title="prefix hits",
            lines={"prefill": _at("hit_rate", "prefill"), "main decode": _at("hit_rate", "main_decode")},
        ),
        _Chart(title="lines in use", lines={link: _at("wan_utilisation", link) for link in links}),
    )


def _at(*path: str) -> _Value:
    def value(period: _Figures) -> object:
        found: object = period
        for key in path:
            found = cast("dict[str, object]", found)[key]
        return found

    return value


def _draw(chart: _Chart, periods: Sequence[_Figures]) -> str:
    values = {name: [value(period) for period in periods] for name, value in chart.lines.items()}
    top = _round_up(max((v for line in values.values() for v in line if isinstance(v, int | float)), default=0.0))
    begin, end = (cast("float", periods[index]["from_s"]) for index in (0, -1))
    parts = [_frame(chart.title, top, begin, end)]
    for (name, line), colour, row in zip(values.items(), _COLOURS, range(len(values)), strict=False):
        points = " ".join(
            f"{_x(index, len(line)):.1f},{_y(value, top):.1f}"
            for index, value in enumerate(line)
            if isinstance(value, int | float)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{_WIDTH - 90}" y="{14 * (row + 1)}" fill="{colour}">{escape(name)}</text>')
    return f'<svg width="{_WIDTH}" height="{_HEIGHT + 30}">{"".join(parts)}</svg>'


def _frame(title: str, top: float, begin: float, end: float) -> str:
    right, bottom = _WIDTH - _MARGIN, _HEIGHT
    return (
        f'<text x="{_MARGIN}" y="12" font-weight="bold">{escape(title)}</text>'
        f'<path d="M{_MARGIN} 20V{bottom}H{right}" fill="none" stroke="#888"/>'
        f'<text x="{_MARGIN - 6}" y="26" text-anchor="end">{top:g}</text>'
        f'<text x="{_MARGIN - 6}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{_MARGIN}" y="{bottom + 16}">{begin:.0f} s</text>'
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{end:.0f} s</text>'
    )


def _x(index: int, count: int) -> float:
    return _MARGIN + (_WIDTH - 2 * _MARGIN) * index / max(1, count - 1)


def _y(value: float, top: float) -> float:
    return _HEIGHT - (_HEIGHT - 20) * value / top


def _round_up(value: float) -> float:
    """To one significant digit, so that the axis ends at a round number."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** ceil(log10(value) - 1)
    return ceil(value / unit) * unit
