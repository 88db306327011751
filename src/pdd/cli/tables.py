"""Tables of figures. A terminal that is too narrow does not cut them: a number without its end is another number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.measure import Measurement
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_ANY_WIDTH = 10_000


class WholeTable(Table):
    """Bold headings, no lines, ``gap`` columns between two cells; its lines run over the edge rather than lose
    anything.
    """

    def __init__(self, *, gap: int) -> None:
        super().__init__(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = Measurement.get(console, options.update(width=_ANY_WIDTH), self).maximum
        yield from super().__rich_console__(console, options.update(width=max(whole, options.max_width)))
