"""The router's client of any engine that speaks vLLM's token-level HTTP interface.

Nothing of aiohttp leaves this module: not connected is ``Unavailable``, broken off or broken rules is ``WorkerFailed``,
and refusals come back as the error that the engine raised. A stream has no total time limit, only ``idle_timeout``
without any byte. Closing the generator closes the connection at once, which is how the engine learns that it should
stop.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Self

from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
)

from pdd.core.errors import LocalProtocolError, PddError, RemoteProtocolError, Unavailable, WorkerFailed
from pdd.core.ids import WorkerId
from pdd.core.request import Generation, TokenSpan
from pdd.core.topology import Address
from pdd.core.units import Bytes, Seconds
from pdd.engine.base import RETRY_AFTER, EngineInfo
from pdd.engine.http import wire_reply, wire_request
from pdd.engine.http.contract import SpanContract
from pdd.engine.http.errors import error_of_response
from pdd.engine.http.sse import DONE, EventReader

DEFAULT_CONNECT_TIMEOUT = Seconds(2.0)
DEFAULT_IDLE_TIMEOUT = Seconds(30.0)
_INFO_TIMEOUT = Seconds(5.0)
_MAX_REPLY_BYTES = Bytes(256 * 1024)
"""Of replies that aren't streams: errors and descriptions."""
_NO_DESCRIPTION = (
    f"it has no {wire_reply.INFO_PATH}; vLLM has it with --middleware pdd.plugins.vllm.middleware.DescribeEngine"
)
_JSON_HEADERS = {"Content-Type": "application/json"}


def engine_session() -> ClientSession:
    """A session for any number of engine clients: as many connections as there are streams, no cookies."""
    return ClientSession(connector=TCPConnector(limit=0), cookie_jar=DummyCookieJar())


class HttpEngineClient:
    """One engine behind an address. Implements ``engine.base.EngineClient``.

    Give it a ``session`` (see ``engine_session``) that outlives it, or use it as a context manager: then it owns one.
    ``model`` is sent along if given, so that an engine that serves another one refuses.
    """

    def __init__(
        self,
        worker: WorkerId,
        address: Address,
        *,
        session: ClientSession | None = None,
        model: str | None = None,
        connect_timeout: Seconds = DEFAULT_CONNECT_TIMEOUT,
        idle_timeout: Seconds = DEFAULT_IDLE_TIMEOUT,
    ) -> None:
        self._worker = worker
        self._base_url = f"http://{address}"
        self._session = session
        self._owns_session = session is None
        self._model = model
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout

    @property
    def worker(self) -> WorkerId:
        return self._worker

    async def __aenter__(self) -> Self:
        if self._session is None:
            self._session = engine_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._owns_session and self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        """See ``EngineClient.generate``. The last span is held back until the engine has ended its stream."""
        contract = SpanContract(generation)
        last: TokenSpan | None = None
        async with self._stream(generation) as response, aclosing(self._events(response, contract)) as events:
            async for event in events:
                span = wire_reply.decode_event(event, next_position=contract.next_position)
                if span is None:
                    continue
                last = contract.accept(span)
                if last.finish_reason is None:
                    yield last
        contract.check_end()
        if last is not None:
            yield last

    async def info(self) -> EngineInfo:
        """See ``EngineClient.info``: whatever goes wrong here, the engine is not up."""
        session = self._require_session()
        timeout = ClientTimeout(total=_INFO_TIMEOUT, sock_connect=self._connect_timeout)
        try:
            async with session.get(self._base_url + wire_reply.INFO_PATH, timeout=timeout) as response:
                if response.status == HTTPStatus.NOT_FOUND:
                    raise self._unavailable(_NO_DESCRIPTION)
                return wire_reply.decode_info(await self._read_ok(response))
        except Unavailable:
            raise
        except (ClientError, TimeoutError, PddError) as error:
            raise self._unavailable(_words(error)) from error

    @asynccontextmanager
    async def _stream(self, generation: Generation) -> AsyncGenerator[ClientResponse]:
        response = await self._post(wire_request.encode_generation(generation, model=self._model))
        try:
            if response.status != 200:
                raise await self._refusal(response)
            yield response
        finally:
            # A reply that was read to its end has already given its connection back. Any other is cut off here, at
            # once: that is what makes the engine stop.
            response.close()

    async def _post(self, body: bytes) -> ClientResponse:
        timeout = ClientTimeout(total=None, sock_connect=self._connect_timeout, sock_read=self._idle_timeout)
        try:
            return await self._require_session().post(
                self._base_url + wire_request.GENERATE_PATH, data=body, headers=_JSON_HEADERS, timeout=timeout
            )
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            raise self._unavailable(_words(error)) from error
        except (ClientError, TimeoutError) as error:
            raise self._failed(error) from error

    async def _events(self, response: ClientResponse, contract: SpanContract) -> AsyncGenerator[bytes]:
        """The data of each event, up to ``[DONE]`` or the stream's end.

        A line that breaks after the finish took nothing away.
        """
        reader = EventReader()
        try:
            async for piece in response.content.iter_any():
                for event in reader.feed(piece):
                    if event == DONE:
                        return
                    yield event
        except (ClientError, TimeoutError, RemoteProtocolError) as error:
            if not contract.finished:
                raise self._failed(error) from error

    async def _refusal(self, response: ClientResponse) -> PddError:
        try:
            body = await _read_bounded(response)
        except (ClientError, TimeoutError) as error:
            return self._failed(error)
        return error_of_response(response.status, response.headers.get("Retry-After"), body)

    async def _read_ok(self, response: ClientResponse) -> bytes:
        if response.status != 200:
            raise await self._refusal(response)
        return await _read_bounded(response)

    def _require_session(self) -> ClientSession:
        if self._session is None:
            raise LocalProtocolError("an engine client without a session of its own must be entered before use")
        return self._session

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(f"engine {self._worker} is not up: {why}", retry_after_s=RETRY_AFTER)

    def _failed(self, error: Exception) -> WorkerFailed:
        return WorkerFailed(f"engine {self._worker} failed: {_words(error)}")


async def _read_bounded(response: ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _MAX_REPLY_BYTES:
            raise WorkerFailed(f"the engine's reply is longer than {_MAX_REPLY_BYTES} bytes")
    return bytes(body)


def _words(error: Exception) -> str:
    """Without the engine's address, since the router's own health page repeats this; some errors have no text."""
    match error:
        case ClientConnectorDNSError():
            return "its host name can't be resolved"
        case ClientConnectorError(errno=int(number)):
            return os.strerror(number)
        case _:
            return str(error) or type(error).__name__
