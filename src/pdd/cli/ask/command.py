"""``pdd ask``: sends one prompt to a running router and shows who computed which token, and how long it took."""

from __future__ import annotations

import argparse
import asyncio
import os

from rich.console import Console

from pdd.cli.ask.conversation import ChatMessage, Conversation, Draw, Pins, Question, ReceivedAnswer
from pdd.cli.ask.measure import measure, record_of
from pdd.cli.ask.render import AnswerPrinter, legend, tabulate
from pdd.cli.ask.timeline import draw, draw_axis, rows_of
from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.given_text import text
from pdd.cli.options import add_json, api_key, finite, router_url
from pdd.cli.output import print_json
from pdd.core.errors import Unauthorized
from pdd.core.request import HandoffMode, Route

DEFAULT_URL = "http://127.0.0.1:8000"
_AUTO = "auto"


def define(parser: CommandParser) -> None:
    """``pdd ask``."""
    parser.description = (
        "Sends one prompt to a running router and streams the answer, each token marked by the role that "
        "computed it: [P] prefill, [RLD] relay decode, [MD] main decode. Then it shows the waits, as felt here."
    )
    parser.add_argument("prompt", type=text, metavar="PROMPT", help="what to ask")
    parser.add_argument(
        "--url", type=router_url, default=DEFAULT_URL, help="the router's address (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key", type=api_key, default=os.environ.get("PDD_API_KEY"), help="names a tenant (default: $PDD_API_KEY)"
    )
    parser.add_argument("--system", type=text, metavar="TEXT", help="a system message that goes before the prompt")
    _add_sampling(parser)
    _add_pins(parser)
    add_json(parser)
    parser.set_defaults(run=run_ask)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how tokens are drawn")
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help="end after N tokens (default: what fits, at most 1024)"
    )
    group.add_argument("--temperature", type=finite, default=0.0, metavar="T", help="0 is greedy (default); at most 2")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens only (default: all)")
    group.add_argument(
        "--top-p", type=finite, metavar="P", help="draw from the likeliest tokens of total probability P"
    )
    group.add_argument("--seed", type=int, metavar="S", help="the same seed draws the same answer (default: random)")


def _add_pins(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how the request is served")
    group.add_argument(
        "--route",
        choices=(_AUTO, Route.DIRECT.value, Route.RELAY.value),
        default=_AUTO,
        help="direct: main decode only; relay: relay decode first (default: auto)",
    )
    group.add_argument(
        "--handoff",
        choices=(_AUTO, *(mode.value for mode in HandoffMode)),
        default=_AUTO,
        help="how main decode takes over: all tokens at once or in batches (default: auto)",
    )
    group.add_argument(
        "--handoff-after", type=int, metavar="N", help="hand over only after N tokens of relay decode (default: auto)"
    )
    group.add_argument(
        "--cache-salt", type=text, metavar="TEXT", help="use caches of this salt only; a new one is cold everywhere"
    )


def run_ask(args: argparse.Namespace) -> int:
    """Asks and prints.

    Raises:
        PddError: the router refused, is not there, or the answer broke off.
    """
    try:
        return asyncio.run(_ask(args))
    except Unauthorized as error:
        raise Unauthorized(f"{error}; give a tenant's key with --api-key, or in $PDD_API_KEY") from error


async def _ask(args: argparse.Namespace) -> int:
    from pdd.cli.ask.client import RouterClient  # slow to import, and `pdd --help` needs none of it

    async with RouterClient(args.url, api_key=args.api_key) as client:
        question = question_of(args, model=await client.model())
        if args.json:
            print_json(record_of("ask", await client.ask(question)))
            return 0
        console = open_console()
        printer = AnswerPrinter(console)
        answer = await client.ask(question, printer.add)
        printer.finish()
        print_summary(console, answer)
        return 0


def question_of(args: argparse.Namespace, *, model: str) -> Question:
    """The flags as a question."""
    system = (ChatMessage(role="system", content=args.system),) if args.system else ()
    return Question(
        prompt=Conversation(messages=(*system, ChatMessage(role="user", content=args.prompt))),
        model=model,
        max_tokens=args.max_tokens,
        draw=Draw(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed),
        pins=Pins(
            route=None if args.route == _AUTO else Route(args.route),
            handoff=None if args.handoff == _AUTO else HandoffMode(args.handoff),
            handoff_after_tokens=args.handoff_after,
            cache_salt=args.cache_salt,
        ),
    )


def print_summary(console: Console, answer: ReceivedAnswer) -> None:
    """What follows an answer: the legend, the timeline and the table."""
    end = measure(answer).total
    console.print()
    console.print("  ", legend(), sep="", soft_wrap=True)
    console.print()
    for line in draw(rows_of(answer), end=end, width=console.width):
        console.print(line, soft_wrap=True)
    console.print(draw_axis(end=end, width=console.width), soft_wrap=True)
    console.print()
    console.print(tabulate([("ask", answer)]))
    if answer.report.route_reason:
        console.print(f"\n  route {answer.report.route}: {answer.report.route_reason}")
