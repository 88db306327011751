"""How answers look on a terminal: who computed which token, and what the waits were.

Prefill, relay decode and main decode have a colour each; a tag at every change of role tells them apart without colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pdd.cli.ask.conversation import ReceivedAnswer, ReceivedSpan
from pdd.cli.ask.measure import Timings, count_tokens, measure
from pdd.cli.tables import WholeTable
from pdd.core.request import Role
from pdd.core.units import Bytes, Seconds

_MISSING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLook:
    """How a role appears: ``tag`` before its tokens, ``style`` in rich's words."""

    tag: str
    name: str
    style: str


def look_of(role: Role) -> RoleLook:
    """The look of one role."""
    match role:
        case Role.PREFILL:
            return RoleLook(tag="P", name="prefill", style="bold yellow")
        case Role.RELAY_DECODE:
            return RoleLook(tag="RLD", name="relay decode", style="cyan")
        case Role.MAIN_DECODE:
            return RoleLook(tag="MD", name="main decode", style="green")
        case _:
            assert_never(role)


def legend() -> Text:
    """One line that explains the tags."""
    line = Text("tokens by  ")
    for role in Role:
        look = look_of(role)
        line.append_text(_tag(role)).append(f" {look.name}   ", style=look.style)
    return line


def _tag(role: Role) -> Text:
    look = look_of(role)
    return Text(f"[{look.tag}]", style=f"{look.style} reverse")


class AnswerPrinter:
    """Prints an answer as it streams: wrapped at words, indented, tagged and coloured by role."""

    def __init__(self, console: Console, *, indent: int = 2) -> None:
        self._console = console
        self._indent = indent
        self._column = 0
        self._spaces = ""
        self._word = Text()
        self._role: Role | None = None

    def add(self, span: ReceivedSpan) -> None:
        """Prints the words that this span completes."""
        style = look_of(span.role).style
        for character in span.text:
            if character.isspace():
                self._flush_word()
                self._add_space(character)
            else:
                self._add_tag(span.role)
                # What a model says must not steer the terminal.
                self._word.append(character if character.isprintable() else "\ufffd", style=style)
                if cell_len(self._word.plain) >= self._last_column - self._indent:
                    self._flush_word()

    def finish(self) -> None:
        """Prints what is left, and ends the line."""
        self._flush_word()
        if self._column:
            self._break_line()

    def _add_tag(self, role: Role) -> None:
        if role is not self._role:
            self._word.append_text(_tag(role))
            self._role = role

    def _add_space(self, character: str) -> None:
        if character == "\n":
            self._break_line()
        else:
            self._spaces += " "

    def _flush_word(self) -> None:
        if not self._word:
            return
        if self._column and self._column + len(self._spaces) + cell_len(self._word.plain) > self._last_column:
            self._break_line()
        self._write(Text(self._spaces).append_text(self._word))
        self._spaces, self._word = "", Text()

    @property
    def _last_column(self) -> int:
        return self._console.width - 2 * self._indent

    def _write(self, text: Text) -> None:
        if not self._column:
            self._console.print(" " * self._indent, end="")
        self._console.print(text, end="", soft_wrap=True)
        self._column += cell_len(text.plain)

    def _break_line(self) -> None:
        self._console.print()
        self._column, self._spaces = 0, ""


def print_answer(console: Console, spans: Iterable[ReceivedSpan]) -> None:
    """Prints a recorded answer as ``AnswerPrinter`` prints a live one."""
    printer = AnswerPrinter(console)
    for span in spans:
        printer.add(span)
    printer.finish()


# The table ------------------------------------------------------------------------------------------------------------


def tabulate(answers: Iterable[tuple[str, ReceivedAnswer]]) -> WholeTable:
    """One row for each named answer. Times are the client's."""
    table = WholeTable(gap=2)
    table.add_column("  run\n")
    table.add_column("route\n")
    for heading in ("first\ntoken", "second\ntoken", "largest\ngap", "median\ngap"):
        table.add_column(heading, justify="right")
    for role in Role:
        look = look_of(role)
        table.add_column(f"{look.tag}\ntokens", justify="right", style=look.style)
    table.add_column("KV over\nthe WAN", justify="right")
    for name, answer in answers:
        table.add_row(*_cells(name, answer, measure(answer)))
    return table


def _cells(name: str, answer: ReceivedAnswer, timings: Timings) -> Iterable[str]:
    yield f"  {name}"
    yield path_of(answer)
    yield format_seconds(timings.ttft)
    yield format_seconds(timings.ttst)
    yield format_seconds(timings.max_gap)
    yield format_seconds(timings.median_gap)
    yield from (str(count_tokens(answer, role)) for role in Role)
    yield format_bytes(answer.report.wan_kv_bytes)


def path_of(answer: ReceivedAnswer) -> str:
    """The roles that an answer's tokens went through, such as ``P-RLD-MD``."""
    return "-".join(look_of(role).tag for role in Role if count_tokens(answer, role))


def format_seconds(time: Seconds | None) -> str:
    """Milliseconds below one second."""
    if time is None:
        return _MISSING
    return f"{time * 1000:.0f} ms" if time < 0.9995 else f"{time:.2f} s"


def format_bytes(size: Bytes) -> str:
    """Decimal units, as lines are sold."""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1e3:.1f} KB" if size < 999_950 else f"{size / 1e6:.1f} MB"
