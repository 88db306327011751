"""``pdd sim traces``: recorded traffic at rising load, on PDD and on what it is measured against."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.options import add_json, check_range
from pdd.cli.output import opened, print_json
from pdd.cli.sim.studies import (
    MAX_JOBS,
    MAX_REQUESTS,
    add_jobs,
    number,
    percent,
    plain_table,
    tell_progress,
)
from pdd.cli.sim.trace_flags import add_block_tokens, check_block_tokens, tell_doubts
from pdd.cli.tables import WholeTable
from pdd.core.errors import ConfigError

if TYPE_CHECKING:
    from pdd.sim.compare.trace_study import TraceStanding, Verdict

_TOPOLOGY = "crossing"
_LOADS = (0.3, 0.6, 0.9, 1.2)
_LEAST_LOAD = 0.001
_MAX_LOAD = 10.0
_HEADINGS = (
    "  load",
    "req/s",
    "system",
    "P50",
    "P90",
    "P99",
    "in SLA",
    "good/s",
    "relayed",
    "by RLD",
    "RLD full",
    "line",
    "P hit",
    "MD hit",
)


def define(parser: CommandParser) -> None:
    """``pdd sim traces``."""
    parser.description = (
        "Plays request traces (JSON lines with hash_ids, or CSV of lengths) on one deployment as "
        "PDD, without hiding, and in one datacenter, each of as many chips; shows the time to the second token, goodput, "
        "and where so much relays that the relay is swamped. Load is what the trace's prompts lack at caches that lose "
        "nothing, as a share of the line: it sets how many users there are. Each trace is entered late in it, with what "
        "was asked before in the caches."
    )
    parser.epilog = "With --json: standings (one for each trace, load and system), verdicts, and traces (what each file says of itself)."
    parser.add_argument("traces", nargs="+", type=Path, metavar="FILE", help="a trace file")
    parser.add_argument(
        "--load",
        dest="loads",
        action="append",
        type=float,
        metavar="X",
        help="this share of the line; may be given again (default: 0.3, 0.6, 0.9 and 1.2)",
    )
    parser.add_argument(
        "--topology",
        default=_TOPOLOGY,
        metavar="TOPOLOGY",
        help="a packaged topology's name or a TOML file, of modelled engines (default: %(default)s)",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=1000,
        metavar="N",
        help="of each trace at each load, warm-up not counted (default: %(default)s)",
    )
    add_block_tokens(parser)
    add_jobs(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write an HTML page of charts")
    add_json(parser)
    parser.set_defaults(run=run_traces)


def run_traces(args: argparse.Namespace) -> int:
    """Simulates.

    Raises:
        ConfigError: a flag, the topology or a trace is wrong.
    """
    loads = tuple(dict.fromkeys(args.loads or _LOADS))
    _check(args, loads)
    from pdd.cli.sim.trace_plot import trace_page
    from pdd.cli.topology.file import load_simulated_topology
    from pdd.sim.compare.trace_study import study_traces, verdicts
    from pdd.sim.workload.traces import read_trace

    topology = load_simulated_topology(args.topology)
    with opened("--plot", args.plot) as plot:
        traces = [read_trace(file, block_tokens=args.trace_block_tokens) for file in args.traces]
        reports = [tell_doubts(trace) for trace in traces]
        standings = study_traces(
            topology,
            traces,
            loads,
            max_requests=args.requests,
            num_processes=args.jobs,
            progress=tell_progress(),
        )
        if plot is not None:
            plot.write(trace_page(topology.name, standings).encode(errors="replace"))
    found = list(verdicts(topology, standings))
    if args.json:
        print_json({"topology": topology.name, "standings": standings, "verdicts": found, "traces": reports})
    else:
        _show(open_console(), standings, found)
    return 0


def _check(args: argparse.Namespace, loads: Sequence[float]) -> None:
    check_range("--requests", args.requests, least=2, most=MAX_REQUESTS)
    check_range("--jobs", args.jobs, least=1, most=MAX_JOBS)
    check_block_tokens(args)
    for load in loads:
        if not _LEAST_LOAD <= load <= _MAX_LOAD:
            raise ConfigError(f"--load {load}: it must be from {_LEAST_LOAD:g} to {_MAX_LOAD:g}")
    stems = [trace.stem for trace in args.traces]
    if len(set(stems)) < len(stems):
        raise ConfigError("two traces have the same name: their figures could not be told apart")


def _show(console: Console, standings: Sequence[TraceStanding], verdicts: Sequence[Verdict]) -> None:
    for trace, own in groupby(standings, key=lambda each: each.trace):
        console.print(Text.assemble("\n  ", (trace, "bold"), "; P50 to P99: seconds to the second token\n"))
        console.print(_table(list(own)))
        console.print()
        for verdict in verdicts:
            if verdict.trace == trace:
                console.print(Text.assemble("  ", _worth(verdict)))
    console.print(
        "\n  good/s: requests within the SLA; RLD full: its places that are taken; line: its rate that is used.\n"
    )


def _table(standings: Sequence[TraceStanding]) -> WholeTable:
    table = plain_table(*_HEADINGS)
    for each in standings:
        measures = each.measures
        table.add_row(
            f"  {each.load:g}",
            number(each.requests_per_s),
            each.system.value,
            *(number(value) for value in (measures.ttst.p50, measures.ttst.p90, measures.ttst.p99)),
            percent(measures.within_sla),
            number(measures.goodput_per_s),
            percent(measures.relay_share),
            percent(measures.rld_token_share),
            percent(each.relay_use),
            percent(each.line_use),
            percent(measures.prefill_hit),
            percent(measures.main_hit),
        )
    return table


def _worth(verdict: Verdict) -> Text:
    line = (
        f"load {verdict.load:g} ({verdict.offered:.2f} as played): P90 {number(verdict.ttst_gain)} times as soon as without hiding, goodput "
        f"{number(verdict.goodput_gain)} times as high; {number(verdict.ttst_of_same_dc)} times as late as in one datacenter"
    )
    if not verdict.relay_is_swamped:
        return Text(line)
    how = (
        f": {percent(verdict.rld_token_share)} of the tokens with {percent(verdict.fair_share)} of the bandwidth that decodes; "
        f"{percent(verdict.relay_use)} of its places taken"
    )
    return Text.assemble(line, ". ", ("The relay is swamped", "bold red"), how)
