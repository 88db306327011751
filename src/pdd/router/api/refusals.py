"""What went wrong, as the client is told: a status, OpenAI's error object, headers.

The only place that chooses statuses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from pdd.core.errors import (
    BodyTooLarge,
    Forbidden,
    InvalidRequest,
    PddError,
    TenantOverLimit,
    Unauthorized,
    Unavailable,
    UnknownModel,
)
from pdd.core.units import Seconds
from pdd.router.api.reading import cut, shown
from pdd.router.api.replies import Json, Path, error_json

INTERNAL_ERROR = 500
RETRY_AFTER_S = Seconds(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error as the client sees it."""

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: Seconds | None = None
    allowed_methods: frozenset[str] = frozenset()

    def as_json(self) -> Json:
        return error_json(self.message, kind=self.kind, param=self.param, code=self.code)

    def as_response(self) -> web.Response:
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = whole_seconds(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.allowed_methods:
            headers["Allow"] = ", ".join(sorted(self.allowed_methods))
        return json_response(self.as_json(), status=self.status, headers=headers)


def refusal_of(error: Exception) -> Refusal:
    """Which status and words an error becomes. What isn't the client's business stays in the log."""
    match error:
        case UnknownModel():
            return _invalid(error, status=404)
        case BodyTooLarge():
            return _invalid(error, status=413)
        case InvalidRequest():
            return _invalid(error, status=400)
        case Unauthorized():
            return Refusal(status=401, kind="invalid_request_error", message=str(error), code="invalid_api_key")
        case Forbidden():
            return Refusal(status=403, kind="invalid_request_error", message=error.message, code=error.code)
        case TenantOverLimit():
            return Refusal(
                status=429,
                kind="rate_limit_error",
                message=error.message,
                code="rate_limit_exceeded",
                retry_after_s=error.retry_after_s,
            )
        case Unavailable():
            return _unavailable(error.message, error.retry_after_s)
        case PddError() if error.retryable:
            return _unavailable("a worker failed; try again", RETRY_AFTER_S)
        case _:
            message = "the server had an error while processing this request"
            return Refusal(status=INTERNAL_ERROR, kind="server_error", message=message, code="internal_error")


def _invalid(error: InvalidRequest, *, status: int) -> Refusal:
    return Refusal(
        status=status, kind="invalid_request_error", message=error.message, param=error.param, code=error.code
    )


def _unavailable(message: str, retry_after_s: Seconds) -> Refusal:
    return Refusal(
        status=503, kind="service_unavailable", message=message, code="unavailable", retry_after_s=retry_after_s
    )


def refusal_of_http(error: web.HTTPException, *, path: str) -> Refusal:
    """What the HTTP library itself refuses: unknown path, wrong method."""
    allowed = frozenset[str]()
    match error:
        case web.HTTPMethodNotAllowed():
            code, allowed = "method_not_allowed", frozenset(error.allowed_methods)
            message = f"method {cut(error.method)} is not allowed here; allowed: {', '.join(sorted(allowed))}"
        case web.HTTPNotFound():
            code, message = "unknown_path", _unknown_path(path)
        case _:
            code, message = "invalid_http", error.reason
    return Refusal(
        status=error.status, kind="invalid_request_error", message=message, code=code, allowed_methods=allowed
    )


def _unknown_path(path: str) -> str:
    """What it ends like is what was meant: most often the base URL of a client has no ``/v1``, or too much of it."""
    meant = next((known for known in Path if path.rstrip("/").endswith(known.removeprefix("/v1"))), None)
    right = f"it is {meant}: a client's base URL ends in /v1, once" if meant else f"there are {', '.join(Path)}"
    return f"no such path: {shown(path)}; {right}"


def json_response(body: Json, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A whole response."""
    return web.Response(body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json")


def whole_seconds(wait: Seconds) -> str:
    """As ``Retry-After`` has it."""
    return str(max(1, math.ceil(wait)))
