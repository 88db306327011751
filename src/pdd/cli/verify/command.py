"""``pdd verify``: proves on real prompts that a relay never changes an answer, token for token."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console

from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.options import add_json, add_topology, check_range
from pdd.cli.output import EXIT_FAILURE, print_json
from pdd.cli.progress import counting
from pdd.cli.verify.cases import REFERENCE_TOKENS, count_requests
from pdd.cli.verify.prompts import LONGEST_TOKENS, Prompt, make_prompts
from pdd.cli.verify.result import Played, passed, record
from pdd.cli.verify.show import show
from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.units import Seconds

if TYPE_CHECKING:
    from pdd.cli.deploy.deployment import Deployment
    from pdd.cli.verify.cases import Outcome
    from pdd.cli.verify.directions import Direction

_MAX_PROMPTS = 10_000
_ENGINE_SILENCE = Seconds(120.0)
"""The unbroken engine shares the machine with all the others, and they compute eight answers at once."""


def define(parser: CommandParser) -> None:
    """``pdd verify``."""
    parser.description = (
        "Starts a deployment without its slow line, and compares answers token for token with those of one "
        "unbroken engine: direct, handed over at once after 1 to 100 tokens, and in batches; greedy and seeded. "
        "Each request has cold caches. Half a minute a prompt on two cores, with vLLM a minute and a half; exit code 1 "
        "unless all are exact. Where the engines are of two kinds (--engine mixed) both ways round are tried, one after "
        "the other, and an answer may differ from a near tie of the unbroken engine on, where its two best tokens' "
        "scores are less than 0.001 apart."
    )
    parser.epilog = (
        "With --json: prompts, requests, relays, exact_rate, near_ties, mismatches, per_case, per_direction, seconds."
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
    check_range("--prompts", args.prompts, least=1, most=_MAX_PROMPTS)
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: it must be 0 or more")
    from pdd.cli.deploy.launch import run_to_the_end

    return run_to_the_end(_verify(args))


async def _verify(args: argparse.Namespace) -> int:
    from pdd.cli.deploy.launch import unshaped
    from pdd.cli.topology.choose import choose_topology
    from pdd.cli.verify.directions import directions_of
    from pdd.engine.catalog import model_of

    topology = unshaped(choose_topology(args.engine, args.topology))
    tokenizer = model_of(topology).load_text().tokenizer
    longest = min(LONGEST_TOKENS, topology.max_model_tokens - REFERENCE_TOKENS)
    prompts = make_prompts(lambda text: tokenizer.encode(text).ids, count=args.prompts, seed=args.seed, longest=longest)
    progress = open_console(stderr=True)
    plays = [await _play(direction, prompts, args.seed, progress) for direction in directions_of(topology)]
    if args.json:
        print_json(record(prompts, plays))
    else:
        show(open_console(), prompts, plays)
    return 0 if passed(plays) else EXIT_FAILURE


async def _play(direction: Direction, prompts: Sequence[Prompt], seed: int, progress: Console) -> Played:
    from pdd.cli.deploy.launch import launched

    if direction.mixed:
        progress.print(f"  {direction.name.replace('_', ' ')}")
    async with launched(direction.topology, progress) as deployment:
        began = monotonic()
        outcomes = await _run(direction, deployment, prompts, seed, progress)
        return Played(direction=direction.name, outcomes=outcomes, seconds=Seconds(monotonic() - began))


async def _run(
    direction: Direction, deployment: Deployment, prompts: Sequence[Prompt], seed: int, progress: Console
) -> list[Outcome]:
    from pdd.cli.ask.client import RouterClient
    from pdd.cli.verify.run import Setup, run_trials
    from pdd.cli.verify.scores import open_scores
    from pdd.core.topology import Address
    from pdd.engine.http.client import HttpEngineClient

    main = deployment.topology.engines_of(Role.MAIN_DECODE)[0]
    engine = HttpEngineClient(main.name, Address(host=main.host, port=main.port), idle_timeout=_ENGINE_SILENCE)
    async with engine, RouterClient.of(deployment) as router, AsyncExitStack() as stack:
        setup = Setup(
            router=router,
            unbroken=engine,
            scores=await stack.enter_async_context(open_scores(deployment.topology)) if direction.mixed else None,
            model=deployment.topology.served_model_name,
            seed=seed,
            salt=secrets.token_hex(8),
        )
        done, num_jobs = count(1), count_requests(len(prompts))
        with counting("answers", progress) as tell:
            return await run_trials(setup, prompts, on_done=lambda: tell(next(done), num_jobs))
