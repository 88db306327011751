"""How an answer reaches the client: in chunks as it grows (server-sent events), or whole.

Response headers go out with the first span: an error until then is a proper HTTP status. Only a stream that has had
nothing to say for ``keep_alive_s`` begins before, with a comment, since proxies cut silent connections. A client that
can't be written to for ``write_timeout_s`` counts as gone. Both ways raise ``ClientLeft`` when the client is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, assert_never

import msgspec
from aiohttp import web

from pdd.core.errors import LocalProtocolError
from pdd.core.request import FinishReason
from pdd.core.units import Seconds
from pdd.router.api.replies import Json, Shape, SpanTrace, Usage, UsageReports, report_json, spans_json
from pdd.router.base import RequestReport

_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class ClientLeft(Exception):
    """The client closed its connection or stopped reading. Never leaves the front door."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an answer ends: its last text, and an empty span in the name of whoever ended it."""

    rest: str
    reason: FinishReason
    usage: Usage
    last: SpanTrace


class Reply(Protocol):
    """One response. Call ``show`` for each span, ``finish`` at its end, then ``conclude``."""

    @property
    def finished(self) -> bool:
        """The client has everything."""
        ...

    def silence_left(self) -> Seconds | None:
        """For how long it may still say nothing; ``keep_alive`` is due then. None: for ever."""
        ...

    async def keep_alive(self) -> None:
        """Says that the answer is being worked on. May be called beside the others."""
        ...

    async def show(self, text: str, span: SpanTrace, so_far: Usage) -> None:
        """A span was added; ``text`` is what may be shown of it, possibly nothing."""
        ...

    async def finish(self, ending: Ending) -> None:
        """The answer is over. Sends all but a report."""
        ...

    async def conclude(self, report: RequestReport) -> web.StreamResponse:
        """Sends the report, if the client asked for it, and ends the response."""
        ...


class StreamedReply:
    """Server-sent events: one chunk a span, the finish, usage if asked for, ``[DONE]``."""

    __slots__ = (
        "_finished",
        "_keep_alive",
        "_opened",
        "_reports",
        "_request",
        "_response",
        "_shape",
        "_spoke_at",
        "_trace",
        "_turn",
        "_usage",
        "_write_timeout",
    )

    def __init__(
        self,
        request: web.Request,
        shape: Shape,
        *,
        usage_reports: UsageReports,
        trace: bool,
        write_timeout_s: Seconds,
        keep_alive_s: Seconds,
    ) -> None:
        self._request = request
        self._shape = shape
        self._reports = usage_reports
        self._trace = trace
        self._write_timeout = write_timeout_s
        self._keep_alive = keep_alive_s
        self._response = web.StreamResponse(headers=_STREAM_HEADERS)
        self._turn = asyncio.Lock()
        self._spoke_at = _now()
        self._usage: Usage | None = None
        self._opened = False
        self._finished = False

    @property
    def begun(self) -> bool:
        """Something was sent: the HTTP status is out."""
        return self._response.prepared

    @property
    def finished(self) -> bool:
        return self._finished

    def silence_left(self) -> Seconds | None:
        return Seconds(max(0.0, self._spoke_at + self._keep_alive - _now()))

    async def keep_alive(self) -> None:
        try:
            async with asyncio.timeout(self._write_timeout), self._turn:
                if not self._finished and self.silence_left() == 0.0:  # perhaps something was being said just now
                    await self._write(_COMMENT)
        except (ConnectionError, TimeoutError) as error:
            raise ClientLeft from error

    async def show(self, text: str, span: SpanTrace, so_far: Usage) -> None:
        if text or self._trace or not self._opened:
            await self._send(self._event(self._text_chunk(text), span, so_far))

    def _text_chunk(self, text: str) -> Json:
        """The first one opens the answer."""
        opened, self._opened = self._opened, True
        return self._shape.text_chunk(text) if opened else self._shape.opening_chunk(text)

    async def finish(self, ending: Ending) -> None:
        self._usage = ending.usage
        events = b""
        if ending.rest or not self._opened:
            events += self._event(self._text_chunk(ending.rest), ending.last, ending.usage)
        events += self._event(self._shape.finish_chunk(ending.reason), ending.last, ending.usage)
        if self._trace:
            await self._send(events)
            return
        if self._reports is not UsageReports.NONE:
            events += _event({**self._shape.closing_chunk(), "usage": ending.usage.as_json()})
        await self._send(events + _DONE)
        await self._end()

    async def conclude(self, report: RequestReport) -> web.StreamResponse:
        if self._trace:
            await self._send(_event(self._report_chunk(report)) + _DONE)
            await self._end()
        return self._response

    async def break_off(self, error: Json) -> web.StreamResponse:
        """Ends a begun response with an error event; the connection closes."""
        self._response.force_close()
        await self._send(b"event: error\n" + _event(error))
        await self._end()
        return self._response

    def _event(self, chunk: Json, span: SpanTrace, so_far: Usage) -> bytes:
        match self._reports:
            case UsageReports.NONE:
                pass
            case UsageReports.AT_END:
                chunk["usage"] = None
            case UsageReports.THROUGHOUT:
                chunk["usage"] = so_far.as_json()
            case _:
                assert_never(self._reports)
        if self._trace:
            chunk["pdd"] = span.as_json()
        return _event(chunk)

    def _report_chunk(self, report: RequestReport) -> Json:
        chunk = {**self._shape.closing_chunk(), "pdd": {"report": report_json(report)}}
        if self._reports is not UsageReports.NONE and self._usage is not None:
            chunk["usage"] = self._usage.as_json()
        return chunk

    async def _send(self, events: bytes) -> None:
        try:
            async with asyncio.timeout(self._write_timeout), self._turn:
                await self._write(events)
        except (ConnectionError, TimeoutError) as error:
            raise ClientLeft from error

    async def _write(self, events: bytes) -> None:
        """Within ``_turn``: what is written at once would be mixed up."""
        if not self._response.prepared:
            await self._response.prepare(self._request)
        await self._response.write(events)
        self._spoke_at = _now()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(self._write_timeout), self._turn:
                await self._response.write_eof()
                self._finished = True
        except (ConnectionError, TimeoutError) as error:
            raise ClientLeft from error


class WholeReply:
    """One JSON body at the end."""

    __slots__ = ("_body", "_request", "_response", "_shape", "_spans", "_text", "_trace", "_write_timeout")

    def __init__(self, request: web.Request, shape: Shape, *, trace: bool, write_timeout_s: Seconds) -> None:
        self._request = request
        self._shape = shape
        self._trace = trace
        self._write_timeout = write_timeout_s
        self._text: list[str] = []
        self._spans: list[SpanTrace] = []
        self._body: Json = {}
        self._response: web.Response | None = None

    @property
    def finished(self) -> bool:
        return self._response is not None

    def silence_left(self) -> Seconds | None:
        return None

    async def keep_alive(self) -> None:
        raise LocalProtocolError("what is answered in one piece can't be begun early")

    async def show(self, text: str, span: SpanTrace, so_far: Usage) -> None:  # noqa: ARG002 (the end says what it cost)
        self._text.append(text)
        if self._trace and span.token_ids:
            self._spans.append(span)

    async def finish(self, ending: Ending) -> None:
        self._body = self._shape.whole("".join(self._text) + ending.rest, ending.reason, ending.usage)
        if not self._trace:
            await self._send()

    async def conclude(self, report: RequestReport) -> web.StreamResponse:
        if self._trace:
            self._body["pdd"] = {"report": report_json(report), "spans": spans_json(self._spans)}
        return await self._send() if self._response is None else self._response

    async def _send(self) -> web.Response:
        self._response = web.Response(body=msgspec.json.encode(self._body), content_type="application/json")
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._response.prepare(self._request)
                await self._response.write_eof()
        except (ConnectionError, TimeoutError) as error:
            raise ClientLeft from error
        return self._response


_DONE = b"data: [DONE]\n\n"
_COMMENT = b": still working\n\n"
"""Clients skip it."""


def _now() -> float:
    return asyncio.get_running_loop().time()


def _event(chunk: Json) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
