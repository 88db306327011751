"""Charts put values where their axes say, and leave out what has no place."""

from __future__ import annotations

import re

import pytest

from pdd.cli.sim.chart import Chart, Scale, chart_page


def heights(page: str) -> list[float]:
    (points,) = re.findall(r'points="([^"]*)"', page)
    return [float(point.split(",")[1]) for point in points.split()]


@pytest.mark.parametrize(
    ("scale", "values", "expected"),
    [
        (Scale.LINEAR, [0.0, 5.0, 10.0], [150.0, 85.0, 20.0]),
        (Scale.LOGARITHMIC, [0.1, 1.0, 10.0], [150.0, 85.0, 20.0]),
        (Scale.LOGARITHMIC, [0.0, 1.0, 10.0], [150.0, 20.0]),
        (Scale.LINEAR, [1.0, None, 2.0], [85.0, 20.0]),
        (Scale.LINEAR, [0.0], [150.0]),
        (Scale.LOGARITHMIC, [], []),
    ],
)
def test_values_stand_where_the_axis_says(scale, values, expected):
    line = list(enumerate(values))
    page = chart_page("heading", [Chart(title="title", lines={"line": line}, unit=" s", scale=scale)])
    assert heights(page) == expected


def test_names_are_text_not_markup():
    page = chart_page("<b>", [Chart(title="a & b", lines={"<i>": [(0.0, 1.0)]}, unit="")])
    assert "<b>" not in page
    assert "a &amp; b" in page
    assert "&lt;i&gt;" in page
