"""``pdd sim paper``: the published evaluation simulated, figure beside figure."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.options import add_json
from pdd.cli.output import EXIT_FAILURE, print_json
from pdd.cli.sim.studies import add_extent, check_extent, number, percent, plain_table
from pdd.cli.tables import WholeTable

if TYPE_CHECKING:
    from pdd.sim.paper.report import Constraint, Figure, PaperReport

_TOPOLOGY, _COLLAPSING = "paper", "collapse"


def define(parser: CommandParser) -> None:
    """``pdd sim paper``."""
    parser.description = (
        "Simulates the published evaluation: time to the decode side's first token in one datacenter, across "
        "two without hiding, and with PDD; KV transfer times under skewed and narrow hit rates; relay decode's share of the "
        "tokens; and the collapse where relays never hand over. A few minutes on two cores. Exit code 1 if something that "
        "must hold does not."
    )
    parser.epilog = (
        "With --json: ttft_s, kv_transfer_s, connection_wait_s, rld_token_share, cross_dc_transfer_p50_s, "
        "goodput_per_s, relay_share, collapse, holds, assumptions, seeds, requests_per_run."
    )
    add_extent(parser, seeds=5, requests=2700)
    add_json(parser)
    parser.set_defaults(run=run_paper)


def run_paper(args: argparse.Namespace) -> int:
    """Simulates; 1 if something that must hold does not.

    Raises:
        ConfigError: a flag is out of range.
    """
    check_extent(args)
    from pdd.cli.topology.file import load_simulated_topology
    from pdd.sim.paper.study import Extent, study_paper

    extent = Extent(num_seeds=args.seeds, requests_per_run=args.requests)
    report = study_paper(
        load_simulated_topology(_TOPOLOGY),
        load_simulated_topology(_COLLAPSING),
        extent,
        num_processes=args.jobs,
        progress=_tell_progress(),
    )
    if args.json:
        print_json(report)
    else:
        _show(open_console(), report)
    return 0 if report.all_hold else EXIT_FAILURE


def _tell_progress() -> Callable[[int, int], None]:
    """On stderr; what remains is guessed from the mean so far, and the longest simulations come first."""
    console, began = open_console(stderr=True), monotonic()

    def tell(num_done: int, num_all: int) -> None:
        passed = monotonic() - began
        left = passed / num_done * (num_all - num_done)
        console.print(f"  {num_done} of {num_all} simulations after {passed:.0f} s; at most some {left:.0f} s to go")

    return tell


def _show(console: Console, report: PaperReport) -> None:
    console.print("\n  Seconds to the decode side's first token (mean over seeds, 95 % interval)\n")
    console.print(_figures(report.ttft_s))
    console.print("\n  Seconds of KV transfer (link model alone)\n")
    console.print(_figures(report.kv_transfer_s))
    console.print()
    for words, figure in (
        ("relay decode's share of the output tokens", report.rld_token_share),
        ("P50 of cross-datacenter transfers, whole system, s", report.cross_dc_transfer_p50_s),
        ("share of requests that relayed", report.relay_share),
    ):
        console.print(f"  {words}: {number(figure.simulated)} (published: {number(figure.published)})")
    console.print("\n  What relays that never hand over do: beginning, middle, end of a run (mean over seeds)\n")
    console.print(_collapse(report))
    console.print()
    for constraint in report.holds:
        mark = Text("  ✓ ", style="bold green") if constraint.holds else Text("  ✗ ", style="bold red")
        console.print(mark, _in_words(constraint), sep="")
    console.print("\n  Assumptions\n")
    for assumption in report.assumptions:
        bounds = "" if assumption.bounds is None else f" (plausible: {assumption.bounds})"
        console.print(f"  {assumption.kind.value:8} {assumption.name}: {assumption.value}{bounds}. {assumption.why}")


def _in_words(constraint: Constraint) -> str:
    sure = "" if constraint.low is None else f", from {number(constraint.low)} to {number(constraint.high)}"
    seeds = f"{constraint.num_seeds_hold} of {constraint.num_seeds} seeds"
    return f"{constraint.name}: {number(constraint.value)}{sure}; must be {constraint.relation} {constraint.bound:g} ({seeds})"


def _figures(figures: Mapping[str, Mapping[str, Figure]]) -> WholeTable:
    table = plain_table("", "", "published", "simulated", "from", "to", "residual")
    for row, of_row in figures.items():
        for name, figure in of_row.items():
            table.add_row(
                f"  {row}",
                name.upper(),
                number(figure.published),
                number(figure.simulated),
                number(figure.low),
                number(figure.high),
                percent(figure.residual),
            )
    return table


def _collapse(report: PaperReport) -> WholeTable:
    table = plain_table("", "relayed", "tokens by RLD", "hit at P", "hit at MD", "second token P90, s")
    for rule, stages in report.collapse.items():
        for part, stage in zip(("beginning", "middle", "end"), stages, strict=True):
            shares = (stage.relay_share, stage.rld_token_share, stage.prefill_hit, stage.main_hit)
            table.add_row(f"  {rule}, {part}", *map(percent, shares), number(stage.ttst_p90_s))
    return table
