"""``pdd sim compare``: every policy against its naive rival in the same worlds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.options import add_json
from pdd.cli.output import print_json
from pdd.cli.sim.studies import add_extent, check_extent, number, percent, plain_table, tell_progress
from pdd.core.errors import ConfigError

if TYPE_CHECKING:
    from pdd.sim.compare.rivals import Setting, Standing

_COLUMNS = (
    ("P50", "ttst_p50", number),
    ("P90", "ttst_p90", number),
    ("P99", "ttst_p99", number),
    ("gap99", "handoff_gap_p99", number),
    ("in SLA", "within_sla", percent),
    ("relayed", "relay_share", percent),
    ("by RLD", "rld_token_share", percent),
    ("filt.", "filtered_share", percent),
    ("MB", "wan_mb_per_request", number),
    ("P hit", "prefill_hit", percent),
    ("MD hit", "main_hit", percent),
    ("next", "main_hit_after_singular", percent),
)
"""(heading, figure, how it is written)."""


def define(parser: CommandParser) -> None:
    """``pdd sim compare``."""
    parser.description = (
        "Runs the same requests with one policy changed at a time: nobody relays, route by hit rate, relays that "
        "never hand over, always one-shot, always catch-up, with the filter, a filter that cuts at once, placement by "
        "load alone; each in a setting where it matters. What a policy is worth is what gets worse without it."
    )
    parser.epilog = (
        "With --json: standings, one for each setting and rival: figures with means and 95 % intervals over seeds, and "
        "how much more that is than PDD's with the same requests."
    )
    parser.add_argument("--only", metavar="SETTING", help="one setting, by its first word; default: all")
    add_extent(parser, seeds=3, requests=400)
    add_json(parser)
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> int:
    """Simulates.

    Raises:
        ConfigError: a flag is out of range.
    """
    check_extent(args)
    from pdd.sim.compare.rivals import compare_rivals

    settings = _settings(args)
    standings = compare_rivals(settings, num_processes=args.jobs, progress=tell_progress())
    if args.json:
        print_json({"standings": standings})
    else:
        _show(open_console(), standings)
    return 0


def _settings(args: argparse.Namespace) -> list[Setting]:
    from pdd.cli.topology.file import load_simulated_topology
    from pdd.sim.compare.settings import TOPOLOGY, make_settings

    made = make_settings(load_simulated_topology(TOPOLOGY), num_seeds=args.seeds, num_requests=args.requests)
    by_word = {setting.name.partition(":")[0]: setting for setting in made}
    if args.only is None:
        return made
    if args.only not in by_word:
        raise ConfigError(f"--only {args.only}: the settings are {', '.join(by_word)}")
    return [by_word[args.only]]


def _show(console: Console, standings: Sequence[Standing]) -> None:
    for setting in dict.fromkeys(each.setting for each in standings):
        console.print(f"\n  {setting}\n")
        table = plain_table("", *(heading for heading, _, _ in _COLUMNS))
        for each in standings:
            if each.setting == setting:
                table.add_row(f"  {each.rival}", *_cells(each))
        console.print(table)
    console.print("\n  P50 to P99: seconds to the second token; gap99: across hand-offs. MB: over the line, a request.")
    console.print("  filt.: filtered. P hit, MD hit: prefix hits; next: main decode's, of turns after singular ones.")
    console.print("  *: differs from pdd's by more than chance (the 95 % interval of the differences, seed by seed).")


def _cells(standing: Standing) -> Iterator[str]:
    for _, name, write in _COLUMNS:
        figure = standing.figures.get(name)
        yield "–" if figure is None else write(figure.mean.mean) + ("*" if figure.differs else "")
