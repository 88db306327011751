"""Text as clients see it: SmolLM2 in real processes, led to say U+FFFD again and again."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.support.live import Live, live, packaged_topology

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.real_model, pytest.mark.timeout(300)]

ODD = "\ufffd"
REQUEST = {
    "model": "smollm2-135m-instruct",
    "prompt": ("line: " + ODD * 300 + "\n") * 3 + "line: " + ODD * 10,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
async def deployment() -> AsyncGenerator[Live]:
    async with live(packaged_topology("default")) as running:
        yield running


async def complete(deployment: Live, **fields: object) -> str:
    """The body of a reply."""
    url = f"{deployment.url}/v1/completions"
    async with deployment.http.post(url, json=REQUEST | fields, timeout=240) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.text()


def chunks_of(body: str) -> list[dict[str, Any]]:
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")]
    return [chunk for chunk in map(json.loads, events) if chunk["choices"]]


async def test_each_token_is_shown_when_it_comes(deployment):
    chunks = chunks_of(await complete(deployment, max_tokens=280, stream=True, pdd={"trace": True}))
    assert sum(len(chunk["pdd"]["token_ids"]) for chunk in chunks) == 280
    for chunk in chunks:
        assert chunk["choices"][0]["text"] == ODD * len(chunk["pdd"]["token_ids"])


async def test_a_stop_string_ends_the_answer_at_its_last_token(deployment):
    answer = json.loads(await complete(deployment, max_tokens=60, stop=[ODD * 5]))
    assert answer["usage"]["completion_tokens"] == 5
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "stop")
