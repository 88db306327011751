"""A run's figures over time as one HTML page of small charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from pdd.cli.sim.chart import Chart, Point, chart_page

_Figures = Mapping[str, object]
_Value = Callable[[_Figures], object]


def plot_page(figures: _Figures) -> str:
    """The page for what ``sim.report.summarize`` returned, with ``topology``, ``workload`` and ``seed`` added."""
    heading = f"{figures['workload']} on {figures['topology']}, seed {figures['seed']}"
    return chart_page(heading, _charts(figures))


def _charts(figures: _Figures) -> Iterator[Chart]:
    periods = cast("Sequence[_Figures]", figures["over_time"])
    links = tuple(cast("_Figures", figures["wan"]))
    values: dict[str, dict[str, _Value]] = {
        "requests sent in each period": {"sent": _at("sent")},
        "time to second token, seconds": {name.upper(): _at("ttst_s", name) for name in ("p50", "p90", "p99")},
        "share of requests that relay": {"relay share": _at("relay_share")},
        "prefix hits": {"prefill": _at("hit_rate", "prefill"), "main decode": _at("hit_rate", "main_decode")},
        "lines in use": {link: _at("wan_utilisation", link) for link in links},
    }
    for title, lines in values.items():
        yield Chart(title=title, lines={name: _over_time(periods, value) for name, value in lines.items()}, unit=" s")


def _over_time(periods: Sequence[_Figures], value: _Value) -> list[Point]:
    return [(cast("float", period["from_s"]), _number(value(period))) for period in periods]


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _at(*path: str) -> _Value:
    def value(period: _Figures) -> object:
        found: object = period
        for key in path:
            found = cast("dict[str, object]", found)[key]
        return found

    return value
