"""Every engine that must pass the contract. A further one is one more entry in ``FACTORIES``."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from pdd.core.ids import WorkerId
from pdd.core.kv_format import DType, uniform_attention_format
from pdd.core.units import Seconds
from pdd.engine.base import EngineClient
from pdd.engine.catalog import find_model
from pdd.engine.scripted.engine import Script, ScriptedEngine


@dataclass(frozen=True)
class EngineUnderTest:
    """``max_running`` is how many it runs at once; ``long_answer`` so many tokens that they take a minute or more."""

    engine: EngineClient
    vocab_size: int
    max_running: int
    long_answer: int
    prompt: tuple[int, ...]


@asynccontextmanager
async def scripted() -> AsyncGenerator[EngineUnderTest]:
    kv_format = uniform_attention_format(
        model="script", num_layers=1, num_kv_heads=1, head_dim=8, dtype=DType.FLOAT32, block_tokens=16
    )
    script = Script(
        prefill_tokens_per_s=1e6, token_interval=Seconds(0.001), burst_tokens=3, vocab_size=1000, max_running=4
    )
    engine = ScriptedEngine(
        WorkerId("scripted"), kv_format=kv_format, script=script, max_model_tokens=100_000, instance="contract"
    )
    yield EngineUnderTest(
        engine=engine,
        vocab_size=script.vocab_size,
        max_running=script.max_running,
        long_answer=90_000,
        prompt=tuple(range(20, 55)),
    )
    engine.close()
    assert engine.num_open == 0


@asynccontextmanager
async def embedded() -> AsyncGenerator[EngineUnderTest]:
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
    async with open_embedded_engine(settings) as engine:
        yield EngineUnderTest(
            engine=engine,
            vocab_size=model.vocab_size,
            max_running=settings.max_batch,
            long_answer=settings.max_model_tokens - 100,
            prompt=tuple(range(20, 55)),
        )


FACTORIES: dict[str, Callable[[], AbstractAsyncContextManager[EngineUnderTest]]] = {
    "scripted": scripted,
    "embedded": embedded,
}
