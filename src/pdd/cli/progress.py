"""How commands tell how far they are: a bar for those who watch, now and then a line for a log."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINES_OF_LOG = 20

Count = Callable[[int, int], None]
"""Told how many are done, of how many; the more often, the smoother."""


@contextmanager
def counting(what: str, console: Console) -> Generator[Count]:
    """Counts things that are called ``what``."""
    columns = TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=console)
    task = bar.add_task(what, total=None)
    num_lines = 0

    def count(num_done: int, num_all: int) -> None:
        nonlocal num_lines
        bar.update(task, completed=num_done, total=num_all)
        if not console.is_terminal and num_done * _LINES_OF_LOG // num_all > num_lines:
            num_lines = num_done * _LINES_OF_LOG // num_all
            console.print(f"  {num_done} of {num_all} {what} after {bar.tasks[task].elapsed or 0.0:.0f} s")

    with bar if console.is_terminal else nullcontext():
        yield count
