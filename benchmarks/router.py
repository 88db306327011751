"""What the router's control plane costs, beside what it costs at another commit.

Streams through the front door, route decisions, and simulated requests. Each measurement is a process of its
own (``benchmarks.router_measurement``), and both trees take turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
from rich.console import Console

from benchmarks.report import Result, Row, row
from benchmarks.router_measurement import Measured
from benchmarks.trees import ROOT, THIS_TREE, Tree, checked_out

_TIMEOUT_S = 400
_NO_SLOWER = ">= 0.97"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One figure of one measurement, both by their names there."""

    measurement: str
    key: str
    name: str
    unit: str
    is_cost: bool = False
    """Less is better."""
    bound: str = _NO_SLOWER


_FIGURES = (
    _Figure(measurement="streams", key="tokens/s", name="tokens, 256 streams", unit="1/core s"),
    _Figure(measurement="streams", key="events/s", name="SSE events, 256 streams", unit="1/core s", bound=""),
    _Figure(measurement="streams", key="requests/s", name="requests opened and closed", unit="1/core s", bound=""),
    _Figure(measurement="decisions", key="us", name="a decision, 256 waiting", unit="us", is_cost=True),
    _Figure(measurement="crossing", key="requests/s", name="simulated requests, crossing", unit="1/core s"),
    _Figure(measurement="paper", key="requests/s", name="simulated requests, paper", unit="1/core s"),
)
_MEASUREMENTS = tuple(dict.fromkeys(figure.measurement for figure in _FIGURES))

_Samples = dict[tuple[str, str, Tree], list[float]]
"""By measurement, key and tree."""


def run(repetitions: int, *, against: str | None = None, smallest: bool = False) -> Result:
    """Measures this tree and, if one is named, the commit ``against``.

    Raises:
        ConfigError: ``against`` can't be checked out.
    """
    with ExitStack() as stack:
        trees = [THIS_TREE]
        if against is not None:
            trees.append(stack.enter_context(checked_out(against)))
        samples = _take_samples(trees, repetitions, smallest=smallest)
    beside = "" if against is None else f", beside {against}"
    return Result(
        name="router",
        title=f"what the control plane costs in processor time{beside}",
        rows=tuple(_rows(samples, trees)),
    )


def _take_samples(trees: list[Tree], repetitions: int, *, smallest: bool) -> _Samples:
    """In every other repetition the other tree comes first: a machine that slows down slows both."""
    samples: _Samples = defaultdict(list)
    progress = Console(stderr=True)
    for repetition in range(repetitions):
        for name in _MEASUREMENTS:
            for tree in trees if repetition % 2 == 0 else trees[::-1]:
                figures = _measure(name, tree, smallest=smallest)
                progress.print(f"  {name}, {tree.name}: {', '.join(f'{v:.4g} {k}' for k, v in figures.items())}")
                for key, value in figures.items():
                    samples[name, key, tree].append(value)
    return samples


def _measure(name: str, tree: Tree, *, smallest: bool) -> dict[str, float]:
    """Runs one measurement on ``tree``: its source comes before what is installed, and before this tree's."""
    command = [sys.executable, "-m", "benchmarks.router_measurement", name, *(["--smallest"] if smallest else [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tree.source), str(ROOT)))}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"the measurement {name!r} of {tree.name} failed; what it said is above")
    measured = msgspec.json.decode(done.stdout, type=Measured)
    if measured.package != str(tree.source / "pdd"):
        raise RuntimeError(f"{measured.package} was measured instead of {tree.source / 'pdd'}")
    return measured.figures


def _rows(samples: _Samples, trees: list[Tree]) -> Iterator[Row]:
    for figure in _FIGURES:
        taken = [samples[figure.measurement, figure.key, tree] for tree in trees]
        for tree, values in zip(trees, taken, strict=True):
            yield row(f"{figure.name}: {tree.name}", figure.unit, values)
        if len(trees) > 1:
            yield _ratio(figure, trees, taken)


def _ratio(figure: _Figure, trees: list[Tree], taken: list[list[float]]) -> Row:
    """Above 1: this tree is the quicker one. Repetition by repetition."""
    order = -1 if figure.is_cost else 1
    above, below = taken[::order]
    above_name, below_name = (tree.name for tree in trees[::order])
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return row(f"{figure.name}: {above_name} over {below_name}", "ratio", ratios, figure.bound)
