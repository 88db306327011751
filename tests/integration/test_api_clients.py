"""What clients send by default, as it was recorded from them: each of it is served."""

import json
from pathlib import Path

import pytest

from pdd.core.request import FinishReason
from pdd.router.api.admission import Limits
from tests.support.fake_service import FakeService
from tests.support.front_door import MODEL, front_door, parse_events, saying

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

RECORDED = sorted((Path(__file__).parents[1] / "data" / "clients").glob("*.json"))
CLIENTS = {"openai-python", "openai-node", "litellm", "langchain-openai", "llama-index-llms-openai", "guidellm"}
CLIENTS |= {"llama-index-llms-openai-like", "ai-sdk-openai", "ai-sdk-openai-compatible"}
LIMITS = Limits(max_model_tokens=8192)


def test_there_are_recordings_of_every_client_and_each_says_of_which_version():
    assert {path.stem.rpartition("-")[0] for path in RECORDED} == CLIENTS
    for path in RECORDED:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        assert recorded["version"] == path.stem.rpartition("-")[2]
        posted = [request for request in recorded["requests"] if request["method"] == "POST"]
        assert {bool(request["body"].get("stream")) for request in posted} >= {True}
        assert {request["path"] for request in posted} == {"/v1/chat/completions", "/v1/completions"}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_every_recorded_request_is_answered_as_it_asks(path):
    recorded = json.loads(path.read_text(encoding="utf-8"))
    service = FakeService(script=saying("hi", finish=FinishReason.STOP))
    async with front_door(service, limits=LIMITS) as door:
        for request in recorded["requests"]:
            # A client that knows OpenAI's models only takes no other name.
            body = {**request["body"], "model": MODEL} if "body" in request else None
            url, headers = door.url + request["path"], recorded["headers"]
            async with door.http.request(request["method"], url, json=body, headers=headers) as response:
                text = await response.text()
                assert response.status == 200, (request["call"], text)
                assert response.content_type == (
                    "text/event-stream" if body and body.get("stream") else "application/json"
                )
            if body and body.get("stream"):
                check_stream(body, parse_events(text))


def check_stream(body: dict, events: list) -> None:
    *chunks, done = events
    assert done == "[DONE]"
    asked = body.get("stream_options", {})
    if asked.get("include_usage"):
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] > 0
    told = [chunk["usage"] is not None for chunk in chunks[:-1] if "usage" in chunk]
    assert all(told) if asked.get("continuous_usage_stats") else not any(told)
