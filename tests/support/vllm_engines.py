"""A program: vLLM engines around one KV node, one after the other, each in a process forked from this one.

Reads a list of ``Play``s as JSON from one file and writes what each engine answered to another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pdd.cli.deploy.forking import ForkServers
from pdd.core.kv_format import KvFormat
from pdd.engine.catalog import find_model
from pdd.engine.checkpoint import checkpoint_folder
from pdd.plugins.vllm.server import START_METHOD
from tests.support.kv_nodes import running_cluster
from tests.support.vllm_forks import arguments_of, run_forked

_START_LIMIT_S = 100.0


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A new engine answers ``prompts``, one after the other and greedily; ``flags`` are vLLM's, by their
    Python names.
    """

    prompts: Sequence[Sequence[int]]
    flags: Mapping[str, Any] = field(default_factory=dict)
    connector: Mapping[str, Any] = field(default_factory=dict)
    output_tokens: int = 24


@dataclass(frozen=True, kw_only=True)
class Play:
    """Engines that take turns at one new node."""

    turns: Sequence[Turn]
    wire_tokens: int = 16
    model: str = "tiny-random-32"


@dataclass(frozen=True, kw_only=True)
class Answer:
    tokens: list[int]
    num_cached: int


async def answers_of(forks: ForkServers, plays: Sequence[Play], *, seconds: float) -> list[list[list[Answer] | str]]:
    """For each play and turn the answers, or why vLLM did not start. To be called from a test."""
    with TemporaryDirectory() as folder:
        asked, answers = Path(folder) / "plays", Path(folder) / "answers"
        asked.write_text(json.dumps([asdict(play) for play in plays]))
        await run_forked(forks, "tests.support.vllm_engines", str(asked), str(answers), seconds=seconds)
        return [
            [turn if isinstance(turn, str) else [Answer(**answer) for answer in turn] for turn in play]
            for play in json.loads(answers.read_text())
        ]


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("plays", type=Path)
    parser.add_argument("answers", type=Path)
    given = arguments_of(parser)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    plays = [Play(**play) for play in json.loads(given.plays.read_text())]
    with TemporaryDirectory() as folder:
        given.answers.write_text(json.dumps([_run(play, Path(folder)) for play in plays]))


def _run(play: Play, folder: Path) -> list[Any]:
    entry = find_model(play.model)
    checkpoint = checkpoint_folder(entry, folder / "models")
    with _running_node(folder, entry.kv_format(play.wire_tokens)) as socket:
        connector = {"node_socket": str(socket), "model": play.model, "block_tokens": play.wire_tokens}
        return [_take_turn(turn, checkpoint, connector) for turn in (Turn(**turn) for turn in play.turns)]


@contextmanager
def _running_node(folder: Path, kv_format: KvFormat) -> Iterator[Path]:
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    async def run() -> None:
        async with running_cluster(folder, "node", capacity=256, form=kv_format):
            stop = asyncio.Event()
            started.append((asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    ready.wait()
    try:
        yield folder / "node.sock"
    finally:
        ((loop, stop),) = started
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _take_turn(turn: Turn, checkpoint: Path, connector: Mapping[str, Any]) -> Any:
    here, there = multiprocessing.Pipe()
    engine = multiprocessing.get_context("fork").Process(target=_be_engine, args=(turn, checkpoint, connector, there))
    engine.start()
    there.close()
    try:
        return here.recv()
    finally:
        engine.join(_START_LIMIT_S)


def _be_engine(turn: Turn, checkpoint: Path, connector: Mapping[str, Any], answers: Connection) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    flags: dict[str, Any] = {
        "model": str(checkpoint),
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": 32,
        "max_model_len": 1024,
        "kv_cache_memory_bytes": 16 << 20,
        "logits_processors": ["pdd.plugins.vllm.sampling:PositionKeyedSampling"],
        "kv_transfer_config": {
            "kv_connector": "PddConnector",
            "kv_connector_module_path": "pdd.plugins.vllm.connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": dict(connector) | dict(turn.connector),
        },
    }
    try:
        config = EngineArgs(**(flags | dict(turn.flags))).create_engine_config()
        os.environ[START_METHOD] = "fork"  # vLLM's CPU platform has just asked for spawning
        engine = LLMEngine.from_vllm_config(config)
    except Exception as error:  # noqa: BLE001 (the process's edge)
        answers.send(f"{type(error).__name__}: {error}")
        return
    answers.send([_answer(engine, number, turn) for number in range(len(turn.prompts))])
    engine.engine_core.shutdown()


def _answer(engine: Any, number: int, turn: Turn) -> dict[str, Any]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=turn.output_tokens, ignore_eos=True)
    engine.add_request(str(number), {"prompt_token_ids": list(turn.prompts[number])}, params)
    outputs = [output for _ in iter(engine.has_unfinished_requests, False) for output in engine.step()]
    return asdict(Answer(tokens=list(outputs[-1].outputs[0].token_ids), num_cached=outputs[-1].num_cached_tokens or 0))


if __name__ == "__main__":
    _main()
