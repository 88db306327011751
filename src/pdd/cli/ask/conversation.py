"""What is asked of the router and what comes back, as values: OpenAI's bodies with the ``pdd`` field, and nothing of
sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import msgspec

from pdd.core.errors import InvalidRequest, PddError, RemoteProtocolError, Unauthorized, Unavailable, WorkerFailed
from pdd.core.ids import TokenId
from pdd.core.request import HandoffMode, Role, Route
from pdd.core.units import Bytes, Seconds
from pdd.engine.http.sse import DONE

_DEFAULT_RETRY_AFTER = Seconds(1.0)
_REFUSALS = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)

# The question ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation; ``role`` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Asked at ``/v1/chat/completions``."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """Asked at ``/v1/completions``, token for token."""

    token_ids: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How tokens are drawn; the defaults are greedy. None leaves a setting to the router."""

    temperature: float | None = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What is pinned about how the request is served; None leaves it to the policies."""

    route: Route | None = None
    handoff: HandoffMode | None = None
    handoff_after_tokens: int | None = None
    cache_salt: str | None = None

    def with_salt(self, cache_salt: str) -> Pins:
        """The same pins, in caches of their own."""
        return replace(self, cache_salt=cache_salt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request. ``ignore_eos`` goes on past the model's own end, up to ``max_tokens``."""

    prompt: Conversation | TokenPrompt
    model: str
    max_tokens: int | None = None
    draw: Draw = Draw()
    pins: Pins = Pins()
    ignore_eos: bool = False


# The answer -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """One chunk: tokens of one role, ``at`` seconds after the question was sent. ``text`` may lag behind the tokens."""

    at: Seconds
    role: Role
    worker: str
    first_position: int
    token_ids: tuple[TokenId, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedEvent:
    """One event of the router's report, ``at`` seconds after it opened the request."""

    at: Seconds
    name: str
    fields: dict[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReport:
    """The router's own view of the request; see ``router.base.RequestReport``."""

    route: Route | None
    route_reason: str
    num_prompt_tokens: int
    tokens_by_role: dict[Role, int]
    handoff_rounds: int
    wan_kv_bytes: Bytes
    events: tuple[ReportedEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedAnswer:
    """A complete answer."""

    spans: tuple[ReceivedSpan, ...]
    finish_reason: str
    ended_at: Seconds
    report: RouterReport

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)

    @property
    def token_ids(self) -> tuple[TokenId, ...]:
        return tuple(token for span in self.spans for token in span.token_ids)


SpanListener = Callable[[ReceivedSpan], None]

# The wire -------------------------------------------------------------------------------------------------------------


class _ReportBody(msgspec.Struct, kw_only=True):
    route: Route | None = None
    route_reason: str = ""
    num_prompt_tokens: int = 0
    tokens_by_role: dict[Role, int] = {}
    handoff_rounds: int = 0
    wan_kv_bytes: int = 0
    events: list[dict[str, object]] = []


class _TraceBody(msgspec.Struct, kw_only=True):
    role: Role | None = None
    worker: str = ""
    first_position: int = 0
    token_ids: list[int] = []
    report: _ReportBody | None = None


class _DeltaBody(msgspec.Struct, kw_only=True):
    content: str | None = None


class _ChoiceBody(msgspec.Struct, kw_only=True):
    delta: _DeltaBody | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        return (self.delta.content if self.delta else self.text) or ""


class _ErrorDetail(msgspec.Struct, kw_only=True):
    message: str = ""
    param: str | None = None
    code: str | int | None = None


class _ErrorBody(msgspec.Struct, kw_only=True):
    error: _ErrorDetail


class _ChunkBody(msgspec.Struct, kw_only=True):
    error: _ErrorDetail | None = None
    choices: list[_ChoiceBody] = []
    pdd: _TraceBody | None = None


class _ModelBody(msgspec.Struct, kw_only=True):
    id: str


class _ModelsBody(msgspec.Struct, kw_only=True):
    data: list[_ModelBody]


_CHUNKS = msgspec.json.Decoder(_ChunkBody)


def read_model_name(body: bytes) -> str:
    """The one model that ``/v1/models`` lists.

    Raises:
        RemoteProtocolError: it lists none.
    """
    try:
        return msgspec.json.decode(body, type=_ModelsBody).data[0].id
    except (msgspec.MsgspecError, IndexError) as error:
        raise RemoteProtocolError(f"the router does not list its model: {error}") from error


def error_of_status(status: int, retry_after: str | None, body: bytes) -> PddError:
    """What a response that isn't 200 means. ``retry_after`` is the header's value, in seconds."""
    try:
        detail = msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        detail = _ErrorDetail(message=f"the router answered HTTP {status}")
    if status == HTTPStatus.UNAUTHORIZED:
        return Unauthorized(detail.message)
    if status in _REFUSALS:
        return InvalidRequest(detail.message, param=detail.param, code=str(detail.code or "invalid_value"))
    if status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}:
        seconds = float(retry_after) if retry_after and retry_after.isdecimal() else _DEFAULT_RETRY_AFTER
        return Unavailable(detail.message, retry_after_s=Seconds(seconds))
    return WorkerFailed(detail.message)


def encode_question(question: Question) -> tuple[str, dict[str, object]]:
    """The path to post to, and the body."""
    match question.prompt:
        case Conversation(messages=messages):
            path = "/v1/chat/completions"
            body: dict[str, object] = {"messages": [{"role": m.role, "content": m.content} for m in messages]}
        case TokenPrompt(token_ids=token_ids):
            path = "/v1/completions"
            body = {"prompt": list(token_ids)}
    draw, pins = question.draw, question.pins
    steering: dict[str, object] = {
        "route": pins.route,
        "handoff": pins.handoff,
        "handoff_after_tokens": pins.handoff_after_tokens,
        "cache_salt": pins.cache_salt,
        "trace": True,
    }
    settings: dict[str, object] = {
        "max_tokens": question.max_tokens,
        "temperature": draw.temperature,
        "top_k": draw.top_k,
        "top_p": draw.top_p,
        "seed": draw.seed,
        "ignore_eos": question.ignore_eos or None,
        "pdd": _set_only(steering),
    }
    return path, body | {"model": question.model, "stream": True} | _set_only(settings)


def _set_only(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


class AnswerBuilder:
    """Puts an answer together from a stream's events. Sans-IO: the caller says when each arrived."""

    def __init__(self, on_span: SpanListener | None = None) -> None:
        self._on_span = on_span
        self._spans: list[ReceivedSpan] = []
        self._finish_reason: str | None = None
        self._report: RouterReport | None = None
        self._done_at: Seconds | None = None

    def receive(self, event: bytes, *, at: Seconds) -> None:
        """Takes one event's data.

        Raises:
            WorkerFailed: the event carries an error.
            RemoteProtocolError: it is not what a router sends.
        """
        if event == DONE:
            self._done_at = at
            return
        try:
            chunk = _CHUNKS.decode(event)
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(f"the router sent a chunk that is none: {error}") from error
        if chunk.error is not None:
            raise WorkerFailed(f"the answer broke off: {chunk.error.message}")
        self._take(chunk, at)

    def _take(self, chunk: _ChunkBody, at: Seconds) -> None:
        choice = chunk.choices[0] if chunk.choices else _ChoiceBody()
        trace = chunk.pdd or _TraceBody()
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
        if trace.report is not None:
            self._report = _read_report(trace.report)
        if not (trace.token_ids or choice.piece):
            return
        span = self._make_span(trace, choice.piece, at)
        self._spans.append(span)
        if self._on_span is not None:
            self._on_span(span)

    def _make_span(self, trace: _TraceBody, text: str, at: Seconds) -> ReceivedSpan:
        """Text that is flushed without tokens belongs to whoever computed the last token."""
        last = self._spans[-1] if self._spans else None
        role = trace.role or (last.role if last else None)
        if role is None:
            raise RemoteProtocolError("the router does not say who computed the answer's first text")
        expected = last.first_position + len(last.token_ids) if last else 0
        if trace.token_ids and trace.first_position != expected:
            raise RemoteProtocolError(f"tokens arrived from position {trace.first_position}; {expected} was due")
        return ReceivedSpan(
            at=at,
            role=role,
            worker=trace.worker or (last.worker if last else ""),
            first_position=expected,
            token_ids=tuple(trace.token_ids),
            text=text,
        )

    def finish(self) -> ReceivedAnswer:
        """Call at the end of the stream.

        Raises:
            WorkerFailed: it ended before the answer did.
            RemoteProtocolError: the report is missing.
        """
        if self._finish_reason is None or self._done_at is None:
            raise WorkerFailed("the answer broke off: the router's stream ended early")
        if self._report is None:
            raise RemoteProtocolError("the router sent no report though a trace was asked for")
        return ReceivedAnswer(
            spans=tuple(self._spans),
            finish_reason=self._finish_reason,
            ended_at=self._done_at,
            report=self._report,
        )


def _read_report(body: _ReportBody) -> RouterReport:
    return RouterReport(
        route=body.route,
        route_reason=body.route_reason,
        num_prompt_tokens=body.num_prompt_tokens,
        tokens_by_role=body.tokens_by_role,
        handoff_rounds=body.handoff_rounds,
        wan_kv_bytes=Bytes(body.wan_kv_bytes),
        events=_read_events(body.events),
    )


def _read_events(events: list[dict[str, object]]) -> tuple[ReportedEvent, ...]:
    """Events without a name or a time are not worth failing an answer for: they are only drawn."""
    read: list[ReportedEvent] = []
    for event in events:
        at, name = event.get("at"), event.get("name")
        if isinstance(at, int | float) and isinstance(name, str):
            rest = {key: value for key, value in event.items() if key not in {"at", "name"}}
            nested = rest.pop("fields", None)
            read.append(ReportedEvent(at=Seconds(float(at)), name=name, fields=rest | _as_fields(nested)))
    return tuple(read)


def _as_fields(value: object) -> dict[str, object]:
    return msgspec.convert(value, dict[str, object]) if isinstance(value, dict) else {}
