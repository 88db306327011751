"""``pdd sim run``: one workload on one topology of modelled engines, and what its clients would feel."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO, cast

from rich.console import Console

from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.options import add_json, check_range, duration
from pdd.cli.output import opened, print_json
from pdd.cli.progress import counting
from pdd.cli.sim.studies import MAX_REQUESTS
from pdd.cli.sim.trace_flags import add_block_tokens, check_block_tokens, tell_doubts
from pdd.cli.tables import WholeTable
from pdd.core.errors import ConfigError

if TYPE_CHECKING:
    from pdd.sim.result import RunResult
    from pdd.telemetry.events import EventSink

_MAX_UNTIL_S = 365 * 86_400
_LEAST_PACE = 1e-6
"""Of requests a second, and of a trace: slower ones get nowhere in a year."""
_DEFAULT_TOPOLOGY = "paper"


def define(parser: CommandParser) -> None:
    """``pdd sim run``."""
    parser.description = (
        "Sends a generated workload or a recorded trace to the router of a topology whose engines are modelled, "
        "and shows what its clients feel: percentiles of waiting, goodput, who computed how much, what crossed the lines, "
        "what caches held. The same topology, workload and seed print the same JSON, to the byte."
    )
    parser.epilog = (
        "With --json: topology, workload, seed, left_out, requests, duration_s, ttft_s, ttst_s, decode_first_token_s, itl_s, "
        "max_itl_s, handoff_gap_s, transfer_s, ended_s, queued_s, goodput, relay_share, filtered_share, tokens_by_role, "
        "rld_token_share, hit_rate, wan, over_time, trace (what a trace's file says of itself; null for a generated workload)."
    )
    parser.add_argument(
        "topology",
        nargs="?",
        default=_DEFAULT_TOPOLOGY,
        metavar="TOPOLOGY",
        help="paper, crossing, or a TOML file of modelled engines (default: %(default)s)",
    )
    _add_workload(parser)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write every event of every request, as JSON lines")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write an HTML page of charts over time")
    add_json(parser)
    parser.set_defaults(run=run_simulation)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload",
        default="generated",
        metavar="NAME|FILE",
        help="agents (also called generated), agents-narrow, agents-singular, agents-surge, chat, or a trace file "
        "(default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="draws the workload, 0 or more (default: 0)")
    parser.add_argument(
        "--requests",
        type=int,
        metavar="N",
        help="how many requests (default: 2000); of a trace, the first ones (default: all)",
    )
    parser.add_argument(
        "--rate", type=float, metavar="R", help="requests a second of a generated workload (default: 20)"
    )
    parser.add_argument("--speed", type=float, metavar="X", help="of a trace: so many times as many users (default: 1)")
    add_block_tokens(parser)
    parser.add_argument(
        "--until",
        type=duration(most=_MAX_UNTIL_S),
        metavar="TIME",
        help='leave out requests that are sent later, such as "10 min"; a plain number is seconds',
    )


def run_simulation(args: argparse.Namespace) -> int:
    """Simulates.

    Raises:
        ConfigError: a flag, the topology, a profile or the workload is wrong.
    """
    _check(args)
    _check_kind_of_workload(args)
    from pdd.cli.sim.plot import plot_page
    from pdd.cli.topology.file import load_simulated_topology
    from pdd.sim.report import summarize
    from pdd.sim.run import simulate
    from pdd.sim.workload.conversations import is_warm_up
    from pdd.sim.workload.load import Changes, load_workload
    from pdd.sim.workload.traces import fitting

    topology = load_simulated_topology(args.topology)
    changes = Changes(
        requests_per_s=args.rate,
        num_requests=args.requests,
        speed=args.speed or 1.0,
        until_s=args.until,
        trace_block_tokens=args.trace_block_tokens,
    )
    whole = load_workload(args.workload, seed=args.seed, changes=changes)
    report = tell_doubts(whole)
    workload = fitting(whole, topology.max_model_tokens)
    if whole.requests and not workload.requests:
        raise ConfigError(
            f"--workload {args.workload}: max_model_tokens = {topology.max_model_tokens} holds none of it"
        )
    if workload.requests and all(is_warm_up(each.request_id) for each in workload.requests):
        raise ConfigError(
            f"--workload {args.workload}: --until or max_model_tokens leaves nothing of it but the warm-up, and that is not measured"
        )
    began = monotonic()
    with ExitStack() as stack:
        trace = stack.enter_context(opened("--trace", args.trace))
        plot = stack.enter_context(opened("--plot", args.plot))
        progress = stack.enter_context(counting("requests", open_console(stderr=True)))
        result = simulate(topology, workload, seed=args.seed, trace=_sink(trace), progress=progress)
        left_out = len(whole.requests) - len(workload.requests)
        named = {"topology": topology.name, "workload": workload.name, "seed": args.seed, "left_out": left_out}
        figures = named | summarize(result, topology.router.sla) | {"trace": report}
        if plot is not None:
            plot.write(plot_page(figures).encode(errors="replace"))
    if args.json:
        print_json(figures)
    else:
        _show(open_console(), figures, result, monotonic() - began)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: it must be 0 or more")
    check_range("--requests", args.requests, least=1, most=MAX_REQUESTS)
    for flag in ("rate", "speed"):
        value = getattr(args, flag)
        if value is not None and not (value >= _LEAST_PACE and isfinite(value)):
            raise ConfigError(f"--{flag} {value}: it must be at least {_LEAST_PACE:g}, and finite")
    check_block_tokens(args)


def _check_kind_of_workload(args: argparse.Namespace) -> None:
    from pdd.sim.workload.load import find_spec

    is_trace = find_spec(args.workload) is None
    if is_trace and args.rate is not None:
        raise ConfigError(f"--rate {args.rate}: a trace has its own; --speed plays it with more users")
    if not is_trace and args.speed is not None:
        raise ConfigError(
            f"--speed {args.speed}: it is for traces; --rate sets a generated workload's requests a second"
        )
    if not is_trace and args.trace_block_tokens is not None:
        raise ConfigError(
            f"--trace-block-tokens {args.trace_block_tokens}: it is for traces, not for generated workloads"
        )


def _sink(file: BinaryIO | None) -> EventSink | None:
    if file is None:
        return None
    from pdd.telemetry.trace import TraceFile

    return TraceFile(file).record


# What is shown --------------------------------------------------------------------------------------------------------

_WAITS = {
    "ttft_s": "first token",
    "ttst_s": "second token",
    "decode_first_token_s": "first token not from prefill",
    "itl_s": "between tokens",
    "max_itl_s": "largest gap of each answer",
    "handoff_gap_s": "gap at the hand-off",
    "transfer_s": "prefill's end to KV at main decode",
    "queued_s": "in line, of those that queued",
    "ended_s": "whole answer",
}


def _show(console: Console, figures: Mapping[str, object], result: RunResult, seconds: float) -> None:
    console.print(
        f"\n  {figures['workload']} on {figures['topology']}, seed {figures['seed']}: {len(result.samples)} requests, "
        f"{result.duration_s:.0f} s simulated in {seconds:.1f} s\n"
    )
    console.print(_waits(figures))
    console.print()
    for line in _lines(figures):
        console.print(f"  {line}")


def _waits(figures: Mapping[str, object]) -> WholeTable:
    table = WholeTable(gap=3)
    table.add_column("  seconds")
    for heading in ("P50", "P90", "P99", "mean", "of"):
        table.add_column(heading, justify="right")
    for key, words in _WAITS.items():
        wait = _part(figures, key)
        cells = [_number(wait[name]) for name in ("p50", "p90", "p99", "mean")]
        table.add_row(f"  {words}", *cells, str(wait["count"]))
    return table


def _lines(figures: Mapping[str, object]) -> Generator[str]:
    requests, goodput, hits = _part(figures, "requests"), _part(figures, "goodput"), _part(figures, "hit_rate")
    yield (
        f"answered {requests['complete']} of {requests['sent']}; queued {requests['queued']}, shed {requests['shed']}, "
        f"broken off {requests['broken']}, filtered {requests['filtered']}"
    )
    if figures["left_out"]:
        yield f"left out {figures['left_out']}: max_model_tokens does not hold their conversations"
    yield f"within the SLA {_percent(goodput['share'])}, {_number(goodput['requests_per_s'])} requests/s"
    yield (
        f"relayed {_percent(figures['relay_share'])} of the requests; relay decode computed "
        f"{_percent(figures['rld_token_share'])} of the output tokens"
    )
    yield f"prefix hits: {_percent(hits['prefill'])} at prefill, {_percent(hits['main_decode'])} at main decode"
    for name, use in _part(figures, "wan").items():
        line = cast("Mapping[str, object]", use)
        yield f"{name}: {cast('int', line['bytes']) / 1e9:.1f} GB of KV, {_percent(line['utilisation'])} of its rate"


def _part(figures: Mapping[str, object], key: str) -> Mapping[str, object]:
    return cast("Mapping[str, object]", figures[key])


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"


def _percent(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, float) else "-"
