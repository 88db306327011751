"""``pdd demo``: one real answer starts in cluster A and finishes in cluster B, and one sees what that is good for."""

from __future__ import annotations

import argparse

from pdd.cli.commands import CommandParser
from pdd.cli.console import open_console
from pdd.cli.options import add_json, add_topology
from pdd.cli.output import EXIT_FAILURE, print_json
from pdd.core.request import Role
from pdd.core.topology import EngineKind, LinkTable, Topology
from pdd.core.units import Bytes, Seconds, bytes_per_second, transfer_time


def define(parser: CommandParser) -> None:
    """``pdd demo``."""
    parser.description = (
        "Starts a whole deployment on this machine and has it answer one prompt with the relay, the same "
        "prompt without, and a second turn of the first conversation. Shows who computed which token, when what "
        "happened, and the waits in seconds. Takes a minute or two; exit code 1 if the relay changed the text."
    )
    parser.epilog = (
        "With --json: runs (name, route, ttft_s, ttst_s, max_itl_s, median_itl_s in seconds, p_tokens, "
        "rld_tokens, md_tokens, wan_kv_bytes in bytes, text, exact) and checks."
    )
    add_topology(parser)
    add_json(parser)
    parser.set_defaults(run=run_demo)


def run_demo(args: argparse.Namespace) -> int:
    """Plays the demo.

    Raises:
        PddError: the deployment could not be started, or an answer was refused or broke off.
    """
    from pdd.cli.deploy.launch import run_to_the_end

    return run_to_the_end(_demo(args))


async def _demo(args: argparse.Namespace) -> int:
    from pdd.cli.ask.client import RouterClient
    from pdd.cli.demo.play import choose_answer_tokens, judge, load_script, measure_pace, play, record
    from pdd.cli.demo.show import DemoStage, QuietStage, introduce, print_results, print_verdict
    from pdd.cli.deploy.launch import launched
    from pdd.cli.topology.choose import choose_topology
    from pdd.engine.catalog import model_of
    from pdd.router.api.messages import Message
    from pdd.router.api.tokenizer import TextCodec

    topology, script = choose_topology(args.engine, args.topology), load_script()
    model = model_of(topology)
    codec = TextCodec(model.load_text())
    message = codec.mask(Message(role="user", content=script.first_message))
    rendered = codec.render_chat((message,))
    prompt_tokens = len(await codec.encode(rendered))
    kv = Bytes(model.kv_format(topology.block_tokens).bytes_per_token * prompt_tokens)
    progress, console = open_console(stderr=True), open_console(stderr=bool(args.json))
    line = _line_to_main(topology)
    introduce(
        console,
        model=topology.served_model_name,
        engines=_engines(topology),
        line=line,
        prompt_tokens=prompt_tokens,
        kv=kv,
    )
    async with launched(topology, progress) as deployment, RouterClient.of(deployment) as client:
        stage = QuietStage(progress) if args.json else DemoStage(console)
        pace = await measure_pace(client, model=topology.served_model_name)
        answer_tokens = choose_answer_tokens(crossing=_crossing(kv, line), pace=pace)
        runs = await play(client, script, model=topology.served_model_name, answer_tokens=answer_tokens, stage=stage)
    round_trip = Seconds(2 * line.delay_s if line else 0.0)
    verdict = judge(runs, round_trip=round_trip, block_tokens=topology.block_tokens)
    if args.json:
        print_json(record(runs, verdict))
    else:
        print_results(console, runs)
        print_verdict(console, runs, verdict)
    return 0 if runs.exact else EXIT_FAILURE


def _engines(topology: Topology) -> str:
    """Who computes, in the order of an answer's way."""
    names = {EngineKind.EMBEDDED: "PDD's own engine", EngineKind.VLLM: "vLLM"}
    kinds = dict.fromkeys(topology.engines_of(role)[0].kind for role in Role)
    return " and ".join(names.get(kind, f"{kind} engines") for kind in kinds)


def _crossing(size: Bytes, line: LinkTable | None) -> Seconds:
    """How long ``size`` takes on the line, if there is one."""
    if line is None:
        return Seconds(0.0)
    return transfer_time(size, bytes_per_second(line.rate_bits_per_s))


def _line_to_main(topology: Topology) -> LinkTable | None:
    """The emulated line that the KV cache crosses on its way to main decode."""
    prefill, main = topology.engines_of(Role.PREFILL)[0], topology.engines_of(Role.MAIN_DECODE)[0]
    return topology.link_between(prefill.cluster, main.cluster)
