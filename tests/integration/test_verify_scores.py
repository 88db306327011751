"""Where ``pdd verify`` gets an engine's scores from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from pdd.cli.topology.file import load_topology
from pdd.cli.verify.scores import EmbeddedScores, VllmScores, open_scores
from pdd.core.errors import ConfigError, WorkerFailed
from pdd.core.ids import Salt
from pdd.core.request import GREEDY, Sampling
from pdd.core.topology import LOOPBACK, Address
from pdd.engine.noise import choose_token
from tests.support.embedded import generation, make_core, prompt, run

SALT = Salt("s")


@asynccontextmanager
async def scores_of(handler: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncGenerator[VllmScores]:
    app = web.Application()
    app.router.add_post("/inference/v1/generate", handler)
    async with TestServer(app, host=LOOPBACK) as server, ClientSession() as session:
        yield VllmScores(session, Address(host=LOOPBACK, port=server.port or 0), vocab_size=2)


@pytest.mark.anyio
async def test_a_vllm_server_is_asked_for_one_greedy_token_and_all_scores():
    bodies: list[dict[str, object]] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        top = [{"token_id": 1, "logprob": -0.25}, {"token_id": 0, "logprob": -1.5}]
        return web.json_response({"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]})

    async with scores_of(answer) as scores:
        assert (await scores.logits_after((5, 6), SALT)).tolist() == [-1.5, -0.25]
    (body,) = bodies
    assert (body["token_ids"], body["cache_salt"]) == ([5, 6], "s")
    assert body["sampling_params"] == {
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": -1,
        "ignore_eos": True,
        "detokenize": False,
    }


@pytest.mark.anyio
async def test_a_server_that_refuses_is_quoted():
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "greater than max allowed: 20"}}, status=400)

    async with scores_of(refuse) as scores:
        with pytest.raises(WorkerFailed, match=r"tells no scores: 400 .*greater than max allowed: 20"):
            await scores.logits_after((5, 6), SALT)


@pytest.mark.anyio
async def test_a_server_that_is_gone_is_an_error_of_the_engine():
    async with ClientSession() as session:
        scores = VllmScores(session, Address(host=LOOPBACK, port=1), vocab_size=2)
        with pytest.raises(WorkerFailed, match="tells no scores"):
            await scores.logits_after((5, 6), SALT)


@pytest.mark.anyio
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8, top_k=50, top_p=0.95, seed=9)])
async def test_embedded_scores_draw_the_tokens_that_the_engine_draws(sampling: Sampling):
    known = prompt(40)
    (tokens,) = run(make_core(), generation(known, max_tokens=6, sampling=sampling))
    scores = EmbeddedScores(load_topology("tiny"))
    drawn = [
        choose_token(await scores.logits_after((*known, *tokens[:position]), SALT), sampling, position=position)
        for position in range(6)
    ]
    assert drawn == tokens


@pytest.mark.anyio
async def test_the_kind_of_main_decode_says_where_scores_come_from():
    async with open_scores(load_topology("tiny")) as scores:
        assert isinstance(scores, EmbeddedScores)
    async with open_scores(load_topology("mixed-tiny")) as scores:
        assert isinstance(scores, VllmScores)
    with pytest.raises(ConfigError, match="kind scripted has no scores"):
        async with open_scores(load_topology("scripted")):
            pass
