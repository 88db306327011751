"""Clients that are not ours, against a router on vLLM engines: OpenAI's own package, and vLLM's serving benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdd.cli.deploy.forking import ForkServers
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.engine.checkpoint import checkpoint_folder
from tests.support.live import Live, live, packaged_topology, with_policy
from tests.support.vllm_forks import run_forked

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(240)]

MODEL = "tiny-random-32"
MESSAGES = [{"role": "user", "content": "Where does the ferry go, and who is on it?"}]
PROMPTS, CONCURRENCY, PROMPT_TOKENS, ANSWER_TOKENS = 32, 4, 256, 48


async def test_openais_client_and_vllms_benchmark_are_served(forks: ForkServers, tmp_path: Path):
    # The line is slow and the threshold low enough that what isn't pinned relays, too.
    topology = with_policy(packaged_topology("vllm-tiny", rate=4_000_000), relay_threshold_s=Seconds(0.02))
    async with live(topology, forks=forks) as deployment:
        await deployment.until_healthy()
        async with openai.AsyncOpenAI(base_url=deployment.url + "/v1", api_key="none", max_retries=0) as client:
            await chat(client)
            await complete(client)
        await deployment.until_clean()  # a request counts when its transfer is through, too
        served = await counted(deployment)
        for backend in ("openai", "openai-chat"):
            await replay(deployment, forks, backend, tmp_path)
            await deployment.until_clean()
            now = await counted(deployment)
            added = {route: now.get(route, 0) - served.get(route, 0) for route in now}
            print(backend, added)
            assert sum(added.values()) == PROMPTS
            assert added["relay"] > 0, added
            served = now


async def chat(client: openai.AsyncOpenAI) -> None:
    """Whole and streamed; the same seed says the same; an answer can be sent back as the object that it came as."""
    sampling = {"temperature": 0.8, "top_p": 0.9, "seed": 5}
    for steering in ({}, {"route": "direct"}, {"route": "relay"}):
        asked = {"model": MODEL, "max_completion_tokens": 24, "extra_body": {"pdd": steering}, **sampling}
        whole = await client.chat.completions.create(messages=MESSAGES, **asked)
        assert whole.choices[0].message.content
        assert whole.usage is not None
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        stream = await client.chat.completions.create(
            messages=MESSAGES, **asked, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert streamed == whole.choices[0].message.content
        assert chunks[-1].usage == whole.usage
        following = [*MESSAGES, whole.choices[0].message, {"role": "user", "content": "And then?"}]
        second = await client.chat.completions.create(messages=following, **asked)
        assert second.usage is not None
        assert second.usage.prompt_tokens > whole.usage.total_tokens


async def complete(client: openai.AsyncOpenAI) -> None:
    """Text and token IDs in; streamed equals whole."""
    for prompt in ("The ferry ", list(range(100, 140))):
        asked = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "temperature": 0}
        whole = await client.completions.create(**asked)
        stream = await client.completions.create(**asked, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
        assert whole.choices[0].finish_reason in {"length", "stop"}


async def replay(deployment: Live, forks: ForkServers, backend: str, folder: Path) -> None:
    """vLLM's serving benchmark with its random prompts; every request of it must be served, in full."""
    found = folder / f"{backend}.json"
    tokenizer = checkpoint_folder(find_model(MODEL), folder)
    flags = {
        "backend": backend,
        "base-url": deployment.url,
        "endpoint": "/v1/chat/completions" if backend == "openai-chat" else "/v1/completions",
        "model": MODEL,
        "tokenizer": str(tokenizer),
        "dataset-name": "random",
        "random-input-len": PROMPT_TOKENS,
        "random-output-len": ANSWER_TOKENS,
        "num-prompts": PROMPTS,
        "max-concurrency": CONCURRENCY,
        "temperature": 0,
        "repetition-penalty": 1.0,
        "presence-penalty": 0.0,
        "frequency-penalty": 0.0,
        "min-p": 0.0,
        "result-dir": str(folder),
        "result-filename": found.name,
    }
    arguments = [
        "--save-result",
        "--ignore-eos",
        "--disable-tqdm",
        *(f"--{name}={value}" for name, value in flags.items()),
    ]
    await run_forked(forks, "tests.support.vllm_benchmark", *arguments, seconds=150)
    result = json.loads(found.read_text())
    print(msgspec.json.encode({name: value for name, value in result.items() if "_ms" in name or "total" in name}))
    assert (result["completed"], result["failed"]) == (PROMPTS, 0)
    assert result["total_output_tokens"] == PROMPTS * ANSWER_TOKENS


async def counted(deployment: Live) -> dict[str, float]:
    """How many requests the router has completed, by route."""
    async with deployment.http.get(f"{deployment.url}/metrics") as reply:
        text = await reply.text()
    return {
        sample.labels["route"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "pdd_requests_total" and sample.labels["outcome"] == "completed"
    }
