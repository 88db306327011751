"""The front door: OpenAI's HTTP interface over a ``Service``.

An error before an answer's first token is a proper HTTP status in OpenAI's error format; after it, a typed event, and
the connection closes. No traceback and no internal name reaches a client.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from pdd.core.errors import (
    ConfigError,
    Forbidden,
    InvalidRequest,
    Unauthorized,
)
from pdd.core.ids import TenantId, WorkerId
from pdd.core.request import Role
from pdd.core.topology import Address
from pdd.core.units import Seconds
from pdd.engine.catalog import ModelEntry
from pdd.engine.models.text import TextAssets
from pdd.router.api.admission import Admission, Limits
from pdd.router.api.answers import AnswerMemory, ConversationEncoder
from pdd.router.api.aside import aside
from pdd.router.api.callers import Callers
from pdd.router.api.refusals import (
    INTERNAL_ERROR,
    RETRY_AFTER_S,
    json_response,
    refusal_of,
    refusal_of_http,
    whole_seconds,
)
from pdd.router.api.replies import Endpoint, Json, Path, Shape, model_json, models_json
from pdd.router.api.schema import Options, parse_chat, parse_completion
from pdd.router.api.sending import ClientLeft, Reply, StreamedReply, WholeReply
from pdd.router.api.serving import Job, RequestRunner
from pdd.router.api.tenants import Tenants
from pdd.router.api.tokenizer import TextCodec
from pdd.router.base import Service, TokenRequest
from pdd.telemetry.metrics import CONTENT_TYPE, RouterMetrics
from pdd.transport.http_bodies import read_body
from pdd.transport.http_serving import serve_http

_logger = logging.getLogger(__name__)

_MAYBE_SLASH = "{slash:/?}"
_LARGE_BODY = 64 * 1024
"""Some milliseconds of reading: larger bodies leave the event loop."""
_CLIENT_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_REQUEST_ID = web.RequestKey("pdd_request_id", str)


class WorkerCount(NamedTuple):
    """Workers of one role."""

    up: int
    configured: int


class WorkerHealth(NamedTuple):
    """One worker as the router sees it: whether it gets requests, how many it has, the state of its circuit breaker.

    ``reason``: why it gets none.
    """

    up: bool
    requests: int
    breaker: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a request could be served now, by whom, and how many are."""

    can_serve: bool
    roles: Mapping[Role, WorkerCount]
    workers: Mapping[WorkerId, WorkerHealth] = field(default_factory=dict[WorkerId, WorkerHealth])
    num_served: int = 0
    num_queued: int = 0


def create_app(
    *,
    service: Service,
    model: ModelEntry,
    text: TextAssets,
    limits: Limits,
    tenants: Tenants,
    callers: Callers,
    answers: AnswerMemory,
    metrics: RouterMetrics,
    health: Callable[[], Health],
    wall_clock: Callable[[], float] = time.time,
) -> web.Application:
    """The front door as an application; ``serve`` it. ``health`` must not block; ``wall_clock`` is seconds since 1970.

    Raises:
        ConfigError: as ``TextCodec``.
    """
    codec = TextCodec(text, most_tokens=limits.max_model_tokens)
    door = _FrontDoor(
        model=model,
        limits=limits,
        tenants=tenants,
        callers=callers,
        admission=Admission(model=model, codec=codec, encoder=ConversationEncoder(codec, answers), limits=limits),
        runner=RequestRunner(service, codec, answers, metrics),
        metrics=metrics,
        health=health,
        wall_clock=wall_clock,
        started=int(wall_clock()),
    )
    app = web.Application(middlewares=[door.errors_as_json], client_max_size=limits.max_body_bytes)
    app.add_routes(
        [
            web.post(f"{Path.CHAT}{_MAYBE_SLASH}", door.chat),
            web.post(f"{Path.COMPLETION}{_MAYBE_SLASH}", door.completion),
            web.get(f"{Path.MODELS}{_MAYBE_SLASH}", door.models),
            web.get(f"{Path.MODELS}/{{name:.+}}", door.one_model),
            web.get(f"{Path.HEALTH}{_MAYBE_SLASH}", door.show_health),
            web.get(f"{Path.METRICS}{_MAYBE_SLASH}", door.show_metrics),
        ]
    )
    app.cleanup_ctx.append(door.lifetime)
    app.on_shutdown.append(door.stop)
    app.on_response_prepare.append(door.finish_headers)
    return app


@asynccontextmanager
async def serve(
    app: web.Application, *, host: str, port: int, tenants: Tenants, grace: Seconds = Seconds(1.0)
) -> AsyncGenerator[Address]:
    """Listens while the context lasts and yields the address (``port`` 0 picks one).

    At its end nobody is accepted any more, open answers are ended with an error, and there is ``grace`` to write it.

    Raises:
        ConfigError: others can reach ``host`` but there are no API keys, or the port can't be had.
    """
    tenants.require_safe_binding(host)
    async with AsyncExitStack() as serving:
        try:
            address = await serving.enter_async_context(serve_http(app, host=host, port=port, grace=grace))
        except OSError as error:
            raise ConfigError(f"router: can't listen on {host}:{port}: {error.strerror or error}") from error
        yield address


@dataclass(frozen=True, slots=True, kw_only=True)
class _FrontDoor:
    """The handlers, with what they need."""

    model: ModelEntry
    limits: Limits
    tenants: Tenants
    callers: Callers
    admission: Admission
    runner: RequestRunner
    metrics: RouterMetrics
    health: Callable[[], Health]
    wall_clock: Callable[[], float]
    started: int

    async def lifetime(self, _: web.Application) -> AsyncIterator[None]:
        async with self.runner.lifetime():
            yield

    async def stop(self, _: web.Application) -> None:
        """The listeners are closed; handlers still run, and tell their clients what ``run`` raises now."""
        self.runner.stop()

    @web.middleware
    async def errors_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The outermost edge of a request."""
        claimed = request.headers.get("X-Request-Id", "")
        if _CLIENT_REQUEST_ID.fullmatch(claimed):
            request[_REQUEST_ID] = claimed
        try:
            told = self._for_browsers(request)
            return await handler(request) if told is None else told
        except web.HTTPException as error:
            self.metrics.request_refused()
            return refusal_of_http(error, path=request.path).as_response()
        except ClientLeft:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=499)
        except Exception as error:
            refusal = refusal_of(error)
            if refusal.status == INTERNAL_ERROR:
                _logger.exception("request_failed method=%s path=%s", request.method, request.path)
            return refusal.as_response()

    def _for_browsers(self, http: web.Request) -> web.Response | None:
        """Answers a browser that asks what a page may send. Raises Forbidden when a page sends what it may not."""
        with self._counting_refusals():
            self.callers.check(hosts=http.headers.getall("Host", ()), origins=http.headers.getall("Origin", ()))
        if http.method != "OPTIONS" or "Access-Control-Request-Method" not in http.headers:
            return None
        wanted = http.headers.get("Access-Control-Request-Headers", "")
        allowed = self.callers.preflight(http.headers.get("Origin"), wanted)
        return None if allowed is None else web.Response(status=204, headers=allowed)

    async def finish_headers(self, http: web.Request, response: web.StreamResponse) -> None:
        """Every response says which request it answers: in the client's words if it gave any, else in ours."""
        response.headers["X-Request-Id"] = http.setdefault(_REQUEST_ID, secrets.token_hex(16))
        response.headers.update(self.callers.headers(http.headers.get("Origin")))

    async def chat(self, http: web.Request) -> web.StreamResponse:
        with self._counting_refusals():
            tenant = self._authenticate(http)
            body = await self._body(http)
            call = await aside(len(body), _LARGE_BODY, parse_chat, body)
            request = await self.admission.admit_chat(tenant, call)
        return await self._answer(http, Endpoint.CHAT, request, call.options)

    async def completion(self, http: web.Request) -> web.StreamResponse:
        with self._counting_refusals():
            tenant = self._authenticate(http)
            body = await self._body(http)
            call = await aside(len(body), _LARGE_BODY, parse_completion, body)
            request = await self.admission.admit_completion(tenant, call)
        return await self._answer(http, Endpoint.COMPLETION, request, call.options)

    async def models(self, http: web.Request) -> web.Response:
        self._authenticate(http)
        return json_response(
            models_json(self.model.name, created=self.started, max_model_tokens=self.limits.max_model_tokens)
        )

    async def one_model(self, http: web.Request) -> web.Response:
        self._authenticate(http)
        self.admission.check_model(http.match_info["name"].removesuffix("/"))
        return json_response(
            model_json(self.model.name, created=self.started, max_model_tokens=self.limits.max_model_tokens)
        )

    async def show_health(self, _: web.Request) -> web.Response:
        health = self.health()
        body: Json = {
            "status": "ok" if health.can_serve else "unavailable",
            "model": self.model.name,
            "requests": {"served": health.num_served, "queued": health.num_queued},
            "roles": {str(role): count._asdict() for role, count in health.roles.items()},
            "workers": {str(name): worker._asdict() for name, worker in health.workers.items()},
        }
        if health.can_serve:
            return json_response(body)
        return json_response(body, status=503, headers={"Retry-After": whole_seconds(RETRY_AFTER_S)})

    async def show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    @contextmanager
    def _counting_refusals(self) -> Generator[None]:
        try:
            yield
        except (InvalidRequest, Unauthorized, Forbidden):
            self.metrics.request_refused()
            raise

    def _authenticate(self, http: web.Request) -> TenantId:
        return self.tenants.authenticate(http.headers.get("Authorization"))

    async def _body(self, http: web.Request) -> bytes:
        return await read_body(http, limit=self.limits.max_body_bytes, timeout=self.limits.body_timeout_s)

    async def _answer(
        self, http: web.Request, endpoint: Endpoint, request: TokenRequest, options: Options
    ) -> web.StreamResponse:
        http.setdefault(_REQUEST_ID, request.request_id)
        shape = Shape(
            endpoint=endpoint,
            request_id=request.request_id,
            created=int(self.wall_clock()),
            model=self.model.name,
        )
        reply = self._reply(http, shape, options)
        try:
            return await self.runner.run(Job(request=request, stops=options.stops, reply=reply))
        except ClientLeft:
            raise
        except Exception as error:
            if isinstance(reply, StreamedReply) and reply.begun:
                return await _break_off(reply, error)
            raise

    def _reply(self, http: web.Request, shape: Shape, options: Options) -> Reply:
        timeout = self.limits.write_timeout_s
        if not options.stream:
            return WholeReply(http, shape, trace=options.trace, write_timeout_s=timeout)
        return StreamedReply(
            http,
            shape,
            usage_reports=options.usage_reports,
            trace=options.trace,
            write_timeout_s=timeout,
            keep_alive_s=self.limits.keep_alive_s,
        )


async def _break_off(reply: StreamedReply, error: Exception) -> web.StreamResponse:
    """After the first token: a typed event, then the connection closes."""
    refusal = refusal_of(error)
    if refusal.status == INTERNAL_ERROR:
        _logger.error("answer_broken_off", exc_info=error)
    return await reply.break_off(refusal.as_json())
