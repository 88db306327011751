"""One answer over time, a row for each thing that happened, drawn to a common scale.

Rows come from the router's events and from when tokens arrived here; both count from the moment the question was sent
(the router opens a request a millisecond or so later, which no column shows).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import floor, log10

from rich.text import Text

from pdd.cli.ask.conversation import ReceivedAnswer, ReportedEvent
from pdd.cli.ask.measure import first_time, last_time, token_times
from pdd.cli.ask.render import format_bytes, format_seconds, look_of
from pdd.core.request import Role
from pdd.core.units import Seconds

_LABEL_CELLS = 22
_NOTE_CELLS = 14
_KV_STYLE = "magenta"
_LEAST_COLUMNS = 24
"""Of time. A terminal too narrow for them has to let lines run over its edge."""
_MOST_MARKS = 10
_BAR, _TOKENS, _IDLE = "━", "▪", "·"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Something was going on from ``begin`` to ``end``."""

    begin: Seconds
    end: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """``stretches`` are drawn as bars of ``glyph``; a moment is a stretch that ends where it begins."""

    label: str
    style: str
    glyph: str
    stretches: tuple[Stretch, ...]
    note: str = ""


def rows_of(answer: ReceivedAnswer) -> tuple[TimelineRow, ...]:
    """The rows of one answer, in the order in which things begin. What did not happen has none."""
    events = answer.report.events
    candidates = (
        _prefill_row(events),
        _transfer_row(events, "KV to RLD, by LAN", "relay_ready", ""),
        _decode_row(answer, Role.RELAY_DECODE),
        _transfer_row(events, "KV to MD, by WAN", "main_ready", format_bytes(answer.report.wan_kv_bytes)),
        _handoff_row(answer),
        _decode_row(answer, Role.MAIN_DECODE),
    )
    return tuple(row for row in candidates if row.stretches)


def _prefill_row(events: Sequence[ReportedEvent]) -> TimelineRow:
    look = look_of(Role.PREFILL)
    stretches = _stretch(first_time(events, "prefill_started"), first_time(events, "first_token"))
    return TimelineRow(
        label=f"{look.tag} {look.name}", style=look.style, glyph=_BAR, stretches=stretches, note=_duration(stretches)
    )


def _transfer_row(events: Sequence[ReportedEvent], label: str, ready: str, note: str) -> TimelineRow:
    """Blocks leave as prefill computes them, so a transfer begins with prefill."""
    stretches = _stretch(first_time(events, "prefill_started"), first_time(events, ready))
    return TimelineRow(label=label, style=_KV_STYLE, glyph=_BAR, stretches=stretches, note=note or _duration(stretches))


def _decode_row(answer: ReceivedAnswer, role: Role) -> TimelineRow:
    """Every token is a moment: where the user waits, the row has holes."""
    look = look_of(role)
    times = token_times([span for span in answer.spans if span.role is role])
    return TimelineRow(
        label=f"{look.tag} {look.name}",
        style=look.style,
        glyph=_TOKENS,
        stretches=tuple(Stretch(begin=at, end=at) for at in times),
        note=f"{len(times)} tokens",
    )


def _handoff_row(answer: ReceivedAnswer) -> TimelineRow:
    """Token IDs go to main decode, which computes their KV: batches while relay decode goes on, then the final one."""
    events = answer.report.events
    batches = _pair(events, "extend_started", "extended")
    final = _stretch(last_time(events, "handoff_started"), _first_main_token(answer))
    stretches = (*batches, *final)
    note = f"{len(stretches)} batch{'es' if len(stretches) > 1 else ''}"
    return TimelineRow(label="hand-off of token IDs", style="bold white", glyph=_BAR, stretches=stretches, note=note)


def _first_main_token(answer: ReceivedAnswer) -> Seconds | None:
    times = token_times([span for span in answer.spans if span.role is Role.MAIN_DECODE])
    return times[0] if times else None


def _pair(events: Iterable[ReportedEvent], begin_name: str, end_name: str) -> tuple[Stretch, ...]:
    """Stretches from each event of one name to the next of the other; one that never ended is left out."""
    stretches: list[Stretch] = []
    begin: Seconds | None = None
    for event in events:
        if event.name == begin_name:
            begin = event.at
        elif event.name == end_name and begin is not None:
            stretches.append(Stretch(begin=begin, end=event.at))
            begin = None
    return tuple(stretches)


def _stretch(begin: Seconds | None, end: Seconds | None) -> tuple[Stretch, ...]:
    return () if begin is None or end is None or end < begin else (Stretch(begin=begin, end=end),)


def _duration(stretches: tuple[Stretch, ...]) -> str:
    return format_seconds(Seconds(sum(stretch.end - stretch.begin for stretch in stretches)))


# Drawing --------------------------------------------------------------------------------------------------------------


def draw(rows: Iterable[TimelineRow], *, end: Seconds, width: int) -> list[Text]:
    """The rows as lines of ``width`` cells, or a few more, the time from 0 to ``end`` in the middle of each."""
    columns = _columns_of(width)
    return [_draw_row(row, end, columns) for row in rows]


def draw_axis(*, end: Seconds, width: int) -> Text:
    """The line under the rows: marks every so many seconds."""
    columns = _columns_of(width)
    line = ""
    for at, mark in _marks(end, columns):
        line = line.ljust(at) + mark
    return Text(" " * (_LABEL_CELLS + 2) + line, style="dim")


def _columns_of(width: int) -> int:
    return max(_LEAST_COLUMNS, width - _LABEL_CELLS - _NOTE_CELLS - 4)


def _draw_row(row: TimelineRow, end: Seconds, columns: int) -> Text:
    cells = [_IDLE] * columns
    for stretch in row.stretches:
        first, last = _column(stretch.begin, end, columns), _column(stretch.end, end, columns)
        cells[first : last + 1] = row.glyph * (last + 1 - first)
    line = Text("  ").append(row.label.ljust(_LABEL_CELLS), style=row.style)
    for cell in cells:
        line.append(cell, style="dim" if cell == _IDLE else row.style)
    return line.append(f"  {row.note}", style="dim")


def _column(at: Seconds, end: Seconds, columns: int) -> int:
    return min(columns - 1, max(0, int(at / end * columns)))


def _marks(end: Seconds, columns: int) -> list[tuple[int, str]]:
    """Columns and what is written there: every so many seconds, a round number, as often as there is room for it."""
    exponent = floor(log10(end)) - 1
    steps = (digit * 10.0**power for power in count(exponent) for digit in (1, 2, 5))
    every_step = (_marks_every(step, end, columns) for step in steps if end / step < _MOST_MARKS)
    return next(filter(_are_apart, every_step))


def _marks_every(step: float, end: Seconds, columns: int) -> list[tuple[int, str]]:
    moments = [Seconds(index * step) for index in range(int(end / step) + 1)]
    return [(_column(at, end, columns), f"{at:g} s" if at else "0") for at in moments]


def _are_apart(marks: Iterable[tuple[int, str]]) -> bool:
    return all(before + len(mark) < after for (before, mark), (after, _) in pairwise(marks))
