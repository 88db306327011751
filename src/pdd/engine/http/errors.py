"""PDD's errors in OpenAI's format, and back: what a refusal looks like between an engine and the router. No I/O.

The front door's own statuses are chosen in ``router.api``; these are the ones of the token-level interface, where the
other end is a router that must get the very error back that the engine raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from math import ceil, isfinite

import msgspec

from pdd.core.errors import (
    CapacityExhausted,
    ContextTooLong,
    InvalidRequest,
    PddError,
    Unavailable,
    UnknownModel,
    WorkerFailed,
)
from pdd.core.units import Seconds
from pdd.engine.base import RETRY_AFTER

_MAX_TEXT_LENGTH = 1000
_CODE_CAPACITY = "capacity_exhausted"
_CODE_CONTEXT = "context_length_exceeded"
_CODE_MODEL = "model_not_found"
_REFUSED = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
_BUSY = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})


class ErrorDetail(msgspec.Struct, kw_only=True):
    """OpenAI's error object; ``status`` and ``retry_after_s`` are ours, for events, which have no status line."""

    message: str
    type: str = ""
    param: str | None = None
    code: str | int | None = None
    status: int | None = None
    retry_after_s: float | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    """OpenAI's envelope."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """An error as the server sends it: as a response of its own, or as an event within a stream that has begun."""

    status: int
    retry_after: Seconds | None
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """``Retry-After`` is in whole seconds, rounded up."""
        return {} if self.retry_after is None else {"Retry-After": str(ceil(self.retry_after))}


_DECODER = msgspec.json.Decoder(ErrorBody)


def reply_to(error: PddError) -> ErrorReply:
    """How the server says it."""
    match error:
        case InvalidRequest():
            return refusal_reply(error, _status_of_refusal(error))
        case Unavailable():
            detail = ErrorDetail(
                message=error.message,
                type="unavailable_error",
                code=_CODE_CAPACITY if isinstance(error, CapacityExhausted) else "unavailable",
                status=int(HTTPStatus.SERVICE_UNAVAILABLE),
                retry_after_s=error.retry_after_s,
            )
        case _:
            status = int(HTTPStatus.INTERNAL_SERVER_ERROR)
            detail = ErrorDetail(message=str(error), type="engine_error", code="worker_failed", status=status)
    return _reply(detail)


def refusal_reply(error: InvalidRequest, status: int) -> ErrorReply:
    """A refusal under a status that HTTP itself prescribes (no such path, method not allowed)."""
    return _reply(
        ErrorDetail(
            message=error.message,
            type="invalid_request_error",
            param=error.param,
            code=_code_of(error),
            status=int(status),
        )
    )


def error_of_response(status: int, retry_after: str | None, body: bytes) -> PddError:
    """What a response that isn't 200 means. ``retry_after`` is the header's value."""
    detail = _read_detail(body) or ErrorDetail(message=f"the engine answered HTTP {status}")
    if detail.retry_after_s is None:
        detail.retry_after_s = _read_seconds(retry_after)
    return _error_of(status, detail)


def error_of_event(detail: ErrorDetail) -> PddError:
    """What an error event within a stream means. Engines that give no status in it failed."""
    status = detail.status if detail.status is not None else detail.code
    return _error_of(status if isinstance(status, int) else HTTPStatus.INTERNAL_SERVER_ERROR, detail)


def _error_of(status: int, detail: ErrorDetail) -> PddError:
    code = str(detail.code) if detail.code is not None else "invalid_value"
    if status in _BUSY:
        kind = CapacityExhausted if code == _CODE_CAPACITY else Unavailable
        retry_after = RETRY_AFTER if detail.retry_after_s is None else Seconds(detail.retry_after_s)
        return kind(detail.message, retry_after_s=retry_after)
    if status == HTTPStatus.NOT_FOUND and not _names_model(detail):
        return WorkerFailed(f"the engine has no token-level interface: {detail.message}")
    if status not in _REFUSED:
        return WorkerFailed(detail.message)
    if status == HTTPStatus.NOT_FOUND:
        return UnknownModel(detail.message, param="model", code=_CODE_MODEL)
    refusal = ContextTooLong if code == _CODE_CONTEXT else InvalidRequest
    return refusal(detail.message, param=detail.param, code=code)


def _names_model(detail: ErrorDetail) -> bool:
    """A 404 may also mean that the path does not exist."""
    return detail.param == "model" or detail.code == _CODE_MODEL


def _status_of_refusal(error: InvalidRequest) -> int:
    if isinstance(error, UnknownModel):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if error.code == "body_too_large" else HTTPStatus.BAD_REQUEST


def _code_of(error: InvalidRequest) -> str:
    """The code tells the kinds of refusal apart at the other end."""
    match error:
        case UnknownModel():
            return _CODE_MODEL
        case ContextTooLong():
            return _CODE_CONTEXT
        case _:
            return error.code


def _reply(detail: ErrorDetail) -> ErrorReply:
    # Messages quote what the client sent, and that may be megabytes.
    detail.message = _shorten(detail.message)
    detail.param = None if detail.param is None else _shorten(detail.param)
    retry_after = None if detail.retry_after_s is None else Seconds(detail.retry_after_s)
    body = msgspec.json.encode(ErrorBody(error=detail))
    return ErrorReply(status=detail.status or int(HTTPStatus.INTERNAL_SERVER_ERROR), retry_after=retry_after, body=body)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}..."


def _read_detail(body: bytes) -> ErrorDetail | None:
    try:
        return _DECODER.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _read_seconds(header: str | None) -> Seconds | None:
    """A number of seconds; the other form of the header, a date, is not worth a clock here."""
    try:
        seconds = float(header) if header else None
    except ValueError:
        return None
    return Seconds(seconds) if seconds is not None and isfinite(seconds) and seconds >= 0.0 else None
