"""vLLM's ``--middleware pdd.plugins.vllm.middleware.DescribeEngine``: what the router needs that vLLM's server does not
say.

- ``GET /pdd/v1/info`` describes the engine and is the router's health check; 503 once vLLM's core has died.
- The router's generations are held to the same rules, in the same words, as at any other engine: vLLM would cut an answer at
  the context's end without a word, and its refusals name neither field nor limit.
- Their streams are kept alive by comments, since vLLM sends nothing during a prefill; and ended when its core has ended,
  since on SIGTERM vLLM stops its core and then waits for ever for streams that get nothing more.

Requests of others (those without ``kv_transfer_params.num_prompt_tokens``) pass as they are. Imports no vLLM: what it
asks of vLLM's server it finds in the application's state.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

import msgspec

from pdd.core.errors import PddError, Unavailable, WorkerFailed
from pdd.core.units import Seconds
from pdd.engine.base import RETRY_AFTER, EngineInfo
from pdd.engine.http.errors import reply_to
from pdd.engine.http.sse import DONE, KEEP_ALIVE, encode_event
from pdd.engine.http.wire_reply import INFO_PATH, encode_info
from pdd.engine.http.wire_request import GENERATE_PATH, decode_body, read_generation
from pdd.engine.noise import SAMPLING_VERSION
from pdd.plugins.vllm.settings import SAMPLING_PROCESSOR, ConnectorSettings, read_settings

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEEP_ALIVE_INTERVAL = Seconds(5.0)
_LOOK_INTERVAL = Seconds(1.0)
"""How often it is looked whether the engine of a stream still lives."""
_LAST_EVENT = encode_event(DONE)


class _Transfer(msgspec.Struct):
    num_prompt_tokens: object = None


class _Asked(msgspec.Struct):
    """As much of a request as tells whose it is."""

    kv_transfer_params: _Transfer | None = None


_ASKED_DECODER = msgspec.json.Decoder(_Asked)


class EngineClient(Protocol):
    """The part of vLLM's that is read here. ``errored``: its core has died, or was stopped."""

    errored: bool
    vllm_config: Any


class ModelConfig(Protocol):
    """The part of vLLM's that is read here."""

    served_model_name: str
    max_model_len: int
    logits_processors: Sequence[object] | None

    def get_vocab_size(self) -> int: ...


class DescribeEngine:
    """An ASGI middleware; vLLM makes it with the application that it wraps."""

    def __init__(self, app: AsgiApp, *, keep_alive: Seconds = _KEEP_ALIVE_INTERVAL) -> None:
        self._app = app
        self._keep_alive = keep_alive
        self._instance = secrets.token_hex(8)
        self._connector: ConnectorSettings | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"], scope.get("method"), scope.get("path"):
            case "http", "GET", path if path == INFO_PATH:
                await self._describe(scope, send)
            case "http", "POST", path if path == GENERATE_PATH:
                await self._generate(scope, receive, send)
            case _:
                await self._app(scope, receive, send)

    async def _describe(self, scope: Scope, send: Send) -> None:
        try:
            info = self._info(scope)
        except PddError as error:
            await _refuse(send, error)
        else:
            await _respond(send, status=200, body=encode_info(info))

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        try:
            if _is_the_routers(body):
                read_generation(decode_body(body), self._info(scope), vocab_size=_config_of(scope).get_vocab_size())
        except PddError as error:
            await _refuse(send, error)
            return
        stream = _PatientStream(send, self._keep_alive, is_alive=lambda: not _engine_of(scope).errored)
        async with asyncio.TaskGroup() as tasks:
            answering = tasks.create_task(self._answer(scope, _Replay(body, receive), stream.send))
            keeper = tasks.create_task(stream.keep_alive(give_up=answering.cancel))
            answering.add_done_callback(lambda _: keeper.cancel())

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def _info(self, scope: Scope) -> EngineInfo:
        """Raises Unavailable when vLLM's core has died: its server ends soon after."""
        if _engine_of(scope).errored:
            raise Unavailable("vLLM's engine core has died; its log says why", retry_after_s=RETRY_AFTER)
        config, connector = _config_of(scope), self._connector_of(scope)
        draws_as_we_do = SAMPLING_PROCESSOR in map(str, config.logits_processors or ())
        return EngineInfo(
            model=config.served_model_name,
            max_model_tokens=config.max_model_len,
            kv_format=None if connector is None else connector.kv_format.description,
            sampling_version=SAMPLING_VERSION if draws_as_we_do else None,
            node=None if connector is None else connector.node,
            instance=self._instance,
        )

    def _connector_of(self, scope: Scope) -> ConnectorSettings | None:
        """None: this vLLM exchanges no KV. Read once: a model's format is in its files."""
        config = _engine_of(scope).vllm_config
        if self._connector is None and config.kv_transfer_config is not None:
            self._connector = read_settings(config)
        return self._connector


class _Replay:
    """A body that was read once, for who reads it next; then whatever the client sends (that it leaves)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}


class _PatientStream:
    """Passes a response on; while it is a stream that says nothing, it says that the engine lives, or that
    it doesn't.
    """

    def __init__(self, send: Send, interval: Seconds, *, is_alive: Callable[[], bool]) -> None:
        self._send = send
        self._interval = interval
        self._is_alive = is_alive
        self._turn = (
            asyncio.Lock()
        )  # a write may have to wait for a slow reader, and messages must not overtake each other
        self._streaming = False
        self._held = b""
        self._spoke_at = _now()

    async def send(self, message: Message) -> None:
        async with self._turn:
            if message["type"] == "http.response.start":
                self._streaming = _is_event_stream(message)
            elif message.get("body", b"") == _LAST_EVENT and message.get("more_body", False):
                # Kept for the end, which follows at once: a reader that finds both together keeps the connection.
                self._held = _LAST_EVENT
                return
            elif not message.get("more_body", False):
                self._streaming = False
                message = {**message, "body": self._held + message.get("body", b"")}
            await self._speak(message)

    async def keep_alive(self, *, give_up: Callable[[], object]) -> None:
        """Until it is cancelled, or has ended the stream of a dead engine: ``give_up`` is called then.

        vLLM's messages are whole events, so what is said here fits between any two.
        """
        while True:
            await asyncio.sleep(min(self._interval, _LOOK_INTERVAL))
            async with self._turn:
                if not self._streaming:
                    continue
                if not self._is_alive():
                    break
                if _now() - self._spoke_at >= self._interval:
                    await self._speak({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
        ended = encode_event(reply_to(WorkerFailed("vLLM's engine core has ended; its log says why")).body)
        await self.send({"type": "http.response.body", "body": ended, "more_body": False})
        give_up()

    async def _speak(self, message: Message) -> None:
        await self._send(message)
        self._spoke_at = _now()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_the_routers(body: bytes) -> bool:
    try:
        asked = _ASKED_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return asked.kv_transfer_params is not None and asked.kv_transfer_params.num_prompt_tokens is not None


def _engine_of(scope: Scope) -> EngineClient:
    return scope["app"].state.engine_client


def _config_of(scope: Scope) -> ModelConfig:
    return _engine_of(scope).vllm_config.model_config


def _is_event_stream(start: Message) -> bool:
    headers: dict[bytes, bytes] = {name.lower(): value for name, value in start.get("headers", ())}
    return headers.get(b"content-type", b"").startswith(b"text/event-stream")


async def _read_body(receive: Receive) -> bytes | None:
    """None: the client left."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


async def _refuse(send: Send, error: PddError) -> None:
    reply = reply_to(error)
    await _respond(send, status=reply.status, body=reply.body, headers=reply.headers)


async def _respond(send: Send, *, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body))} | (headers or {})
    encoded = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})
