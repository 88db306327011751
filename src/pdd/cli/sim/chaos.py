"""``pdd sim chaos``: breaks random small deployments in every way at once and compares every answer with
the right one.
"""

from __future__ import annotations

import argparse
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.options import add_json, check_range
from pdd.cli.output import EXIT_FAILURE, print_json
from pdd.cli.progress import counting
from pdd.cli.sim.studies import MAX_JOBS, add_jobs
from pdd.core.errors import ConfigError

if TYPE_CHECKING:
    from pdd.sim.chaos.campaign import Tally

_MAX_SEEDS = 10_000_000
_SHOWN_FINDINGS = 3


def define(parser: CommandParser) -> None:
    """``pdd sim chaos``."""
    parser.description = (
        "Draws a small deployment, a few conversations and faults from each seed, runs the router on virtual "
        "time, and compares every answer, token for token, with the one right answer. Engines, nodes and lines die, hang, "
        "slow down, break off and talk garbage, at any phase of a request. Exit code 1 if anything went wrong."
    )
    parser.epilog = (
        "With --json: worlds, requests, faults, complete, refused, broken_off, left, lost, doubled, reordered, wrong, "
        "leaked, hung, turned_away, crashed, requests_per_s, seconds, commands, failures (each with its seed)."
    )
    parser.add_argument(
        "--seeds", type=int, default=200, metavar="N", help="how many deployments (default: %(default)s)"
    )
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="S", help="the first one's seed, 0 or more (default: %(default)s)"
    )
    add_jobs(parser)
    parser.add_argument(
        "--verbose", action="store_true", help="with --seeds 1: print all that happens, in seconds since the beginning"
    )
    add_json(parser)
    parser.set_defaults(run=run_chaos)


def run_chaos(args: argparse.Namespace) -> int:
    """Plays the scenes.

    Raises:
        ConfigError: a flag is out of range.
    """
    _check(args)
    from pdd.sim.chaos.campaign import play_seeds

    progress = open_console(stderr=True)
    began = monotonic()
    if args.verbose:
        tally = _play_aloud(args.first_seed, progress if args.json else open_console())
    else:
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        played = count(1)
        with counting("deployments", progress) as tell:
            jobs = min(args.jobs, args.seeds)
            tally = play_seeds(seeds, jobs=jobs, on_played=lambda _: tell(next(played), args.seeds))
    seconds = monotonic() - began
    if args.json:
        print_json(record(tally, seconds))
    else:
        show(tally, seconds)
    return EXIT_FAILURE if tally.failures else 0


def _check(args: argparse.Namespace) -> None:
    check_range("--seeds", args.seeds, least=1, most=_MAX_SEEDS)
    if args.first_seed < 0:
        raise ConfigError(f"--first-seed {args.first_seed}: it must be 0 or more")
    check_range("--jobs", args.jobs, least=1, most=MAX_JOBS)
    if args.verbose and args.seeds != 1:
        raise ConfigError(f"--verbose shows one deployment; give --seeds 1 with it, not {args.seeds}")


def _play_aloud(seed: int, console: Console) -> Tally:
    from pdd.sim.chaos.campaign import Tally
    from pdd.sim.chaos.play import play_seed

    tally = Tally()
    tally.add(play_seed(seed, lambda at, what: console.print(Text(f"{at:10.4f}  {what}"), soft_wrap=True)))
    return tally


def record(tally: Tally, seconds: float) -> dict[str, object]:
    """What came of it, for programs."""
    from pdd.sim.chaos.verdict import Wrong

    return {
        "worlds": tally.num_worlds,
        "requests": tally.num_requests,
        "faults": tally.num_faults,
        "complete": tally.num_whole,
        "refused": tally.num_refused,
        "broken_off": tally.num_broken,
        "left": tally.num_left,
        **{wrong.value: tally.found[wrong] for wrong in Wrong},
        "requests_per_s": round(tally.num_requests / seconds, 1),
        "seconds": round(seconds, 1),
        "commands": dict(sorted(tally.commands.items())),
        "failures": [
            {"seed": played.seed, "what": [finding.what for finding in played.findings[:_SHOWN_FINDINGS]]}
            for played in tally.failures
        ],
    }


def show(tally: Tally, seconds: float) -> None:
    """What came of it, for people."""
    from pdd.sim.chaos.verdict import Wrong

    console = open_console()
    for played in tally.failures:
        for finding in played.findings[:_SHOWN_FINDINGS]:
            line = f"seed {played.seed}: {finding.wrong.value.replace('_', ' ')}: {finding.what}"
            console.print(Text("  ✗ ", style="bold red"), line, sep="")
    console.print()
    mark = Text("  ✗ ", style="bold red") if tally.failures else Text("  ✓ ", style="bold green")
    found = ", ".join(f"{tally.found[wrong]} {wrong.value.replace('_', ' ')}" for wrong in Wrong)
    console.print(mark, f"{tally.num_requests} requests in {tally.num_worlds} deployments: {found}", sep="")
    console.print(
        f"    {tally.num_whole} complete, {tally.num_refused} refused, {tally.num_broken} broken off, {tally.num_left} left "
        f"by their clients; {tally.num_faults} faults; {tally.num_requests / seconds:.0f} requests/s"
    )
    if tally.failures:
        seed = tally.failures[0].seed
        console.print(f"    to see the first again: pdd sim chaos --first-seed {seed} --seeds 1 --verbose")
