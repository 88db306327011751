"""How requests are written: paths, model names with slashes, encodings, and text that is none."""

import asyncio
import json

import pytest
from yarl import URL

from pdd.core.topology import TenantTable
from tests.support.fake_service import FakeService
from tests.support.front_door import MODEL, front_door, saying

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


async def test_a_path_may_end_with_a_slash():
    async with front_door(FakeService(script=saying("x"))) as door:
        for path, body in (("/v1/chat/completions/", QUESTION), ("/v1/completions/", {"prompt": "hi"})):
            assert (await door.post(path, body))[0] == 200
        for path in ("/v1/models/", f"/v1/models/{MODEL}/", "/health/", "/metrics/"):
            async with door.http.get(door.url + path) as response:
                assert response.status == 200


async def test_a_models_name_may_have_slashes():
    async with front_door(FakeService(script=saying("")), model_name="org/model") as door:
        for path in ("/v1/models/org/model", "/v1/models/org%2Fmodel", "/v1/models/org/model/"):
            async with door.http.get(URL(door.url + path, encoded=True)) as response:
                assert (response.status, (await response.json())["id"]) == (200, "org/model")
        async with door.http.get(door.url + "/v1/models/model") as response:
            assert response.status == 404


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("//v1/completions", "/v1/completions"),
        ("/models", "/v1/models"),
        ("/v1/health", "/health"),
    ],
)
async def test_an_unknown_path_is_told_which_one_was_meant(path, meant):
    async with front_door(FakeService(script=saying("x"))) as door:
        status, refused, _ = await door.post(path, QUESTION)
    error = refused["error"]
    assert (status, error["code"]) == (404, "unknown_path")
    assert error["message"].startswith(f'no such path: "{path}"; it is {meant}: ')


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "text/plain", "application/json; charset=latin1"]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
async def test_a_body_is_utf_8_whatever_its_content_type_says(content_type, encoding):
    body = json.dumps({"prompt": "é漢😀"}, ensure_ascii=False).encode(encoding)
    async with front_door(FakeService(script=saying("x"))) as door:
        url, headers = door.url + "/v1/completions", {"Content-Type": content_type}
        async with door.http.post(url, data=body, headers=headers) as response:
            assert response.status == 200
    assert door.service.requests[0].prompt == tuple(door.tokenizer.encode("é漢😀").ids)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "HALF"}, "prompt"),
        ("/v1/completions", {"prompt": "x", "stop": ["HALF"]}, "stop[0]"),
        ("/v1/completions", {"prompt": "x", "cache_salt": "HALF"}, "cache_salt"),
        ("/v1/completions", {"prompt": "x", "model": "HALF"}, "model"),
        ("/v1/completions", {"prompt": "x", "user": "HALF"}, "user"),
        ("/v1/completions", {"prompt": "x", "HALF": 1}, None),
        ("/v1/chat/completions", {"messages": [{"role": "HALF", "content": "x"}]}, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "HALF"}]}, "messages[0].content"),
        ("/v1/chat/completions", {**QUESTION, "pdd": {"cache_salt": "HALF"}}, "pdd.cache_salt"),
    ],
)
async def test_half_a_surrogate_pair_is_a_wrong_request_wherever_it_is(path, body, param, caplog):
    raw = json.dumps(body).replace("HALF", "\\ud83d").encode()
    async with (
        front_door(FakeService(script=saying("x"))) as door,
        door.http.post(door.url + path, data=raw) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, param)
    assert "half a surrogate pair" in error["message"]
    assert caplog.records == []


async def test_a_name_in_a_path_or_header_that_is_no_text_is_no_fault_of_ours(caplog):
    async with front_door(FakeService(script=saying("x")), tenants=[TenantTable(name="a", api_key="ka")]) as door:
        for head, status in (
            (b"GET /v1/models/%ED%A0%BD HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka", b"404"),
            (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xed\xa0\xbd\xff", b"401"),
            (b"GET /health HTTP/1.1\r\nHost: \xed\xa0\xbd\r\nX-Request-Id: \xff\r\nOrigin: \xff", b"200"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", URL(door.url).port)
            writer.write(head + b"\r\n\r\n")
            assert (await reader.readline()).split()[1] == status
            writer.close()
    assert [record for record in caplog.records if record.exc_info] == []


async def test_head_asks_for_what_get_does_and_a_wrong_method_is_told_the_right_one():
    async with front_door(FakeService(script=saying("x"))) as door:
        for path in ("/v1/models", "/health"):
            async with door.http.head(door.url + path) as response:
                assert (response.status, await response.read()) == (200, b"")
        for method in ("HEAD", "OPTIONS", "DELETE"):
            async with door.http.request(method, door.url + "/v1/completions") as response:
                assert (response.status, response.headers["Allow"]) == (405, "POST")
