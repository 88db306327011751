"""vLLM as ``pdd engine`` runs it, over HTTP: what only a process of its own, or a real line, can show."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import uvicorn
from aiohttp import ClientSession

from pdd.cli.deploy.forking import ForkServers
from pdd.core.errors import Unavailable, WorkerFailed
from pdd.core.ids import WorkerId
from pdd.core.request import Sampling, TokenSpan
from pdd.core.topology import LOOPBACK, Address
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.engine.http.client import HttpEngineClient
from pdd.engine.http.wire_request import GENERATE_PATH, encode_generation
from pdd.plugins.vllm.middleware import DescribeEngine, Receive, Scope, Send
from tests.support.vllm_process import MODEL, VllmProcess, vllm_process
from tests.unit.engine.scripted_support import SEEDED, collect, generation, tokens_of

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(300)]
LONG = 8000


@pytest.fixture(scope="module")
async def vllm(forks: ForkServers) -> AsyncGenerator[VllmProcess]:
    async with vllm_process(forks) as process:
        yield process


@pytest.mark.parametrize(
    "sampling",
    [
        # The model's logits lie so close together that some draws are near ties, which two float32 forward passes may
        # decide either way; with these seeds there is none.
        SEEDED,
        Sampling(temperature=2.0, top_k=None, top_p=1.0, seed=2**63 - 1, choice=3),
        Sampling(temperature=0.004, top_k=None, top_p=0.99, seed=5),
        Sampling(temperature=0.0, top_k=None, top_p=1.0, seed=0),
    ],
    ids=["seeded", "hot", "next to 0", "greedy"],
)
async def test_it_draws_what_pdds_own_engine_draws(vllm: VllmProcess, sampling: Sampling):
    from pdd.engine.embedded.engine import EmbeddedSettings, open_embedded_engine

    asked = generation(sampling=sampling, max_tokens=40)
    settings = EmbeddedSettings(
        worker=WorkerId("ours"), model=find_model(MODEL), cache_tokens=1024, max_model_tokens=1024, max_batch=1
    )
    async with open_embedded_engine(settings) as engine, HttpEngineClient(WorkerId("theirs"), vllm.address) as client:
        assert tokens_of(await collect(client, asked)) == tokens_of(await collect(engine, asked))


async def test_a_seed_where_it_would_kill_vllm_is_refused(vllm: VllmProcess):
    body = encode_generation(generation(sampling=SEEDED), model=None)
    wrong = body.replace(b'"sampling_params":{', b'"sampling_params":{"seed":7,')
    assert wrong != body
    async with HttpEngineClient(WorkerId("e"), vllm.address) as client, ClientSession() as session:
        url, headers = f"http://{vllm.address}{GENERATE_PATH}", {"Content-Type": "application/json"}
        async with session.post(url, data=wrong, headers=headers) as response:
            assert b"kv_transfer_params.seed" in await response.read()
        assert len(tokens_of(await collect(client, generation(sampling=SEEDED)))) == 10


async def test_a_proxys_request_id_changes_nothing(vllm: VllmProcess):
    async with ClientSession(headers={"X-Request-Id": "same"}) as session:
        plain = HttpEngineClient(WorkerId("e"), vllm.address, session=session)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(collect(plain, generation(sampling=SEEDED, attempt=n))) for n in range(4)]
    assert len({tokens_of(task.result()) for task in asked}) == 1


async def test_a_core_that_is_held_up_is_waited_for_beyond_the_clients_patience(vllm: VllmProcess):
    core = core_of(vllm)
    async with HttpEngineClient(WorkerId("e"), vllm.address, idle_timeout=Seconds(8.0)) as client:
        spans = client.generate(generation(max_tokens=LONG))
        await anext(spans)
        core.suspend()
        asyncio.get_running_loop().call_later(10.0, core.resume)
        num_tokens = 0
        async with asyncio.timeout(60):
            while num_tokens < 500:  # more than what was under way
                num_tokens += len((await anext(spans)).tokens)
        await spans.aclose()


async def test_the_death_of_vllms_core_is_a_failed_worker_and_then_an_engine_that_is_not_up(forks: ForkServers):
    async with vllm_process(forks) as process, HttpEngineClient(WorkerId("e"), process.address) as client:
        spans = client.generate(generation(max_tokens=LONG))
        await anext(spans)
        waiting = client.generate(replace(generation(max_tokens=LONG), attempt=1))
        await anext(waiting)
        os.kill(core_of(process).pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            for stream in (spans, waiting):
                with pytest.raises(WorkerFailed):
                    await drain(stream)
            with pytest.raises(Unavailable):
                await client.info()
            with pytest.raises((Unavailable, WorkerFailed)):
                await collect(client, generation())
        await process.until_dead(30.0)


async def test_a_stop_in_good_order_does_not_pass_for_an_answer(forks: ForkServers):
    async with vllm_process(forks) as process, HttpEngineClient(WorkerId("e"), process.address) as client:
        spans = client.generate(generation(max_tokens=LONG))
        await anext(spans)
        os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(20):
            with pytest.raises(WorkerFailed):
                await drain(spans)
        await process.until_dead(20.0)


async def test_a_prefill_longer_than_the_clients_patience_is_waited_for():
    first = asyncio.Event()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await first.wait()
        event = b'data: {"choices": [{"index": 0, "token_ids": [1], "finish_reason": "length"}]}\n\n'
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with (
        served(DescribeEngine(app, keep_alive=Seconds(0.05))) as address,
        HttpEngineClient(WorkerId("e"), address, idle_timeout=Seconds(0.5)) as client,
    ):
        asyncio.get_running_loop().call_later(1.5, first.set)
        assert tokens_of(await collect(client, generation(max_tokens=1))) == (1,)


@asynccontextmanager
async def served(application: DescribeEngine) -> AsyncGenerator[Address]:
    """By the server that vLLM uses."""

    async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
        model = SimpleNamespace(
            served_model_name="m", max_model_len=1000, get_vocab_size=lambda: 1000, logits_processors=None
        )
        config = SimpleNamespace(model_config=model, kv_transfer_config=None)
        client = SimpleNamespace(errored=False, vllm_config=config)
        await application({**scope, "app": SimpleNamespace(state=SimpleNamespace(engine_client=client))}, receive, send)

    server = uvicorn.Server(uvicorn.Config(with_state, host=LOOPBACK, port=0, lifespan="off", log_level="error"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    try:
        yield Address(host=LOOPBACK, port=server.servers[0].sockets[0].getsockname()[1])
    finally:
        await server.shutdown()


def core_of(vllm: VllmProcess) -> psutil.Process:
    children = psutil.Process(vllm.pid).children(recursive=True)
    return next(child for child in children if "EngineCore" in " ".join(child.cmdline()))


async def drain(spans: AsyncGenerator[TokenSpan]) -> None:
    async for _ in spans:
        pass
