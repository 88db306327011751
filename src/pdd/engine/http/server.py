"""Serves any in-process engine over vLLM's token-level HTTP interface.

Response headers go out with the first span, so that whatever goes wrong before it has a proper status; a prefill that
takes longer than ``keep_alive_s`` makes them go out earlier, with a comment, so that the other end can tell a long
prefill from a dead line. An error after the headers is a typed event, then the stream ends without ``[DONE]``. A client
that leaves cancels its handler, and that closes the engine's generator: nothing is generated for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import ClientConnectionResetError, web

from pdd.core.errors import InvalidRequest, PddError, WorkerFailed
from pdd.core.request import Generation, TokenSpan
from pdd.core.topology import Address
from pdd.core.units import Bytes, Seconds
from pdd.engine.base import EngineClient
from pdd.engine.http import wire_reply, wire_request
from pdd.engine.http.contract import SpanContract
from pdd.engine.http.errors import ErrorReply, refusal_reply, reply_to
from pdd.engine.http.sse import DONE, KEEP_ALIVE, encode_event
from pdd.transport.http_bodies import read_body
from pdd.transport.http_serving import serve_http

_logger = logging.getLogger(__name__)
_NO_PAGES = "an engine takes no requests of web pages; the router does, of those that are named"
_MAX_SPANS_AHEAD = 64
"""How far an engine may run ahead of a slow reader; beyond it the engine's generator waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """``max_body_bytes`` holds a request of a million tokens."""

    max_body_bytes: Bytes = Bytes(16 * 1024 * 1024)
    body_timeout: Seconds = Seconds(30.0)
    keep_alive: Seconds = Seconds(5.0)
    """How long a stream may be silent before a comment is sent."""
    shutdown: Seconds = Seconds(1.0)
    """How long running answers may go on after the server is asked to stop."""


@asynccontextmanager
async def serve_engine(
    engine: EngineClient, *, host: str, port: int, vocab_size: int, limits: ServerLimits | None = None
) -> AsyncGenerator[Address]:
    """Listens while the context is open; yields where (``port`` 0 takes a free one).

    Raises:
        OSError: the address can't be bound.
    """
    limits = limits or ServerLimits()
    application = engine_application(engine, vocab_size=vocab_size, limits=limits)
    async with serve_http(application, host=host, port=port, grace=limits.shutdown) as address:
        yield address


def engine_application(engine: EngineClient, *, vocab_size: int, limits: ServerLimits) -> web.Application:
    """The HTTP application; ``serve_engine`` is what runs it rightly."""
    handlers = _Handlers(engine, vocab_size, limits)
    application = web.Application(client_max_size=limits.max_body_bytes, middlewares=[_errors_to_replies])
    application.router.add_post(wire_request.GENERATE_PATH, handlers.generate)
    application.router.add_get(wire_reply.HEALTH_PATH, handlers.health)
    application.router.add_get(wire_reply.MODELS_PATH, handlers.models)
    application.router.add_get(wire_reply.INFO_PATH, handlers.info)
    return application


class _Handlers:
    def __init__(self, engine: EngineClient, vocab_size: int, limits: ServerLimits) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._limits = limits
        self._num_running = 0

    async def generate(self, request: web.Request) -> web.StreamResponse:
        limits = self._limits
        plain = await read_body(request, limit=limits.max_body_bytes, timeout=limits.body_timeout)
        body = wire_request.decode_body(plain)
        generation = wire_request.read_generation(body, await self._engine.info(), vocab_size=self._vocab_size)
        self._num_running += 1
        try:
            if body.stream:
                return await self._stream(request, body.request_id, generation)
            return _json(await self._collect(body.request_id, generation))
        finally:
            self._num_running -= 1

    async def health(self, _request: web.Request) -> web.Response:
        await self._engine.info()
        return _json(wire_reply.encode_health(num_running=self._num_running))

    async def models(self, _request: web.Request) -> web.Response:
        return _json(wire_reply.encode_models(await self._engine.info()))

    async def info(self, _request: web.Request) -> web.Response:
        return _json(wire_reply.encode_info(await self._engine.info()))

    async def _collect(self, request_id: str, generation: Generation) -> bytes:
        contract = SpanContract(generation)
        tokens: list[int] = []
        reason = None
        async with aclosing(self._engine.generate(generation)) as spans:
            async for span in spans:
                tokens.extend(contract.accept(span).tokens)
                reason = span.finish_reason
        contract.check_end()
        whole = TokenSpan(first_position=generation.first_position, tokens=tuple(tokens), finish_reason=reason)
        return wire_reply.encode_answer(request_id, whole)

    async def _stream(self, request: web.Request, request_id: str, generation: Generation) -> web.StreamResponse:
        # The generator must not be cancelled by a keep-alive's timeout, so a task of its own runs it.
        outcomes: asyncio.Queue[_Outcome] = asyncio.Queue(_MAX_SPANS_AHEAD)
        writer = _EventWriter(request)
        async with asyncio.TaskGroup() as tasks:
            pump = tasks.create_task(_pump(self._engine, generation, outcomes))
            try:
                response = await self._write(writer, request_id, outcomes)
            except ClientConnectionResetError:
                response = writer.response
            pump.cancel()
        return response

    async def _write(
        self, writer: _EventWriter, request_id: str, outcomes: asyncio.Queue[_Outcome]
    ) -> web.StreamResponse:
        while True:
            match await self._next_outcome(writer, outcomes):
                case TokenSpan() as span:
                    await writer.write(encode_event(wire_reply.encode_span(request_id, span)))
                    if span.finish_reason is not None:
                        return await writer.end(encode_event(DONE))
                case ErrorReply() as reply if not writer.begun:
                    return _json(reply.body, status=reply.status, headers=reply.headers)
                case ErrorReply() as reply:
                    return await writer.end(encode_event(reply.body))

    async def _next_outcome(self, writer: _EventWriter, outcomes: asyncio.Queue[_Outcome]) -> _Outcome:
        while True:
            try:
                async with asyncio.timeout(self._limits.keep_alive):
                    return await outcomes.get()
            except TimeoutError:
                await writer.write(KEEP_ALIVE)


_Outcome = TokenSpan | ErrorReply


async def _pump(engine: EngineClient, generation: Generation, outcomes: asyncio.Queue[_Outcome]) -> None:
    """Runs one generation; the last outcome is a span with a finish reason or an error."""
    try:
        async with aclosing(_checked(engine, generation)) as spans:
            async for span in spans:
                await outcomes.put(span)
    except PddError as error:
        await outcomes.put(reply_to(error))
    except Exception:
        _logger.exception("engine_error request=%s attempt=%d", generation.request_id, generation.attempt)
        await outcomes.put(reply_to(WorkerFailed("the engine failed; its log says why")))


async def _checked(engine: EngineClient, generation: Generation) -> AsyncGenerator[TokenSpan]:
    """Holds the last span back until the engine has really ended: what follows a finish is an error, not noise."""
    contract = SpanContract(generation)
    last: TokenSpan | None = None
    async with aclosing(engine.generate(generation)) as spans:
        async for span in spans:
            last = contract.accept(span)
            if last.finish_reason is None:
                yield last
    contract.check_end()
    if last is not None:
        yield last


class _EventWriter:
    """A response that begins when something is written."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )

    @property
    def begun(self) -> bool:
        return self.response.prepared

    async def write(self, event: bytes) -> None:
        """Raises ClientConnectionResetError when the client is gone."""
        if not self.begun:
            await self.response.prepare(self._request)
        await self.response.write(event)

    async def end(self, event: bytes) -> web.StreamResponse:
        if not self.begun:
            await self.response.prepare(self._request)
        # In one piece: the reader then finds the end together with the last event, and keeps the connection.
        await self.response.write_eof(event)
        return self.response


def _json(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


@web.middleware
async def _errors_to_replies(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The outermost edge: no traceback and no HTML ever reaches a client."""
    if "Origin" in request.headers:
        # A browser sent it for a page. Engines have no keys, and any page can make its visitor's browser post to
        # loopback.
        reply = refusal_reply(InvalidRequest(_NO_PAGES, code="forbidden_origin"), HTTPStatus.FORBIDDEN)
        return _json(reply.body, status=reply.status)
    try:
        return await handler(request)
    except PddError as error:
        reply = reply_to(error)
    except web.HTTPException as error:
        reason = InvalidRequest(f"{request.method} {request.path}: {error.reason}", code="not_found")
        reply = refusal_reply(reason, error.status)
    except Exception:
        _logger.exception("request_error path=%s", request.path)
        reply = reply_to(WorkerFailed("the engine failed; its log says why"))
    return _json(reply.body, status=reply.status, headers=reply.headers)
