from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.cli.ask.timeline import Stretch, TimelineRow, draw, draw_axis, rows_of
from pdd.core.units import Seconds
from tests.unit.cli.recordings import MD, P, answer, direct, relayed, spans


def test_a_relayed_answer_has_a_row_for_each_thing_that_happened():
    rows = {row.label: row for row in rows_of(relayed())}
    assert list(rows) == [
        "P prefill",
        "KV to RLD, by LAN",
        "RLD relay decode",
        "KV to MD, by WAN",
        "hand-off of token IDs",
        "MD main decode",
    ]
    assert rows["P prefill"].stretches == (Stretch(begin=Seconds(0.0), end=Seconds(2.0)),)
    assert rows["KV to MD, by WAN"].note == "28.0 MB"
    assert [(s.begin, s.end) for s in rows["hand-off of token IDs"].stretches] == [(2.21, 2.29), (2.3, 2.8)]
    assert rows["RLD relay decode"].note == "3 tokens"
    assert len(rows["MD main decode"].stretches) == 3


def test_a_direct_answer_has_no_rows_of_relay_decode():
    assert [row.label for row in rows_of(direct())] == ["P prefill", "KV to MD, by WAN", "MD main decode"]


def test_an_answer_without_events_still_shows_its_tokens():
    rows = rows_of(answer(spans((1.0, P, 1, "a"), (2.0, MD, 1, "b"))))
    assert [row.label for row in rows] == ["MD main decode"]


def test_bars_lie_where_things_happened_on_a_common_scale():
    row = TimelineRow(
        label="x",
        style="red",
        glyph="#",
        stretches=(Stretch(begin=Seconds(0.0), end=Seconds(1.0)), Stretch(begin=Seconds(9.99), end=Seconds(10.0))),
    )
    (line,) = draw([row], end=Seconds(10.0), width=100)
    cells = line.plain[24:84]
    assert cells == "#" * 7 + "·" * 52 + "#"


@pytest.mark.parametrize("end", [0.03, 0.7, 4.0, 25.0, 400.0])
def test_the_axis_fits_and_begins_at_zero(end: float):
    axis = draw_axis(end=Seconds(end), width=100).plain
    assert axis.lstrip().startswith("0")
    assert 3 <= axis.count(" s") <= 12
    assert len(axis) <= 100


@given(end=st.floats(1e-3, 1e5), width=st.integers(1, 300))
def test_marks_never_touch_each_other(end: float, width: int):
    axis = draw_axis(end=Seconds(end), width=width).plain
    marks = re.findall(r"\S+(?: s)?", axis)
    assert marks[0] == "0"
    assert all(re.fullmatch(r"[0-9.e+-]+ s", mark) for mark in marks[1:])
    seconds = [float(mark.split()[0]) for mark in marks]
    assert seconds == sorted(set(seconds))


def test_a_moment_beyond_the_end_is_drawn_at_the_end():
    row = TimelineRow(label="x", style="red", glyph="#", stretches=(Stretch(begin=Seconds(11), end=Seconds(12)),))
    (line,) = draw([row], end=Seconds(10.0), width=100)
    assert line.plain[83] == "#"
