"""What recorded traffic comes to at rising load, as one HTML page: a few charts for each trace, a line for
each system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pdd.cli.sim.chart import Chart, Point, Scale, chart_page

if TYPE_CHECKING:
    from pdd.sim.compare.trace_study import TraceStanding

_Value = Callable[["TraceStanding"], float | None]


def trace_page(topology: str, standings: Sequence[TraceStanding]) -> str:
    """The page for what ``study_traces`` returned."""
    return chart_page(f"Recorded traces on {topology}, by load of the line", _charts(standings))


def _charts(standings: Sequence[TraceStanding]) -> Iterator[Chart]:
    values: dict[str, tuple[_Value, Scale]] = {
        "time to second token, P90, seconds": (lambda each: each.measures.ttst.p90, Scale.LOGARITHMIC),
        "time to second token, P99, seconds": (lambda each: each.measures.ttst.p99, Scale.LOGARITHMIC),
        "requests a second within the SLA": (lambda each: each.measures.goodput_per_s, Scale.LINEAR),
        "relay decode's share of the tokens": (lambda each: each.measures.rld_token_share, Scale.LINEAR),
    }
    for trace in dict.fromkeys(each.trace for each in standings):
        own = [each for each in standings if each.trace == trace]
        for title, (value, scale) in values.items():
            yield Chart(title=f"{trace}: {title}", lines=_lines(own, value), unit=" of the line", scale=scale)


def _lines(standings: Sequence[TraceStanding], value: _Value) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    for each in sorted(standings, key=lambda each: each.load):
        lines.setdefault(each.system.value, []).append((each.load, value(each)))
    return lines
