"""Every engine that must pass the contract, each behind an HTTP server.

A further one is one more entry in ``FACTORIES``.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import pytest

from pdd.cli.deploy.forking import ForkServers
from pdd.core.ids import NodeId, WorkerId
from pdd.core.kv_format import DType, KvFormat, uniform_attention_format
from pdd.core.topology import LOOPBACK, Address
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.engine.http.server import serve_engine
from pdd.engine.scripted.engine import Script, ScriptedEngine
from tests.support.vllm_process import MODEL, vllm_process


@dataclass(frozen=True)
class EngineUnderTest:
    """``max_running`` is how many it runs at once; ``long_answer`` so many tokens that they take a minute or more, or
    longer at least than such a test may take.
    """

    address: Address
    model: str
    max_model_tokens: int
    kv_format: KvFormat
    vocab_size: int
    max_running: int
    long_answer: int
    node: NodeId | None = None
    prompt: tuple[int, ...] = tuple(range(20, 55))


@asynccontextmanager
async def scripted(_forks: ForkServers) -> AsyncGenerator[EngineUnderTest]:
    kv_format = uniform_attention_format(
        model="script", num_layers=1, num_kv_heads=1, head_dim=8, dtype=DType.FLOAT32, block_tokens=16
    )
    script = Script(
        prefill_tokens_per_s=1e6, token_interval=Seconds(0.001), burst_tokens=3, vocab_size=1000, max_running=4
    )
    engine = ScriptedEngine(
        WorkerId("scripted"), kv_format=kv_format, script=script, max_model_tokens=100_000, instance="contract"
    )
    async with serve_engine(engine, host=LOOPBACK, port=0, vocab_size=script.vocab_size) as address:
        yield EngineUnderTest(
            address=address,
            model="script",
            max_model_tokens=100_000,
            kv_format=kv_format,
            vocab_size=script.vocab_size,
            max_running=script.max_running,
            long_answer=90_000,
        )
    engine.close()
    assert engine.num_open == 0


@asynccontextmanager
async def embedded(_forks: ForkServers) -> AsyncGenerator[EngineUnderTest]:
    pytest.importorskip("torch")
    from pdd.engine.embedded.engine import EmbeddedSettings, open_embedded_engine

    model = find_model("tiny-random")
    settings = EmbeddedSettings(
        worker=WorkerId("embedded"),
        model=model,
        cache_tokens=16_384,
        max_model_tokens=model.max_model_tokens,
        max_batch=4,
        prefill_chunk_tokens=32,
    )
    async with (
        open_embedded_engine(settings) as engine,
        serve_engine(engine, host=LOOPBACK, port=0, vocab_size=model.vocab_size) as address,
    ):
        yield EngineUnderTest(
            address=address,
            model=model.name,
            max_model_tokens=model.max_model_tokens,
            kv_format=model.kv_format(settings.block_tokens),
            vocab_size=model.vocab_size,
            max_running=settings.max_batch,
            long_answer=settings.max_model_tokens - 100,
        )


@asynccontextmanager
async def vllm(forks: ForkServers) -> AsyncGenerator[EngineUnderTest]:
    """The process of a deployment, its KV node beside it."""
    settings = {"cache_tokens": 65_536, "max_batch": 4, "prefill_chunk_tokens": 60}
    async with vllm_process(forks, **settings) as process:
        topology, model = process.topology, find_model(MODEL)
        yield EngineUnderTest(
            address=process.address,
            model=MODEL,
            max_model_tokens=topology.max_model_tokens,
            kv_format=model.kv_format(topology.block_tokens),
            vocab_size=model.vocab_size,
            max_running=4,
            long_answer=topology.max_model_tokens - 100,
            node=NodeId("node-p"),
        )


Factory = Callable[[ForkServers], AbstractAsyncContextManager[EngineUnderTest]]
"""What forks vLLM engines is given to each, and started by who needs it."""
_OURS: dict[str, Factory] = {"scripted": scripted, "embedded": embedded}
_INSTALLED: dict[str, Factory] = {"vllm": vllm} if find_spec("vllm") else {}
FACTORIES = _OURS | _INSTALLED
START_PATIENCE = {"vllm": 300.0}
"""Seconds for tests that may have to start it, where the usual limit is too little."""
