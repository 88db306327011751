"""Web pages at the front door: none is let in by default, those that are named are, and browsers are told so."""

import asyncio
import json

import pytest
from yarl import URL

from pdd.core.errors import Unavailable
from pdd.core.topology import TenantTable
from pdd.core.units import Bytes, Seconds
from pdd.router.api.admission import Limits
from tests.support.fake_service import FakeService, Step
from tests.support.front_door import MODEL, Door, front_door, saying

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

PAGE = "https://chat.example"
EVIL = "https://evil.example"
CHAT = "/v1/chat/completions"
QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
KEYS = [TenantTable(name="alice", api_key="ka")]


def service() -> FakeService:
    return FakeService(script=saying("hi"))


async def ask(door: Door, method: str = "POST", path: str = CHAT, body: object = QUESTION, **headers: str):
    """Status, headers and text."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = json.dumps(body).encode() if method == "POST" else None
    async with door.http.request(method, door.url + path, data=data, headers=named) as response:
        return response.status, response.headers, await response.text()


async def preflight(door: Door, origin: str, path: str = CHAT):
    asking = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization,content-type"}
    return await ask(door, "OPTIONS", path, Origin=origin, **asking)


async def test_a_page_can_not_post_to_a_router_without_keys_and_reaches_nothing():
    async with front_door(service()) as door:
        for path in (CHAT, "/v1/completions", "/nowhere"):
            # As a form or an image would: browsers ask nobody before they send these.
            status, headers, text = await ask(door, path=path, Origin=EVIL, Content_Type="text/plain")
            assert (status, json.loads(text)["error"]["code"]) == (403, "forbidden_origin")
            assert "--allow-origin" in text
            assert "Access-Control-Allow-Origin" not in headers
            assert headers["X-Request-Id"]
        for path in ("/v1/models", "/health", "/metrics"):
            assert (await ask(door, "GET", path, Origin="null"))[0] == 403
        assert (await preflight(door, EVIL))[0] == 403
        assert await door.metric('pdd_requests_total{outcome="refused",route="none"}') == 7
        assert (await ask(door))[0] == 200
    assert len(door.service.requests) == 1


async def test_a_page_can_not_come_under_a_host_name_of_its_own():
    async with front_door(service()) as door:
        port = URL(door.url).port
        for host in (f"evil.example:{port}", "evil.example", f"0.0.0.0:{port}"):
            for method, path in (("POST", CHAT), ("GET", "/health")):
                status, _, text = await ask(door, method, path, Host=host, Origin=f"http://{host}")
                assert (status, json.loads(text)["error"]["code"]) == (403, "forbidden_host")
                assert "--allow-host" in text
        for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}"):
            assert (await ask(door, Host=host))[0] == 200


async def test_hosts_that_are_named_are_let_in():
    async with front_door(service(), allowed_hosts=("gpu1.example",)) as door:
        assert (await ask(door, Host="gpu1.example:8000"))[0] == 200
        assert (await ask(door, Host="gpu2.example:8000"))[0] == 403


async def test_what_says_no_host_is_no_browser():
    async with front_door(service()) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(door.url).port)
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in await reader.readline()
        writer.close()


async def test_a_host_or_an_origin_that_is_no_text_is_refused():
    async with front_door(service()) as door:
        for headers in (b"Host: \xff", b"Host: localhost\r\nOrigin: \xff", b"Host: localhost\r\nHost: evil.example"):
            reader, writer = await asyncio.open_connection("127.0.0.1", URL(door.url).port)
            writer.write(b"GET /health HTTP/1.1\r\n" + headers + b"\r\n\r\n")
            assert (await reader.readline()).split()[1] in {b"403", b"400"}
            writer.close()


async def test_a_page_that_is_named_is_asked_for_and_let_in():
    async with front_door(service(), allowed_origins=(PAGE,)) as door:
        status, headers, text = await preflight(door, PAGE)
        assert (status, text) == (204, "")
        assert headers["Access-Control-Allow-Origin"] == PAGE
        assert headers["Access-Control-Allow-Headers"] == "authorization,content-type"
        assert headers["Access-Control-Allow-Methods"] == "GET, POST"
        assert (await preflight(door, EVIL))[0] == 403
        for body in (QUESTION, {**QUESTION, "stream": True}):
            status, headers, _ = await ask(door, body=body, Origin=PAGE)
            assert status == 200
            assert_readable_by(PAGE, headers)


def assert_readable_by(origin: str, headers) -> None:
    assert headers["Access-Control-Allow-Origin"] == origin
    assert headers["Vary"] == "Origin"
    assert "X-Request-Id" in headers["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Credentials" not in headers


async def test_a_page_that_is_named_may_read_errors_too():
    gone = FakeService(script=lambda _: [Step(error=Unavailable("gone", retry_after_s=Seconds(1)))])
    limits = Limits(max_model_tokens=256, max_body_bytes=Bytes(1000))
    async with front_door(gone, allowed_origins=(PAGE,), tenants=KEYS, limits=limits) as door:
        key = {"Authorization": "Bearer ka"}
        for expected, method, path, body, sent in (
            (401, "POST", CHAT, QUESTION, {}),
            (401, "GET", "/v1/models", None, {}),
            (400, "POST", CHAT, {**QUESTION, "n": 2}, key),
            (404, "POST", CHAT, {**QUESTION, "model": "gpt-9"}, key),
            (503, "POST", CHAT, QUESTION, key),
            (404, "GET", "/nowhere", None, {}),
            (405, "GET", CHAT, None, {}),
            (413, "POST", CHAT, "x" * 2000, key),
        ):
            status, headers, _ = await ask(door, method, path, body, Origin=PAGE, **sent)
            assert status == expected
            assert_readable_by(PAGE, headers)


async def test_with_keys_a_page_that_is_not_named_is_served_if_it_has_one_but_may_not_read():
    async with front_door(service(), allowed_origins=(PAGE,), tenants=KEYS) as door:
        status, headers, _ = await ask(door, Origin=EVIL, Authorization="Bearer ka")
        assert (status, headers["Vary"]) == (200, "Origin")
        assert "Access-Control-Allow-Origin" not in headers
        assert (await preflight(door, EVIL))[0] == 405
        assert (await ask(door, Origin=EVIL, Content_Type="text/plain"))[0] == 401
        assert (await ask(door, Host="api.example", Authorization="Bearer ka"))[0] == 200


async def test_without_named_origins_no_response_speaks_of_them():
    async with front_door(service(), tenants=KEYS) as door:
        for sent in ({}, {"Authorization": "Bearer ka"}):
            _, headers, _ = await ask(door, Origin=PAGE, **sent)
            assert not [name for name in headers if name == "Vary" or name.startswith("Access-Control")]
