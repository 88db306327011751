"""Four long prompts at once where main decode's node has room for one: what the other three cost the one that is
served.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.report import Result, row
from pdd.cli.ask.client import RouterClient
from pdd.cli.ask.conversation import Pins, Question, ReceivedAnswer, TokenPrompt
from pdd.cli.ask.measure import measure
from pdd.cli.deploy.deployment import Deployment, run_deployment
from pdd.cli.topology.file import load_topology
from pdd.cli.topology.wiring import block_tokens_of
from pdd.core.errors import Unavailable
from pdd.core.replication import NodeStats
from pdd.core.topology import Address, Topology
from pdd.core.units import BitsPerSecond, Bytes, Seconds
from pdd.engine.catalog import model_of
from pdd.kvnode.client import TcpNodeClient

_PROMPT_TOKENS = 3000
_ANSWER_TOKENS = 500
_RATE = BitsPerSecond(6e6)
"""Two seconds for a prompt's KV."""
_QUEUE = Seconds(1.5)
_NUM_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """What became of requests that were sent at once."""

    served: ReceivedAnswer
    sent: Bytes
    """KV payload that main decode's node received, until nothing was on its way any more."""
    own: Bytes
    """KV of one prompt's full blocks."""


def run(repetitions: int) -> Result:
    """Each repetition asks once alone, then four at once, of deployments that were never asked before."""
    pairs = [(asyncio.run(_trial(1)), asyncio.run(_trial(_NUM_AT_ONCE))) for _ in range(repetitions)]
    alone, beside = zip(*pairs, strict=True)
    return Result(
        name="full",
        title="a tiny model on embedded engines, 6 Mbit/s, 30 ms; prompts of 3000 tokens, room for 1.9 of them at main decode's node",
        rows=(
            row("second token, alone", "s", [_ttst(each) for each in alone]),
            row("second token, beside three that are refused", "s", [_ttst(each) for each in beside]),
            row("beside three over alone", "ratio", [_ttst(b) / _ttst(a) for a, b in pairs]),
            row(
                "the same, less a round trip and a chunk",
                "ratio",
                [(_ttst(b) - _round_trip() - _chunk(a)) / _ttst(a) for a, b in pairs],
                "<= 1.1",
            ),
            row("KV sent over the served prompt's", "ratio", [each.sent / each.own for each in beside], "<= 1.05"),
        ),
    )


def _ttst(trial: _Trial) -> float:
    ttst = measure(trial.served).ttst
    assert ttst is not None
    return ttst


def _round_trip() -> Seconds:
    """Before which nobody can know that there is no room."""
    return Seconds(2 * _topology().links[0].delay_s)


def _chunk(alone: _Trial) -> Seconds:
    """Prefill stops between two chunks."""
    return Seconds(measure(alone.served).ttft * _topology().engine("P").prefill_chunk_tokens / _PROMPT_TOKENS)


async def _trial(num_at_once: int) -> _Trial:
    root = Path(tempfile.mkdtemp(prefix="pdd-"))
    try:
        async with (
            run_deployment(_topology(), state_root=root) as deployment,
            RouterClient(deployment.router_url) as router,
        ):
            async with asyncio.TaskGroup() as group:
                asking = [group.create_task(_ask(router, deployment, number)) for number in range(num_at_once)]
            (served,) = [answer for task in asking if (answer := task.result()) is not None]  # all others were refused
            stats = await _settled_books(deployment.topology)
            return _Trial(
                served=served,
                sent=Bytes(sum(stats.received_bytes.values())),
                own=Bytes(_PROMPT_TOKENS // deployment.topology.block_tokens * stats.block_bytes),
            )
    finally:
        shutil.rmtree(root)


def _topology() -> Topology:
    packaged = load_topology("tiny")
    longest = _PROMPT_TOKENS + _ANSWER_TOKENS
    block_bytes = model_of(packaged).kv_format(packaged.block_tokens).block_bytes
    room = Bytes(int(1.9 * longest) // packaged.block_tokens * block_bytes)
    admission = msgspec.structs.replace(packaged.router.admission, max_queue_s=_QUEUE)
    return msgspec.structs.replace(
        packaged,
        max_model_tokens=longest,
        nodes=tuple(
            msgspec.structs.replace(node, arena_bytes=room) if node.name == "node-md" else node
            for node in packaged.nodes
        ),
        links=tuple(msgspec.structs.replace(link, rate_bits_per_s=_RATE) for link in packaged.links),
        router=msgspec.structs.replace(packaged.router, port=0, admission=admission),
    )


async def _ask(router: RouterClient, deployment: Deployment, number: int) -> ReceivedAnswer | None:
    """None: it was turned away."""
    tokens = tuple((number * 7919 + index * 104729 + 13) % 512 for index in range(_PROMPT_TOKENS))
    question = Question(
        prompt=TokenPrompt(token_ids=tokens),
        model=deployment.topology.served_model_name,
        max_tokens=_ANSWER_TOKENS,
        pins=Pins(cache_salt=str(number)),
        ignore_eos=True,
    )
    try:
        return await router.ask(question)
    except Unavailable:
        return None


async def _settled_books(topology: Topology) -> NodeStats:
    """Those of main decode's node, once nobody watches anything arrive there."""
    node = topology.node("node-md")
    kv_format = model_of(topology).kv_format(block_tokens_of(topology, node))
    address = Address(host=node.host, port=node.port)
    async with TcpNodeClient(node=node.name, address=address, kv_format=kv_format) as client:
        while (stats := await client.stats()).watches:  # noqa: ASYNC110 (another process: nothing else tells)
            await asyncio.sleep(0.1)
        return stats
