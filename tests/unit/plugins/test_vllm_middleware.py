"""What stands between the router and vLLM's server, around an application that is none of vLLM's."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pdd.core.errors import WorkerFailed
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.engine.http.sse import DONE, KEEP_ALIVE, encode_event
from pdd.engine.http.wire_reply import decode_event, decode_info
from pdd.engine.http.wire_request import GENERATE_PATH, encode_generation
from pdd.engine.noise import SAMPLING_VERSION
from pdd.plugins.vllm.middleware import AsgiApp, DescribeEngine, Message, Receive, Scope, Send
from pdd.plugins.vllm.settings import SAMPLING_PROCESSOR
from tests.unit.engine.scripted_support import SEEDED, generation

pytestmark = pytest.mark.anyio
EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Server:
    """What vLLM keeps in its application's state."""

    def __init__(
        self, *, connector: dict[str, Any] | None = None, processors: Sequence[str] | None = None, errored: bool = False
    ) -> None:
        model = SimpleNamespace(
            model="tiny-random-32",
            served_model_name="m",
            max_model_len=100,
            logits_processors=processors,
            get_vocab_size=lambda: 1000,
        )
        transfer = None if connector is None else SimpleNamespace(kv_connector_extra_config=connector)
        config = SimpleNamespace(model_config=model, kv_transfer_config=transfer)
        self.state = SimpleNamespace(engine_client=SimpleNamespace(errored=errored, vllm_config=config))


class Exchange:
    """One request and what was answered to it."""

    def __init__(self, *received: bytes, path: str = GENERATE_PATH, server: Server | None = None) -> None:
        self.scope = {"type": "http", "method": "POST", "path": path, "app": server or Server()}
        self._received = list(received)
        self.sent: list[Message] = []
        self.arrived = asyncio.Event()

    async def receive(self) -> Message:
        if not self._received:
            return {"type": "http.disconnect"}
        piece = self._received.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._received)}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.arrived.set()

    async def sent_first(self, body: bytes) -> None:
        while body not in [message.get("body") for message in self.sent]:
            self.arrived.clear()
            await self.arrived.wait()

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def unreachable(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AssertionError("vLLM's server must not see this")


def routers(**changes: Any) -> bytes:
    return json.dumps(json.loads(encode_generation(generation(sampling=SEEDED), model=None)) | changes).encode()


def answers(*pieces: bytes, wait: Callable[[], Awaitable[None]] | None = None, headers: Any = EVENT_STREAM) -> AsgiApp:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if wait is not None:
            await wait()
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


async def described(server: Server, middleware: DescribeEngine | None = None) -> Exchange:
    asked = Exchange(path="/pdd/v1/info", server=server)
    asked.scope["method"] = "GET"
    await (middleware or DescribeEngine(unreachable))(asked.scope, asked.receive, asked.send)
    return asked


async def test_it_describes_the_engine():
    info = decode_info((await described(Server())).body)
    assert (info.model, info.max_model_tokens) == ("m", 100)
    assert (info.kv_format, info.sampling_version, info.node) == (None, None, None), "it has none of ours"


async def test_it_says_what_its_connector_exchanges_and_how_its_processor_draws():
    connector = {"node_socket": "/s", "block_tokens": 64, "node": "node-md"}
    server = Server(connector=connector, processors=["theirs", SAMPLING_PROCESSOR])
    info = decode_info((await described(server)).body)
    assert info.kv_format == find_model("tiny-random-32").kv_format(64).description
    assert (info.sampling_version, info.node) == (SAMPLING_VERSION, "node-md")


async def test_each_process_is_another_instance_and_stays_it():
    first, second = DescribeEngine(unreachable), DescribeEngine(unreachable)
    told = [decode_info((await described(Server(), each)).body).instance for each in (first, first, second)]
    assert told[0] == told[1] != told[2]


async def test_an_engine_whose_core_has_died_is_unavailable():
    asked = await described(Server(errored=True))
    assert asked.status == 503
    assert json.loads(asked.body)["error"]["type"] == "unavailable_error"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1000]}, "token_ids[0]"),
        ({"model": "other"}, "model"),
        ({"sampling_params": {"max_tokens": 100, "temperature": 0.8, "seed": 1}}, "token_ids"),
        ({"kv_transfer_params": {"num_prompt_tokens": 22}}, "kv_transfer_params.num_prompt_tokens"),
        ({"kv_transfer_params": {"num_prompt_tokens": "1"}}, "kv_transfer_params.num_prompt_tokens"),
        ({"features": {}}, "features"),
    ],
)
async def test_what_the_router_may_not_ask_is_refused_by_name_before_vllm_sees_it(changes: dict[str, Any], param: str):
    asked = Exchange(routers(**changes))
    await DescribeEngine(unreachable)(asked.scope, asked.receive, asked.send)
    assert asked.status in (400, 404)
    assert json.loads(asked.body)["error"]["param"] == param


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"token_ids": []}', routers(kv_transfer_params={"do_remote_decode": True}, token_ids=[5000])]
)
async def test_requests_of_others_reach_vllm_as_they_came(body: bytes):
    seen: list[Message] = []

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        seen.extend([await receive(), await receive()])

    asked = Exchange(body[:5], body[5:])
    await DescribeEngine(app)(asked.scope, asked.receive, asked.send)
    assert seen == [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]


async def test_other_paths_are_passed_on_untouched():
    seen: list[tuple[Any, ...]] = []

    async def app(*arguments: Any) -> None:
        seen.append(arguments)

    asked = Exchange(path="/v1/models")
    await DescribeEngine(app)(asked.scope, asked.receive, asked.send)
    assert seen == [(asked.scope, asked.receive, asked.send)]


async def test_a_client_that_leaves_while_it_asks_costs_vllm_nothing():
    asked = Exchange()
    await DescribeEngine(unreachable)(asked.scope, asked.receive, asked.send)
    assert asked.sent == []


async def test_a_stream_that_says_nothing_is_kept_alive_by_comments():
    asked = Exchange(routers())
    app = answers(b"data: 1\n\n", wait=lambda: asked.sent_first(KEEP_ALIVE))
    async with asyncio.timeout(5):
        await DescribeEngine(app, keep_alive=Seconds(0.01))(asked.scope, asked.receive, asked.send)
    assert asked.body.startswith(KEEP_ALIVE)
    assert asked.body.endswith(b"data: 1\n\n")


@pytest.mark.parametrize("pieces", [(), (b"data: 1\n\n",)], ids=["before any span", "after one"])
async def test_a_stream_whose_engine_has_ended_is_ended_with_a_reason(pieces: tuple[bytes, ...]):
    server, cancelled = Server(), asyncio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        server.state.engine_client.errored = True
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    asked = Exchange(routers(), server=server)
    async with asyncio.timeout(5):
        await DescribeEngine(app, keep_alive=Seconds(0.01))(asked.scope, asked.receive, asked.send)
    assert cancelled.is_set()
    assert asked.sent[-1]["more_body"] is False
    assert [message["body"] for message in asked.sent[1:-1]] == list(pieces)
    with pytest.raises(WorkerFailed, match="has ended"):
        decode_event(asked.sent[-1]["body"].removeprefix(b"data: "), next_position=0)


async def test_nothing_is_said_before_the_headers_nor_in_what_is_no_stream():
    async def quiet(ticks: int = 20) -> None:
        for _ in range(ticks):
            await asyncio.sleep(0.002)

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await quiet()
        await answers(b"{}", wait=quiet, headers=[(b"content-type", b"application/json")])(_scope, _receive, send)

    asked = Exchange(routers(stream=False))
    await DescribeEngine(app, keep_alive=Seconds(0.005))(asked.scope, asked.receive, asked.send)
    assert asked.body == b"{}"


async def test_the_end_of_a_stream_is_one_message():
    asked = Exchange(routers())
    await DescribeEngine(answers(b"data: 1\n\n", encode_event(DONE)))(asked.scope, asked.receive, asked.send)
    assert [message.get("body") for message in asked.sent[1:]] == [b"data: 1\n\n", b"data: [DONE]\n\n"]
    assert [message["more_body"] for message in asked.sent[1:]] == [True, False]
