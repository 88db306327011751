"""``pdd sim compare``: every policy against its naive rival in the same worlds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from pdd.cli.ask.render import open_console
from pdd.cli.options import Subparsers, add_json
from pdd.cli.output import print_json
from pdd.cli.sim.studies import add_extent, check_extent, number, percent, plain_table, tell_progress

if TYPE_CHECKING:
    from pdd.sim.compare.estimates import Estimate
    from pdd.sim.compare.rivals import Setting, Standing

_SETTINGS = (
    ("agents", "crossing", 6.5),
    ("agents-singular", "crossing", 6.5),
    ("agents-narrow", "crossing", 6.5),
)
"""(generated workload, topology, requests/s)."""


def add_commands(commands: Subparsers) -> None:
    """Adds ``pdd sim compare``."""
    parser = commands.add_parser(
        "compare",
        help="every policy against its naive rival in the same worlds",
        description="Runs the same requests with one policy changed at a time: nobody relays, route by hit rate, relays that "
        "never hand over, always one-shot, always catch-up, no filter, filter that cuts at once, placement by load alone. "
        "What a policy is worth is what gets worse without it.",
        epilog="With --json: standings, one for each setting and rival, with means and 95 % intervals over seeds.",
    )
    add_extent(parser, seeds=2, requests=1500)
    add_json(parser)
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> int:
    """Simulates.

    Raises:
        ConfigError: a flag is out of range.
    """
    check_extent(args)
    from pdd.sim.compare.rivals import compare_rivals

    settings = _settings(args.seeds, args.requests)
    standings = compare_rivals(settings, num_processes=args.jobs, progress=tell_progress())
    if args.json:
        print_json({"standings": standings})
    else:
        _show(open_console(), standings)
    return 0


def _settings(num_seeds: int, num_requests: int) -> list[Setting]:
    from pdd.cli.topology.file import load_simulated_topology
    from pdd.sim.compare.rivals import Setting
    from pdd.sim.workload.load import Changes, load_workload

    return [
        Setting(
            name=workload,
            topology=load_simulated_topology(topology),
            workloads=[
                load_workload(workload, seed=seed, changes=Changes(requests_per_s=rate, num_requests=num_requests))
                for seed in range(1, num_seeds + 1)
            ],
        )
        for workload, topology, rate in _SETTINGS
    ]


def _show(console: Console, standings: Sequence[Standing]) -> None:
    for setting in dict.fromkeys(each.setting for each in standings):
        console.print(f"\n  {setting}: seconds to the second token, largest gaps, goodput\n")
        table = plain_table(
            "",
            "P50",
            "P90",
            "P99",
            "ITL99",
            "gap99",
            "in SLA",
            "relayed",
            "by RLD",
            "filt.",
            "MB",
            "MD hit",
        )
        for each in standings:
            if each.setting == setting:
                table.add_row(f"  {each.rival}", *_cells(each))
        console.print(table)


def _cells(standing: Standing) -> list[str]:
    times: list[Estimate | None] = [
        standing.ttst_p50,
        standing.ttst_p90,
        standing.ttst_p99,
        standing.max_itl_p99,
        standing.handoff_gap_p99,
    ]
    shares = [standing.within_sla, standing.relay_share, standing.rld_token_share, standing.filtered_share]
    return [
        *(number(None if each is None else each.mean) for each in times),
        *(percent(each.mean) for each in shares),
        number(standing.wan_mb_per_request.mean),
        percent(standing.main_hit.mean),
    ]
