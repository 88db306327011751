"""What a benchmark found: figures for programs, a table for people."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

OUTPUT = Path("build/benchmarks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: the median of ``samples``. ``bound`` says in words what is wanted of it, if anything is."""

    name: str
    unit: str
    samples: tuple[float, ...]
    bound: str = ""

    @property
    def median(self) -> float:
        return median(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One benchmark's figures; ``title`` says what was measured, in one line."""

    name: str
    title: str
    rows: tuple[Row, ...]


def row(name: str, unit: str, samples: Sequence[float], bound: str = "") -> Row:
    """A row from any samples."""
    return Row(name=name, unit=unit, samples=tuple(samples), bound=bound)


def save(result: Result) -> Path:
    """Writes ``build/benchmarks/<name>.json`` below the current directory."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / f"{result.name}.json"
    figures = [
        {"name": r.name, "unit": r.unit, "median": r.median, "samples": list(r.samples), "bound": r.bound}
        for r in result.rows
    ]
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    body = {"name": result.name, "title": result.title, "machine": machine, "figures": figures}
    path.write_text(json.dumps(body, indent=2) + "\n")
    return path


def show(result: Result, console: Console) -> None:
    """The table."""
    table = Table(title=f"{result.name}: {result.title}", title_justify="left", box=None, pad_edge=False)
    for heading in ("figure", "unit"):
        table.add_column(heading)
    for heading in ("median", "least", "most", "n"):
        table.add_column(heading, justify="right")
    table.add_column("wanted")
    for r in result.rows:
        least, most = min(r.samples), max(r.samples)
        table.add_row(r.name, r.unit, f"{r.median:.4g}", f"{least:.4g}", f"{most:.4g}", str(len(r.samples)), r.bound)
    console.print(table)
