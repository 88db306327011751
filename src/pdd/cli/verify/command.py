"""``pdd verify``: proves on real prompts that a relay never changes an answer, token for token."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pdd.cli.ask.render import open_console
from pdd.cli.options import Subparsers, add_json, add_topology
from pdd.cli.output import EXIT_FAILURE, print_json
from pdd.cli.progress import counting
from pdd.cli.verify.cases import REFERENCE_TOKENS, Outcome, exact_rate, mismatches, per_case
from pdd.cli.verify.prompts import LONGEST_TOKENS, Prompt, make_prompts
from pdd.core.errors import ConfigError
from pdd.core.request import Role

if TYPE_CHECKING:
    from pdd.cli.deploy.deployment import Deployment

_MAX_PROMPTS = 10_000


def add_commands(commands: Subparsers) -> None:
    """Adds ``pdd verify``."""
    parser = commands.add_parser(
        "verify",
        help="prove that relayed answers are the same, token for token",
        description="Starts a deployment without its slow line, and compares answers token for token with those of one "
        "unbroken engine: direct, handed over at once after 1 to 100 tokens, and in batches; greedy and seeded. "
        "Each request has cold caches. About half a minute a prompt on two cores; exit code 1 unless all are exact.",
        epilog="With --json: prompts, requests, relays, exact_rate, mismatches, per_case, seconds.",
    )
    parser.add_argument("--prompts", type=int, default=6, metavar="N", help="how many prompts (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="chooses prompts and draws, 0 or more (default: %(default)s)"
    )
    add_topology(parser)
    add_json(parser)
    parser.set_defaults(run=run_verify)


def run_verify(args: argparse.Namespace) -> int:
    """Verifies.

    Raises:
        ConfigError: a flag is out of range, or the topology is wrong.
        PddError: the deployment could not be started, or the unbroken engine failed.
    """
    if not 1 <= args.prompts <= _MAX_PROMPTS:
        raise ConfigError(f"--prompts {args.prompts}: it must be from 1 to {_MAX_PROMPTS}")
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: it must be 0 or more")
    from pdd.cli.deploy.launch import run_to_the_end

    return run_to_the_end(_verify(args))


async def _verify(args: argparse.Namespace) -> int:
    from pdd.cli.deploy.launch import launched, unshaped
    from pdd.cli.topology.file import load_topology
    from pdd.engine.catalog import find_model

    topology = unshaped(load_topology(args.topology))
    tokenizer = find_model(topology.model).load_text().tokenizer
    longest = min(LONGEST_TOKENS, topology.max_model_tokens - REFERENCE_TOKENS)
    prompts = make_prompts(lambda text: tokenizer.encode(text).ids, count=args.prompts, seed=args.seed, longest=longest)
    progress = open_console(stderr=True)
    async with launched(topology, progress) as deployment:
        began = monotonic()
        outcomes = await _run(deployment, prompts, args.seed, progress)
        seconds = monotonic() - began
    if args.json:
        print_json(_record(prompts, outcomes, seconds))
    else:
        _show(open_console(), prompts, outcomes, seconds)
    return 0 if exact_rate(outcomes) == 1.0 else EXIT_FAILURE


async def _run(deployment: Deployment, prompts: Sequence[Prompt], seed: int, progress: Console) -> list[Outcome]:
    from pdd.cli.ask.client import RouterClient
    from pdd.cli.verify.run import Setup, count_jobs, run_trials
    from pdd.core.topology import Address
    from pdd.engine.http.client import HttpEngineClient

    main = deployment.topology.engines_of(Role.MAIN_DECODE)[0]
    engine = HttpEngineClient(main.name, Address(host=main.host, port=main.port))
    async with engine, RouterClient.of(deployment) as router:
        setup = Setup(
            router=router, unbroken=engine, model=deployment.topology.model, seed=seed, salt=secrets.token_hex(8)
        )
        done, num_jobs = count(1), count_jobs(len(prompts))
        with counting("answers", progress) as tell:
            return await run_trials(setup, prompts, on_done=lambda: tell(next(done), num_jobs))


def _record(prompts: Sequence[Prompt], outcomes: Sequence[Outcome], seconds: float) -> dict[str, object]:
    from pdd.cli.verify.run import count_jobs

    return {
        "prompts": len(prompts),
        "requests": count_jobs(len(prompts)),
        "relays": sum(outcome.relayed for outcome in outcomes),
        "exact_rate": exact_rate(outcomes),
        "mismatches": mismatches(outcomes, {prompt.number: len(prompt.token_ids) for prompt in prompts}),
        "per_case": per_case(outcomes),
        "seconds": round(seconds, 1),
    }


def _show(console: Console, prompts: Sequence[Prompt], outcomes: Sequence[Outcome], seconds: float) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("  case")
    for heading in ("answers", "exact", "relayed"):
        table.add_column(heading, justify="right")
    for name, counts in per_case(outcomes).items():
        style = "" if counts["exact"] == counts["requests"] else "bold red"
        cells = (str(counts[key]) for key in ("requests", "exact", "relays"))
        table.add_row(f"  {name.replace('_', ' ')}", *cells, style=style)
    console.print()
    console.print(table)
    console.print()
    for wrong in mismatches(outcomes, {prompt.number: len(prompt.token_ids) for prompt in prompts}):
        words = "prompt {prompt} ({prompt_tokens} tokens), {case}, {sampling}: {problem}".format_map(wrong)
        console.print(Text("  ✗ ", style="bold red"), words, sep="")
    _show_verdict(console, prompts, outcomes, seconds)


def _show_verdict(console: Console, prompts: Sequence[Prompt], outcomes: Sequence[Outcome], seconds: float) -> None:
    rate = exact_rate(outcomes)
    relays = sum(outcome.relayed for outcome in outcomes)
    mark = Text("  ✓ ", style="bold green") if rate == 1.0 else Text("  ✗ ", style="bold red")
    lengths = [len(prompt.token_ids) for prompt in prompts]
    console.print(mark, f"{rate:.1%} of {len(outcomes)} answers equal the unbroken engine's, token for token", sep="")
    console.print(
        f"    {relays} relays on {len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens, in {seconds:.0f} s"
    )
