"""Serving HTTP to strangers: bounded connections, deadlines for what they leave unsaid, and errors as JSON.

aiohttp parses and serves; this module decides how long it waits and what is said when a client breaks HTTP itself:

- a request's head must be complete within ``head_timeout`` of its first byte (of the connection, for the first one), and
  a connection may be idle for ``idle_timeout``. Bodies and answers are the application's to bound.
- over ``max_connections`` the connection that has waited longest for a request goes; if all are being served the new one
  is refused.
- no byte of a request is ever logged, since any may be part of a prompt.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import msgspec
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpProcessingError, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import ContentEncodingError, LineTooLong
from aiohttp.web_protocol import ERROR

from pdd.core.topology import Address
from pdd.core.units import Seconds
from pdd.transport.flood import LogThrottle
from pdd.transport.http_bodies import CODINGS, coding_of

_logger = logging.getLogger(__name__)
_BACKLOG = 1024
_LINGER = Seconds(2.0)
"""How long the rest of a body is read that nobody wants, so that the client gets to read the answer."""

_WRONG_CODING = (
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "bodies are taken plain, or compressed by gzip or deflate",
    "unsupported_encoding",
)

Serve = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """How much strangers may take. At most half of this process's descriptors become connections."""

    max_connections: int = 2048
    head_timeout: Seconds = Seconds(10.0)
    idle_timeout: Seconds = Seconds(75.0)


DEFAULT_LIMITS = HttpLimits()


@asynccontextmanager
async def serve_http(
    app: web.Application, *, host: str, port: int, grace: Seconds, limits: HttpLimits = DEFAULT_LIMITS
) -> AsyncGenerator[Address]:
    """Listens while the context lasts and yields the address (``port`` 0 picks one).

    At its end nobody is accepted any more, and handlers that still run get ``grace``.

    Raises:
        OSError: the address can't be had.
    """
    # Without handler_cancellation a handler outlives its client, and works for nobody.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=grace)
    await runner.setup()
    assert runner.server is not None
    door = _Door(runner.server, limits)
    try:
        listener = await asyncio.get_running_loop().create_server(door.connection, host, port, backlog=_BACKLOG)
        try:
            yield Address(host=host, port=listener.sockets[0].getsockname()[1])
        finally:
            listener.close()
    finally:
        await runner.cleanup()


class _Door:
    """All connections of one server."""

    def __init__(self, server: web.Server, limits: HttpLimits) -> None:
        self.limits = limits
        self.throttle = LogThrottle()
        self._server = server
        self._serve: Serve = server.request_handler
        self._make_request = server.request_factory
        server.request_handler = self._handle
        server.request_factory = self._request
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_connections = min(limits.max_connections, max(1, soft_limit // 2))
        self._open: dict[_Connection, None] = {}
        self._waiting: dict[_Connection, None] = {}
        """Those without a running request; the one that has waited longest comes first."""

    def connection(self) -> _Connection:
        return _Connection(self, self._server, idle_timeout=self.limits.idle_timeout)

    # --- who is here

    def admit(self, connection: _Connection) -> bool:
        """Makes room for a new connection, or says that there is none."""
        if len(self._open) >= self._max_connections:
            longest_waiting = next(iter(self._waiting), None)
            self.log_refusal("too many connections", connection.peer)
            if longest_waiting is None:
                return False
            longest_waiting.drop()
        self._open[connection] = self._waiting[connection] = None
        return True

    def waits(self, connection: _Connection) -> None:
        if connection in self._open:
            self._waiting[connection] = None

    def is_served(self, connection: _Connection) -> None:
        self._waiting.pop(connection, None)

    def left(self, connection: _Connection) -> None:
        self._open.pop(connection, None)
        self._waiting.pop(connection, None)

    def log_refusal(self, reason: str, peer: str) -> None:
        suppressed = self.throttle.admit(Seconds(asyncio.get_running_loop().time()))
        if suppressed is not None:
            _logger.warning("http_refused peer=%s reason=%r suppressed=%d", peer, reason, suppressed)

    # --- requests

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        """What aiohttp hands on where it understood nothing claims to be HTTP/1.0; we answer in our own version."""
        if message is ERROR:
            message = message._replace(version=HttpVersion11)
        return self._make_request(message, payload, protocol, writer, task)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        connection.request_begun(request.content)
        try:
            if coding_of(request) not in CODINGS:
                return _refusal(*_WRONG_CODING)
            return await self._serve(request)
        except web.HTTPException as error:
            # Raised before the application's own handlers: an expectation that nobody can meet.
            return _refusal(HTTPStatus(error.status), error.reason, "invalid_request")
        finally:
            connection.request_ended()


class _Connection(web.RequestHandler):
    """One client's connection. It waits for a head, or is idle, or has a request that is being served."""

    def __init__(self, door: _Door, server: web.Server, *, idle_timeout: Seconds) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=idle_timeout,
            access_log=cast(Any, None),
            lingering_time=_LINGER,
            auto_decompress=False,  # see transport.http_bodies
        )
        self.peer = "?"
        self._door = door
        self._own_loop = loop
        self._deadline: asyncio.TimerHandle | None = None
        self._is_idle = False
        self._is_refused = False
        self._body: StreamReader | None = None

    # --- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = str(transport.get_extra_info("peername"))
        if not self._door.admit(self):
            self._is_refused = True
            _refuse_connection(cast(asyncio.Transport, transport))
            return
        super().connection_made(transport)
        self._expect_within(self._door.limits.head_timeout)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_idle:
            self._is_idle = False
            self._expect_within(self._door.limits.head_timeout)
        super().data_received(data)
        if self._body is not None and self._messages and not isinstance(self._messages[-1][0], RawRequestMessage):
            # The parser gave up within a body: whoever waits for the rest of it waits in vain.
            self._body.set_exception(web.RequestPayloadError("the body is not valid HTTP"))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget_deadline()
        self._door.left(self)
        if not self._is_refused:
            super().connection_lost(exc)

    # --- waiting

    def request_begun(self, body: StreamReader) -> None:
        self._is_idle = False
        self._body = body
        self._forget_deadline()
        self._door.is_served(self)

    def request_ended(self) -> None:
        self._is_idle = True
        self._body = None
        self._expect_within(self._door.limits.idle_timeout)
        self._door.waits(self)

    def _expect_within(self, timeout: Seconds) -> None:
        self._forget_deadline()
        if self.transport is not None:
            self._deadline = self._own_loop.call_later(timeout, self.drop)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def drop(self) -> None:
        """Ends the connection now, whatever has not been sent yet."""
        transport = self.transport
        self._forget_deadline()
        self._door.left(self)
        self.force_close()
        if isinstance(transport, asyncio.Transport):
            transport.abort()

    # --- what aiohttp wants to say

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 (it quotes the request)
    ) -> web.StreamResponse:
        """The answer to what is no HTTP. Raises ConnectionError: another answer has begun, so there can be none."""
        if isinstance(exc, HttpProcessingError):
            self._door.log_refusal(type(exc).__name__, self.peer)
            return _refusal(*_what_is_wrong(exc))
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        _logger.error("http_request_failed status=%d", status, exc_info=exc)
        return _refusal(HTTPStatus(status), "the server had an error while processing this request", "internal_error")

    def log_exception(self, *args: object, **kw: object) -> None:
        error = kw.get("exc_info")
        if isinstance(error, web.RequestPayloadError | HttpProcessingError):
            # What is left of a body that the application gave up is no better than what it saw.
            self._door.log_refusal(type(error).__name__, self.peer)
            return
        cause = error if isinstance(error, BaseException) else None
        _logger.error("http_connection_failed what=%r", args[:1], exc_info=cause)


def _what_is_wrong(error: HttpProcessingError) -> tuple[HTTPStatus, str, str]:
    match error:
        case LineTooLong():
            message = "the request's first line or one of its headers is too long"
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, "head_too_large"
        case ContentEncodingError():
            return _WRONG_CODING
        case _:
            return HTTPStatus.BAD_REQUEST, "the request is not valid HTTP/1.1", "invalid_http"


def _error_body(status: HTTPStatus, message: str, code: str) -> bytes:
    """OpenAI's error object."""
    match status:
        case HTTPStatus.SERVICE_UNAVAILABLE:
            kind = "service_unavailable"
        case HTTPStatus.INTERNAL_SERVER_ERROR:
            kind = "server_error"
        case _:
            kind = "invalid_request_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def _refusal(status: HTTPStatus, message: str, code: str) -> web.Response:
    """Where the stream of requests goes on is not certain, so it ends."""
    response = web.Response(status=status, body=_error_body(status, message, code), content_type="application/json")
    response.force_close()
    return response


def _refuse_connection(transport: asyncio.Transport) -> None:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    body = _error_body(status, "the server has too many connections; try again", "too_many_connections")
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    transport.write(head.encode("ascii") + body)
    transport.close()
