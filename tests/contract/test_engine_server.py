"""The engine server over real sockets: statuses, events, keep-alives, limits and aborts."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession

from pdd.core.errors import InvalidRequest
from pdd.core.ids import WorkerId
from pdd.core.request import GREEDY, Generation, TokenSpan
from pdd.core.topology import LOOPBACK
from pdd.core.units import Bytes, Seconds
from pdd.engine.base import EngineClient, EngineInfo
from pdd.engine.http.server import ServerLimits, serve_engine
from pdd.engine.noise import SAMPLING_VERSION
from pdd.engine.scripted.engine import Faults, Garbage, Script, ScriptedEngine, scripted_answer
from tests.unit.engine.scripted_support import FORMAT, wait_for_open

pytestmark = pytest.mark.anyio
GENERATE = "/inference/v1/generate"
INFO = EngineInfo(model="m", max_model_tokens=100, kv_format=None, sampling_version=None, node=None, instance="i")
FAST = {"prefill_tokens_per_s": 1e9, "token_interval": Seconds(0.0), "vocab_size": 1000}


def scripted(**settings: Any) -> ScriptedEngine:
    return ScriptedEngine(WorkerId("e"), kv_format=FORMAT, script=Script(**(FAST | settings)))


@asynccontextmanager
async def served(engine: EngineClient, **limits: Any) -> AsyncGenerator[ClientSession]:
    async with (
        serve_engine(engine, host=LOOPBACK, port=0, vocab_size=1000, limits=ServerLimits(**limits)) as address,
        ClientSession(base_url=f"http://{address}") as session,
    ):
        yield session


def body(**changes: Any) -> dict[str, Any]:
    return {
        "request_id": "r",
        "token_ids": [1, 2, 3],
        "sampling_params": {"max_tokens": 4, "temperature": 0.0},
        "stream": True,
    } | changes


def events_of(stream: bytes) -> list[Any]:
    data = [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line.startswith(b"data: ")]
    return [json.loads(event) if event != b"[DONE]" else "DONE" for event in data]


async def test_a_streamed_answer_is_events_of_token_ids_then_done():
    async with served(scripted(burst_tokens=2)) as session, session.post(GENERATE, json=body()) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        events = events_of(await response.read())
    answer = scripted_answer([1, 2, 3], 4, GREEDY, vocab_size=1000)
    assert events.pop() == "DONE"
    assert [choice["token_ids"] for event in events for choice in event["choices"]] == [
        [answer[0]],
        [answer[1], answer[2]],
        [answer[3]],
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "length"]
    assert {event["request_id"] for event in events} == {"r"}


async def test_a_whole_answer_is_one_object():
    async with served(scripted()) as session, session.post(GENERATE, json=body(stream=False)) as response:
        reply = await response.json()
    [choice] = reply["choices"]
    assert reply["request_id"] == "r"
    assert reply["kv_transfer_params"] is None
    assert choice["token_ids"] == list(scripted_answer([1, 2, 3], 4, GREEDY, vocab_size=1000))
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None


async def test_its_health_counts_what_it_has_not_let_go_of():
    engine = scripted(faults=Faults(hang_after_tokens=1))

    async def running(session: ClientSession) -> int:
        async with session.get("/health") as response:
            return (await response.json())["running"]

    async with served(engine) as session:
        assert await running(session) == 0
        response = await session.post(GENERATE, json=body())
        await response.content.readany()
        assert await running(session) == 1
        response.close()
        await wait_for_open(engine, 0)
        assert await running(session) == 0


async def test_it_describes_its_model_and_health():
    engine = scripted()
    async with served(engine) as session:
        async with session.get("/v1/models") as response:
            models = await response.json()
        assert models["data"][0]["id"] == "script"
        assert models["data"][0]["max_model_len"] == 131_072
        async with session.get("/pdd/v1/info") as response:
            info = await response.json()
        assert info == {
            "model": "script",
            "max_model_tokens": 131_072,
            "kv_format": FORMAT.description,
            "sampling_version": SAMPLING_VERSION,
            "node": None,
            "instance": "scripted-1",
        }
        async with session.get("/health") as response:
            assert response.status == 200
        engine.die()
        for path in ("/health", "/v1/models", "/pdd/v1/info"):
            async with session.get(path) as response:
                assert response.status == 503
                assert response.headers["Retry-After"] == "1"
                assert (await response.json())["error"]["type"] == "unavailable_error"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_refuses_to_begin_is_a_503_with_retry_after(stream: bool):
    engine = scripted(faults=Faults(unavailable=True))
    async with served(engine) as session, session.post(GENERATE, json=body(stream=stream)) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        assert "error" in await response.json()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_span_is_a_500(stream: bool):
    engine = scripted(faults=Faults(die_after_tokens=0))
    async with served(engine) as session, session.post(GENERATE, json=body(stream=stream)) as response:
        assert response.status == 500
        assert (await response.json())["error"]["code"] == "worker_failed"


async def test_a_failure_after_the_first_span_is_a_typed_event_and_no_done():
    engine = scripted(faults=Faults(die_after_tokens=2))
    async with served(engine) as session, session.post(GENERATE, json=body()) as response:
        assert response.status == 200
        events = events_of(await response.read())
    assert len(events) == 3
    assert events[-1]["error"]["type"] == "engine_error"
    assert events[-1]["error"]["status"] == 500


@pytest.mark.parametrize("garbage", list(Garbage))
async def test_no_garbage_of_an_engine_leaves_the_server_as_an_answer(garbage: Garbage):
    engine = scripted(faults=Faults(garbage=garbage, garbage_after_tokens=2))
    async with served(engine) as session:
        async with session.post(GENERATE, json=body()) as response:
            events = events_of(await response.read())
        assert "error" in events[-1]
        assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
        async with session.post(GENERATE, json=body(stream=False)) as response:
            assert response.status == 500


async def test_a_long_prefill_is_kept_alive_by_comments():
    engine = scripted(prefill_tokens_per_s=10.0)
    async with served(engine, keep_alive=Seconds(0.05)) as session, session.post(GENERATE, json=body()) as response:
        stream = await response.read()
    assert 2 <= stream.count(b": keep-alive\n\n") <= 6
    assert events_of(stream)[-1] == "DONE"


async def test_an_error_after_a_keep_alive_is_an_event_with_the_status_that_it_would_have_had():
    class Late:
        worker = WorkerId("late")

        async def info(self) -> EngineInfo:
            return INFO

        async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
            await asyncio.sleep(0.05)
            raise InvalidRequest("too late", param="token_ids")
            yield

    async with served(Late(), keep_alive=Seconds(0.01)) as session, session.post(GENERATE, json=body()) as response:
        assert response.status == 200
        [event] = events_of(await response.read())
    assert event["error"]["status"] == 400
    assert event["error"]["param"] == "token_ids"


async def test_an_unexpected_exception_is_logged_and_shows_no_traceback(caplog: pytest.LogCaptureFixture):
    class Broken:
        worker = WorkerId("broken")

        async def info(self) -> EngineInfo:
            return INFO

        async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
            raise ZeroDivisionError("secret detail")
            yield

    async with served(Broken()) as session:
        for stream in (True, False):
            async with session.post(GENERATE, json=body(stream=stream)) as response:
                assert response.status == 500
                assert "secret" not in await response.text()
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.ERROR]
    assert all(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1000]}, "token_ids[0]"),
        ({"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"max_tokens": 1, "top_p": 2}}, "sampling_params.top_p"),
        ({"sampling_params": {"max_tokens": 131_072}}, "token_ids"),
        ({"logit_bias": {}}, "logit_bias"),
    ],
)
async def test_a_bad_request_is_a_400_in_openais_format(changes: dict[str, Any], param: str):
    async with served(scripted()) as session, session.post(GENERATE, json=body(**changes)) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]


async def test_no_path_and_wrong_method_are_answered_in_json_too():
    async with served(scripted()) as session:
        async with session.get("/nowhere") as response:
            assert response.status == 404
            assert "/nowhere" in (await response.json())["error"]["message"]
        async with session.get(GENERATE) as response:
            assert response.status == 405
            assert "error" in await response.json()


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1"])
async def test_a_web_page_is_turned_away_before_anything_is_computed(origin: str):
    engine = scripted()
    async with served(engine) as session:
        headers = {"Origin": origin, "Content-Type": "text/plain"}
        async with session.post(GENERATE, data=json.dumps(body()), headers=headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (403, "forbidden_origin")
        async with session.get("/pdd/v1/info", headers=headers) as response:
            assert response.status == 403
        async with session.post(GENERATE, json=body()) as response:
            assert response.status == 200


async def test_a_body_over_the_limit_is_refused_with_the_limit():
    big = body(token_ids=[1] * 1000)
    async with (
        served(scripted(), max_body_bytes=Bytes(1000)) as session,
        session.post(GENERATE, json=big) as response,
    ):
        assert response.status == 413
        assert "1000 bytes" in (await response.json())["error"]["message"]


async def test_a_request_of_131000_tokens_fits():
    prompt = [index % 1000 for index in range(131_000)]
    request = body(token_ids=prompt, stream=False)
    async with (
        served(scripted(prefill_chunk_tokens=131_072)) as session,
        session.post(GENERATE, json=request) as response,
    ):
        reply = await response.json()
    assert tuple(reply["choices"][0]["token_ids"]) == scripted_answer(prompt, 4, GREEDY, vocab_size=1000)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("faults", [Faults(hang_after_tokens=0), Faults(hang_after_tokens=2)])
async def test_a_client_that_leaves_aborts_the_generation_at_once(stream: bool, faults: Faults):
    engine = scripted(faults=faults)
    async with served(engine) as session:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(read_all(session, body(stream=stream)))
            await wait_for_open(engine, 1)
            task.cancel()
        await wait_for_open(engine, 0)


async def read_all(session: ClientSession, request: dict[str, Any]) -> bytes:
    async with session.post(GENERATE, json=request) as response:
        return await response.read()


async def test_a_reader_that_stops_reading_can_still_leave():
    engine = scripted()
    long = body(sampling_params={"max_tokens": 100_000, "temperature": 0.0})
    async with served(engine) as session:
        async with session.post(GENERATE, json=long) as response:
            await response.content.readany()
            assert engine.num_open == 1
        await wait_for_open(engine, 0)


async def test_closing_the_server_ends_what_runs():
    engine = scripted(faults=Faults(hang_after_tokens=1))
    async with served(engine, shutdown=Seconds(0.05)) as session:
        response = await session.post(GENERATE, json=body())
        assert engine.num_open == 1
        response.close()
    assert engine.num_open == 0
