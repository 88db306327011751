"""A request's whole body: bounded in bytes and in time, and inflated where nobody else waits for it.

Left to itself, aiohttp inflates a compressed body on the event loop as it comes in: before the application has asked
for it, and on after it was refused. Here a body stays as it came until somebody wants it who may have it.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import NoReturn

from aiohttp import web

from pdd.core.errors import BodyTooLarge, InvalidRequest
from pdd.core.units import Bytes, Seconds

IDENTITY = "identity"
CODINGS = frozenset({IDENTITY, "gzip", "deflate"})
_GZIP_WBITS, _ZLIB_WBITS, _RAW_WBITS = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_FIRST_STEP = 512
"""Bytes that an inflater is given first, then twice as many each time: what it does not need of them it copies."""


def coding_of(request: web.BaseRequest) -> str:
    """How the body is compressed: one of ``CODINGS``, or something that is not taken, such as two of them."""
    return ", ".join(request.headers.getall("Content-Encoding", (IDENTITY,))).strip().lower()


async def read_body(request: web.Request, *, limit: Bytes, timeout: Seconds) -> bytes:
    """What the client meant to send, ``limit`` bytes at most, also when it is inflated.

    Raises:
        BodyTooLarge: it has more.
        InvalidRequest: it broke off, did not arrive within ``timeout``, or is not what its ``Content-Encoding`` says.
    """
    if request.content_length is not None and request.content_length > limit:
        _refuse_size(limit)
    try:
        async with asyncio.timeout(timeout):
            body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        _refuse_size(limit)
    except web.RequestPayloadError as error:
        # Nothing is left of it that could be skipped, and where the next request begins is not known.
        request.content.feed_eof()
        request.protocol.close()
        raise InvalidRequest("the body could not be read: it breaks off", code="invalid_body") from error
    except TimeoutError as error:
        raise InvalidRequest(f"the body did not arrive within {timeout:g} s", code="body_timeout") from error
    coding = coding_of(request)
    return body if coding == IDENTITY else await asyncio.to_thread(inflate, body, coding=coding, limit=limit)


def inflate(body: bytes, *, coding: str, limit: Bytes) -> bytes:
    """The plain body behind ``gzip`` or ``deflate``, in time linear in both. Blocks; never makes more than ``limit``.

    Raises:
        BodyTooLarge: there is more.
        InvalidRequest: it is not compressed like that, or breaks off.
    """
    wbits = _GZIP_WBITS if coding == "gzip" else _wbits_of_deflate(body)
    whole, begin, plain = memoryview(body), 0, bytearray()
    while True:
        inflater, step = zlib.decompressobj(wbits), _FIRST_STEP
        while not inflater.eof:
            piece = whole[begin : begin + step]
            if not piece:
                raise _not_what_it_says(coding)
            try:
                plain += inflater.decompress(piece, limit + 1 - len(plain))
            except zlib.error as error:
                raise _not_what_it_says(coding) from error
            if len(plain) > limit:
                _refuse_size(limit)
            begin, step = begin + len(piece), 2 * step
        begin -= len(inflater.unused_data)
        if begin == len(whole):
            return bytes(plain)
        if coding != "gzip":  # whose files may follow each other
            raise _not_what_it_says(coding)


def _wbits_of_deflate(body: bytes) -> int:
    """HTTP means zlib's form by ``deflate``; some clients send the bare one."""
    is_zlib = len(body) > 1 and body[0] & 0x0F == zlib.DEFLATED and int.from_bytes(body[:2], "big") % 31 == 0
    return _ZLIB_WBITS if is_zlib else _RAW_WBITS


def _refuse_size(limit: Bytes) -> NoReturn:
    raise BodyTooLarge(f"the body is larger than {limit} bytes, the limit", code="body_too_large")


def _not_what_it_says(coding: str) -> InvalidRequest:
    return InvalidRequest(f"the body breaks off, or is not {coding} as its Content-Encoding says", code="invalid_body")
