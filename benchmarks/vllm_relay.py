"""PDD on vLLM beside vLLM's own disaggregation: the same model, box, line and conversations, in one run.

Two sites, joined by one line that all of them use unchanged. At first a pair of vLLM engines with vLLM's own
NixlConnector, and one more that does everything, for the floor. Then PDD's three with their nodes, relayed and pinned
direct.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.deployments import pdd_at, stock_engines_at
from benchmarks.one_question import Asking, Engine, Heard, Router, StockPair
from benchmarks.report import Result, Row, row
from benchmarks.sites import Sites, two_sites
from pdd.cli.topology.file import load_topology
from pdd.core.errors import ConfigError
from pdd.core.request import Route
from pdd.core.topology import Topology
from pdd.core.units import BitsPerSecond, Bytes, Seconds
from pdd.engine.catalog import find_model
from pdd.engine.checkpoint import checkpoint_folder

_RATE, _DELAY = BitsPerSecond(20e6), Seconds(0.015)
_PROMPT_TOKENS, _ANSWER_TOKENS, _WARM_UP_TOKENS = 640, 448, 8
_QUESTION_TOKENS, _SECOND_ANSWER_TOKENS = 24, 64
_FIRST_ORDINARY_TOKEN = 100
_QUIET_WITHIN = Seconds(60.0)
_TURNS = ("turn 1", "turn 2")
_ENGINE, _STOCK, _DIRECT, _RELAY = "one engine, no line", "NixlConnector", "PDD, relay off", "PDD, relay on"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One answer, and what the line carried for it, everything counted."""

    heard: Heard
    sent_bytes: Bytes

    @property
    def ttft(self) -> float:
        return self.heard.times[0]

    @property
    def ttst(self) -> float:
        return self.heard.times[1]

    @property
    def total(self) -> float:
        return self.heard.times[-1]

    @property
    def longest_gap(self) -> float:
        return max(later - earlier for earlier, later in pairwise(self.heard.times))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way to be served, and what its conversations were like: for each, its turns."""

    whom: Engine | StockPair | Router
    salt: str
    conversations: list[tuple[_Turn, ...]] = field(default_factory=list[tuple[_Turn, ...]])


def run(repetitions: int) -> Result:
    """Each repetition is a conversation of its own, the same for everyone."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "this benchmark runs vLLM, which is not in this environment: `make bench-vllm` runs it in one"
        )
    with two_sites(rate=_RATE, delay=_DELAY) as sites:
        topology = load_topology("vllm")
        ways = _measure_stock(sites, topology.model, repetitions)
        ways |= asyncio.run(_measure_pdd(sites, topology, repetitions))
    return Result(
        name="vllm_relay",
        title=f"SmolLM2-135M on vLLM; 20 Mbit/s, 30 ms; {_PROMPT_TOKENS} tokens in, {_ANSWER_TOKENS} out, then a second turn",
        rows=tuple(_rows(ways)),
    )


def _measure_stock(sites: Sites, model: str, repetitions: int) -> dict[str, _Way]:
    folder = checkpoint_folder(find_model(model), Path("build/checkpoints"))
    with stock_engines_at(sites, model=folder, served_as=model) as (alone, prefill, decode):
        ways = {
            _ENGINE: _Way(whom=Engine(url=alone), salt="engine"),
            _STOCK: _Way(whom=StockPair(prefill_url=prefill, decode_url=decode), salt="stock"),
        }
        _converse(sites, model, ways, repetitions)
    return ways


async def _measure_pdd(sites: Sites, topology: Topology, repetitions: int) -> dict[str, _Way]:
    async with pdd_at(sites, topology) as router:
        ways = {
            # First: how fast a line is, the router knows only from what crossed it.
            _DIRECT: _Way(whom=Router(url=router, route=Route.DIRECT), salt="direct"),
            _RELAY: _Way(whom=Router(url=router), salt="relay"),
        }
        await asyncio.to_thread(_converse, sites, topology.model, ways, repetitions)
    return ways


def _converse(sites: Sites, model: str, ways: dict[str, _Way], repetitions: int) -> None:
    """Everyone in turn, so that a slow minute of the machine is everyone's.

    The first round warms up and isn't counted.
    """
    progress = Console(stderr=True)
    for repetition in range(repetitions + 1):
        for name, way in ways.items():
            turns = _conversation(sites, model, way, repetition)
            figures = "; ".join(f"{t.ttft:.2f}, {t.ttst:.2f} ... {t.total:.2f} s, {t.sent_bytes} B" for t in turns)
            progress.print(f"  {name}: {figures}")
            if repetition:
                way.conversations.append(turns)


def _conversation(sites: Sites, model: str, way: _Way, repetition: int) -> tuple[_Turn, ...]:
    chance = random.Random(repetition)
    vocab_size = find_model(model).vocab_size

    def words(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(_FIRST_ORDINARY_TOKEN, vocab_size) for _ in range(count))

    num_tokens = _ANSWER_TOKENS if repetition else _WARM_UP_TOKENS
    prompt = words(_PROMPT_TOKENS)
    salt = f"{way.salt} {repetition}"
    first = Asking(whom=way.whom, model=model, token_ids=prompt, max_tokens=num_tokens, salt=salt)
    opening = _turn(sites, first)
    history = (*prompt, *opening.heard.token_ids, *words(_QUESTION_TOKENS))
    second = Asking(whom=way.whom, model=model, token_ids=history, max_tokens=_SECOND_ANSWER_TOKENS, salt=salt)
    return opening, _turn(sites, second)


def _turn(sites: Sites, asking: Asking) -> _Turn:
    before = sites.sent_bytes()
    command = sites.near.inside(sys.executable, "-m", "benchmarks.one_question")
    done = subprocess.run(command, input=msgspec.json.encode(asking), stdout=subprocess.PIPE, check=True)
    heard = msgspec.json.decode(done.stdout, type=Heard)
    if len(heard.token_ids) != asking.max_tokens:
        raise RuntimeError(f"an answer of {len(heard.token_ids)} tokens instead of {asking.max_tokens}")
    sites.wait_until_quiet(_QUIET_WITHIN)
    return _Turn(heard=heard, sent_bytes=Bytes(sites.sent_bytes() - before))


def _rows(ways: dict[str, _Way]) -> list[Row]:
    ttft, ttst, longest, total = (
        ("time to first token", lambda turn: turn.ttft),
        ("time to second token", lambda turn: turn.ttst),
        ("longest gap between tokens", lambda turn: turn.longest_gap),
        ("whole answer", lambda turn: turn.total),
    )
    figures: tuple[tuple[str, Callable[[_Turn], float]], ...] = (ttft, ttst, longest, total)
    rows: list[Row] = []
    for turn, turn_name in enumerate(_TURNS):
        for figure, value in figures:
            for name, way in ways.items():
                rows.append(row(f"{turn_name}, {figure}: {name}", "s", _samples(way, turn, value)))
        for name in (_STOCK, _DIRECT, _RELAY):
            megabytes = _samples(ways[name], turn, lambda t: t.sent_bytes / 1e6)
            rows.append(row(f"{turn_name}, over the line: {name}", "MB", megabytes))
    return [*rows, *_ratios(ways), *_sameness(ways)]


def _samples(way: _Way, turn: int, value: Callable[[_Turn], float]) -> list[float]:
    return [value(turns[turn]) for turns in way.conversations]


def _ratios(ways: dict[str, _Way]) -> list[Row]:
    """Conversation by conversation."""

    def ratio(part: str, whole: str, value: Callable[[_Turn], float]) -> list[float]:
        parts, wholes = (_samples(ways[name], 0, value) for name in (part, whole))
        return [a / b for a, b in zip(parts, wholes, strict=True)]

    rows: list[Row] = []
    for whole in (_STOCK, _DIRECT, _ENGINE):
        rows.append(
            row(f"turn 1, time to second token: relay on over {whole}", "ratio", ratio(_RELAY, whole, lambda t: t.ttst))
        )
        rows.append(
            row(f"turn 1, whole answer: relay on over {whole}", "ratio", ratio(_RELAY, whole, lambda t: t.total))
        )
    for name in (_STOCK, _DIRECT, _RELAY):
        shares = [turns[1].sent_bytes / turns[0].sent_bytes for turns in ways[name].conversations]
        rows.append(row(f"over the line, turn 2 over turn 1: {name}", "ratio", shares))
    return rows


def _sameness(ways: dict[str, _Way]) -> list[Row]:
    """How many answers are, token for token, those of the one engine."""
    right = [turns[0].heard.token_ids for turns in ways[_ENGINE].conversations]
    rows: list[Row] = []
    for name in (_STOCK, _DIRECT, _RELAY):
        answers = [turns[0].heard.token_ids for turns in ways[name].conversations]
        rows.append(
            row(
                f"turn 1 equals the one engine's: {name}",
                "share",
                [float(a == b) for a, b in zip(answers, right, strict=True)],
            )
        )
    relayed = [float(turns[0].heard.route is Route.RELAY) for turns in ways[_RELAY].conversations]
    return [*rows, row(f"turn 1 relayed: {_RELAY}", "share", relayed, "1")]
