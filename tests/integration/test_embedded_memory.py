"""An engine's memory stays flat over many requests, a third of them aborted."""

import asyncio
import gc
import random
from pathlib import Path

import pytest

from pdd.core.ids import WorkerId
from pdd.engine.catalog import find_model
from tests.support.embedded import SEEDED, generation, prompt

from pdd.engine.embedded.engine import EmbeddedSettings, open_embedded_engine  # isort: skip  # torch, after its environment

pytestmark = pytest.mark.anyio

SETTINGS = EmbeddedSettings(
    worker=WorkerId("w"), model=find_model("tiny-random"), cache_tokens=2048, max_model_tokens=1024
)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def visit(engine, number: int, dice: random.Random) -> None:
    request = generation(prompt(dice.randrange(1, 300), seed=number), max_tokens=30, sampling=SEEDED, salt=str(number))
    patience = dice.randrange(10) if number % 3 == 0 else 1000
    stream = engine.generate(request)
    async for _ in stream:
        patience -= 1
        if patience < 0:
            break
    await stream.aclose()


async def rounds(engine, numbers: range, dice: random.Random) -> None:
    for start in range(numbers.start, numbers.stop, 10):
        async with asyncio.TaskGroup() as group:
            for number in range(start, start + 10):
                group.create_task(visit(engine, number, dice))


async def test_memory_is_flat_over_200_requests_with_aborts():
    dice = random.Random(0)
    async with open_embedded_engine(SETTINGS) as engine:
        await rounds(engine, range(100), dice)  # buffers and compiled kernels come to be
        gc.collect()
        before = resident_mib()
        await rounds(engine, range(100, 300), dice)
        gc.collect()
        grown = resident_mib() - before
        stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.blocks.num_held) == (0, 0, 0)
    assert grown < 4, f"grew by {grown:.1f} MiB"
