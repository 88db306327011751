"""``pdd sim traces``: recorded traffic at rising load, on PDD and on what it is measured against."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pdd.cli.ask.render import open_console
from pdd.cli.options import Subparsers, add_json
from pdd.cli.output import print_json
from pdd.cli.sim.studies import number, percent, plain_table, tell_progress
from pdd.core.errors import ConfigError

if TYPE_CHECKING:
    from pdd.sim.compare.trace_study import TraceStanding, Verdict

_TOPOLOGY = "crossing"
_SPEEDS = (1.0, 2.0, 4.0)


def add_commands(commands: Subparsers) -> None:
    """Adds ``pdd sim traces``."""
    parser = commands.add_parser(
        "traces",
        help="recorded traffic at rising load: PDD, cross-datacenter and same-datacenter disaggregation",
        description="Plays request traces (JSON lines with hash_ids of 512 tokens, or CSV of lengths) on one deployment as "
        "PDD, without hiding, and in one datacenter; shows the time to the second token, goodput, and where so much relays "
        "that the relay is swamped.",
        epilog="With --json: standings (one for each trace, speed and system) and verdicts.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="FILE", help="a trace file")
    parser.add_argument(
        "--speed",
        dest="speeds",
        action="append",
        type=float,
        metavar="X",
        help="so many times as many users; may be given again (default: 1, 2 and 4)",
    )
    parser.add_argument(
        "--topology",
        default=_TOPOLOGY,
        metavar="TOPOLOGY",
        help="a packaged topology's name or a TOML file, of modelled engines (default: %(default)s)",
    )
    parser.add_argument(
        "--requests", type=int, default=2000, metavar="N", help="of each trace, the first ones (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="processes (default: %(default)s)")
    add_json(parser)
    parser.set_defaults(run=run_traces)


def run_traces(args: argparse.Namespace) -> int:
    """Simulates.

    Raises:
        ConfigError: a flag, the topology or a trace is wrong.
    """
    speeds = tuple(args.speeds or _SPEEDS)
    if args.requests < 1 or args.jobs < 1 or not all(speed > 0 and isfinite(speed) for speed in speeds):
        raise ConfigError("--requests and --jobs must be at least 1, and --speed more than 0")
    from pdd.cli.topology.file import load_simulated_topology
    from pdd.sim.compare.trace_study import study_traces, verdicts

    standings = study_traces(
        load_simulated_topology(args.topology),
        args.traces,
        speeds,
        max_requests=args.requests,
        num_processes=args.jobs,
        progress=tell_progress(),
    )
    found = list(verdicts(standings))
    if args.json:
        print_json({"standings": standings, "verdicts": found})
    else:
        _show(open_console(), standings, found)
    return 0


def _show(console: Console, standings: Sequence[TraceStanding], verdicts: Sequence[Verdict]) -> None:
    table = plain_table(
        "  trace",
        "requests/s",
        "system",
        "2nd token P50",
        "P90",
        "P99",
        "in SLA",
        "goodput/s",
        "relayed",
        "by RLD",
        "MD hit",
    )
    for each in standings:
        measures = each.measures
        table.add_row(
            f"  {each.trace}",
            number(each.requests_per_s),
            each.system.value,
            *(number(value) for value in (measures.ttst.p50, measures.ttst.p90, measures.ttst.p99)),
            percent(measures.within_sla),
            number(measures.goodput_per_s),
            percent(measures.relay_share),
            percent(measures.rld_token_share),
            percent(measures.main_hit),
        )
    console.print()
    console.print(table)
    console.print()
    for verdict in verdicts:
        line = (
            f"  {verdict.trace} x{verdict.speed:g}: P90 of the second token {number(verdict.ttst_gain)} times as soon, "
            f"goodput {number(verdict.goodput_gain)} times as high as without hiding"
        )
        console.print(
            line, Text("; the relay is swamped" if verdict.relay_is_swamped else "", style="bold red"), sep=""
        )
