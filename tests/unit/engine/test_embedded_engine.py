"""The engine as its clients see it: streams, aborts, refusals, failures. Real threads, a tiny model."""

import asyncio
import random
import threading
from dataclasses import replace

import pytest

from pdd.core.errors import (
    CapacityExhausted,
    ConfigError,
    ContextTooLong,
    Incompatible,
    InvalidRequest,
    Unavailable,
    WorkerFailed,
)
from pdd.core.ids import WorkerId
from pdd.core.request import FinishReason
from pdd.engine.catalog import find_model
from pdd.engine.http.contract import SpanContract
from tests.support.embedded import SEEDED, FakeStore, generation, make_core, prompt, run

from pdd.engine.embedded.engine import EmbeddedSettings, open_embedded_engine  # isort: skip  # torch, after its environment

pytestmark = pytest.mark.anyio

SETTINGS = EmbeddedSettings(
    worker=WorkerId("w"), model=find_model("tiny-random"), cache_tokens=2048, max_model_tokens=1024
)


async def collect(engine, request) -> list[int]:
    """All tokens of one answer, held to the engines' contract."""
    contract = SpanContract(request)
    tokens: list[int] = []
    async for span in engine.generate(request):
        tokens += contract.accept(span).tokens
    contract.check_end()
    return tokens


async def test_many_streams_at_once_each_get_what_they_get_alone():
    requests = [
        generation(prompt(5 + 11 * n, seed=n), max_tokens=20 + n, sampling=replace(SEEDED, seed=n)) for n in range(12)
    ]
    expected = [run(make_core(), request)[0] for request in requests]
    async with open_embedded_engine(SETTINGS) as engine, asyncio.TaskGroup() as group:
        tasks = [group.create_task(collect(engine, request)) for request in requests]
    assert [task.result() for task in tasks] == expected


async def test_spans_start_at_the_first_output_position_after_the_known_tokens():
    request = generation(prompt(40), num_prompt=30, max_tokens=3)
    async with open_embedded_engine(SETTINGS) as engine:
        spans = [span async for span in engine.generate(request)]
    assert spans[0].first_position == 10
    assert spans[-1].finish_reason is FinishReason.LENGTH
    assert sum(len(span.tokens) for span in spans) == 3


async def test_info_describes_the_engine_and_each_start_is_another_instance():
    async with open_embedded_engine(SETTINGS) as engine, open_embedded_engine(SETTINGS) as other:
        info = await engine.info()
        assert (info.model, info.max_model_tokens) == ("tiny-random", 1024)
        assert info.instance != (await other.info()).instance
        assert engine.worker == "w"


async def test_every_question_ends_with_the_engine_though_who_asked_another_one_has_just_left():
    async with open_embedded_engine(SETTINGS) as engine:
        left, stayed = asyncio.create_task(engine.stats()), asyncio.create_task(engine.stats())
        await asyncio.sleep(0)
        left.cancel()
        engine.on_end(WorkerFailed("the engine failed"))
        with pytest.raises(Unavailable, match="has ended"):
            await stayed
    assert left.cancelled()


async def test_closing_a_stream_frees_its_blocks():
    async with open_embedded_engine(SETTINGS) as engine:
        stream = engine.generate(generation(prompt(100), max_tokens=900))
        await anext(stream)
        assert (await engine.stats()).num_running == 1
        await stream.aclose()
        stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.blocks.num_held) == (0, 0, 0)


async def test_streams_dropped_at_random_moments_leave_nothing_behind():
    dice = random.Random(3)

    async def visit(engine, number: int) -> None:
        stream = engine.generate(generation(prompt(dice.randrange(1, 200), seed=number), max_tokens=50))
        patience = dice.choice([0, 1, 3, 1000])
        async for _ in stream:
            patience -= 1
            if patience <= 0:
                break
        await stream.aclose()

    async with open_embedded_engine(SETTINGS) as engine:
        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(visit(engine, number))
        stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.blocks.num_held) == (0, 0, 0)


async def test_a_reader_that_stops_reading_does_not_stop_the_others():
    settings = replace(SETTINGS, max_unread_tokens=4)
    async with open_embedded_engine(settings) as engine:
        slow = engine.generate(generation(prompt(20), max_tokens=200, salt="slow"))
        first = await anext(slow)
        assert len(await collect(engine, generation(prompt(30), max_tokens=300, salt="fast"))) == 300
        second = await anext(slow)
        assert len(second.tokens) <= 4
        rest = [token async for span in slow for token in span.tokens]
    assert len(first.tokens) + len(second.tokens) + len(rest) == 200


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (generation([]), InvalidRequest),
        (generation([512]), InvalidRequest),
        (generation([-1]), InvalidRequest),
        (generation([1], max_tokens=0), InvalidRequest),
        (generation([1, 2], num_prompt=3), InvalidRequest),
        (generation([1], num_prompt=0), InvalidRequest),
        (generation(prompt(1000), max_tokens=25), ContextTooLong),
    ],
)
async def test_requests_that_can_never_succeed_are_refused(request_, error):
    async with open_embedded_engine(SETTINGS) as engine:
        with pytest.raises(error):
            await anext(engine.generate(request_))
        assert len(await collect(engine, generation([1], max_tokens=2))) == 2


async def test_a_request_larger_than_the_cache_is_refused_and_one_that_just_fits_is_served():
    async with open_embedded_engine(replace(SETTINGS, cache_tokens=64)) as engine:
        with pytest.raises(ContextTooLong, match="65"):
            await anext(engine.generate(generation(prompt(60), max_tokens=6)))
        assert len(await collect(engine, generation(prompt(60), max_tokens=5))) == 5


async def test_beyond_the_queue_requests_are_refused_with_a_time_to_try_again():
    settings = replace(SETTINGS, max_batch=1, max_waiting=1)
    async with open_embedded_engine(settings) as engine:
        streams = [engine.generate(generation(prompt(9), max_tokens=500, salt=str(n))) for n in range(2)]
        await anext(streams[0])
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(anext(streams[1]))
            while (await engine.stats()).num_waiting + (await engine.stats()).num_running < 2:
                pass
            with pytest.raises(CapacityExhausted) as refused:
                await anext(engine.generate(generation([1])))
            assert refused.value.retry_after_s > 0
            await streams[0].aclose()
            await waiting
        await streams[1].aclose()
        assert len(await collect(engine, generation([1], max_tokens=2))) == 2


async def test_leaving_the_engine_ends_open_streams_with_an_error_and_refuses_new_ones():
    async with open_embedded_engine(SETTINGS) as engine:
        stream = engine.generate(generation(prompt(9), max_tokens=1000))
        await anext(stream)
    with pytest.raises(WorkerFailed):
        async for _ in stream:
            pass
    for call in (engine.info(), engine.stats(), anext(engine.generate(generation([1])))):
        with pytest.raises(Unavailable):
            await call


class Exploding(FakeStore):
    """Fails in a way that no node should."""

    def lease(self, hashes):
        raise ZeroDivisionError


async def test_a_bug_on_the_compute_thread_ends_streams_with_an_error_and_is_reported():
    store = Exploding(SETTINGS.core().kv_format)
    async with open_embedded_engine(SETTINGS, store.connect) as engine:
        with pytest.raises(WorkerFailed):
            await collect(engine, generation(prompt(40)))
        with pytest.raises(WorkerFailed, match="ZeroDivisionError"):
            await engine.wait_until_failed()
        with pytest.raises(Unavailable):
            await engine.info()


class Hanging(FakeStore):
    """Does not answer until it may: what a step looks like that hangs."""

    def __init__(self, kv_format) -> None:
        super().__init__(kv_format)
        self.may_answer = threading.Event()

    def lease(self, hashes):
        assert self.may_answer.wait(30)
        return super().lease(hashes)


async def test_an_engine_whose_step_hangs_is_not_up_until_it_goes_on():
    store = Hanging(SETTINGS.core().kv_format)
    async with (
        open_embedded_engine(replace(SETTINGS, max_step=0.05), store.connect) as engine,
        asyncio.TaskGroup() as group,
    ):
        await engine.info()
        answering = group.create_task(collect(engine, generation(prompt(40), max_tokens=2)))
        with pytest.raises(Unavailable, match="in one step"):
            await keep_asking(engine)
        store.may_answer.set()
        assert len(await answering) == 2
        await engine.stats()
        await engine.info()


async def keep_asking(engine) -> None:
    async with asyncio.timeout(10):
        while True:
            await engine.info()
            await asyncio.sleep(0)


async def test_answers_move_between_engines_through_a_node():
    request = generation(prompt(75), max_tokens=30, sampling=SEEDED)
    expected = run(make_core(), request)[0]
    store = FakeStore(SETTINGS.core().kv_format)
    async with open_embedded_engine(SETTINGS, store.connect) as first:
        head = await collect(first, replace(request, max_tokens=10))
    async with open_embedded_engine(SETTINGS, store.connect) as second:
        rest = replace(request, known_tokens=(*request.known_tokens, *head), max_tokens=20)
        assert head + await collect(second, rest) == expected
        stats = await second.stats()
    assert stats.node_connected
    assert stats.num_imported_blocks == 5


async def test_a_node_of_another_format_keeps_the_engine_from_starting():
    def refuse():
        raise Incompatible("another KV format")

    with pytest.raises(Incompatible):
        async with open_embedded_engine(SETTINGS, refuse):
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": find_model("scripted")}, "no weights"),
        ({"prefill_chunk_tokens": 600}, "prefill_chunk_tokens"),
        ({"max_model_tokens": 100_000}, "max_model_tokens"),
        ({"cache_tokens": 16}, "cache_tokens"),
        ({"max_batch": 0}, "max_batch"),
    ],
)
async def test_settings_that_can_not_work_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        async with open_embedded_engine(replace(SETTINGS, **change)):
            pass
