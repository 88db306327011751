"""What an engine answers over HTTP: vLLM's token-level replies, as bytes. No I/O.

Replies are read leniently, since other engines add fields of their own. vLLM's events do not say where a span begins;
ours carry ``first_position`` beside it, so that a lost span is noticed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pdd.core.errors import WorkerFailed
from pdd.core.ids import NodeId
from pdd.core.request import FinishReason, TokenSpan
from pdd.engine.base import EngineInfo
from pdd.engine.http.errors import ErrorDetail, error_of_event

INFO_PATH = "/pdd/v1/info"
MODELS_PATH = "/v1/models"
HEALTH_PATH = "/health"

WireToken = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Choice(msgspec.Struct, kw_only=True):
    """One answer, or a piece of it. vLLM's finish reasons include ``abort`` and ``error``, hence a string."""

    index: int
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: None = None
    first_position: int | None = None


class GenerateReply(msgspec.Struct, kw_only=True):
    """A whole answer (not streamed)."""

    request_id: str
    choices: list[Choice]
    kv_transfer_params: None = None


class StreamReply(msgspec.Struct, kw_only=True):
    """One event of a streamed answer."""

    request_id: str
    choices: list[Choice]


class ReadChoice(msgspec.Struct, kw_only=True):
    """A choice as another engine may send it; its other fields are skipped."""

    index: int = 0
    token_ids: list[WireToken] | None = None
    finish_reason: str | None = None
    first_position: int | None = None


class ReadEvent(msgspec.Struct, kw_only=True):
    """Any event of a stream: tokens, usage (``choices`` is empty) or an error."""

    choices: list[ReadChoice] | None = None
    error: ErrorDetail | None = None


class InfoBody(msgspec.Struct, kw_only=True):
    """``GET /pdd/v1/info``: the fields of ``EngineInfo``."""

    model: str
    max_model_tokens: int
    kv_format: str | None = None
    sampling_version: int | None = None
    node: NodeId | None = None
    instance: str


_ENCODER = msgspec.json.Encoder()
_EVENT_DECODER = msgspec.json.Decoder(ReadEvent)
_INFO_DECODER = msgspec.json.Decoder(InfoBody)


def encode_span(request_id: str, span: TokenSpan) -> bytes:
    """One event's data."""
    return _ENCODER.encode(StreamReply(request_id=request_id, choices=[_choice_of(span)]))


def encode_answer(request_id: str, span: TokenSpan) -> bytes:
    """A whole answer as one body."""
    return _ENCODER.encode(GenerateReply(request_id=request_id, choices=[_choice_of(span)]))


def decode_event(data: bytes, *, next_position: int) -> TokenSpan | None:
    """The span that an event carries; None where it carries none (usage, an empty first event).

    Raises:
        PddError: the error that the event reports.
        WorkerFailed: garbage, or a finish that is none (the engine aborted the request by itself).
    """
    try:
        event = _EVENT_DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WorkerFailed(f"the engine sent an event that can't be read: {error}") from None
    if event.error is not None:
        raise error_of_event(event.error)
    if event.choices is None:
        raise WorkerFailed("the engine sent an event with neither choices nor an error")
    return _read_choices(event.choices, next_position)


def decode_info(data: bytes) -> EngineInfo:
    """Raises WorkerFailed when it isn't one."""
    try:
        body = _INFO_DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WorkerFailed(f"the engine's description can't be read: {error}") from None
    return EngineInfo(
        model=body.model,
        max_model_tokens=body.max_model_tokens,
        kv_format=body.kv_format,
        sampling_version=body.sampling_version,
        node=body.node,
        instance=body.instance,
    )


def encode_info(info: EngineInfo) -> bytes:
    """The body of ``GET /pdd/v1/info``."""
    body = InfoBody(
        model=info.model,
        max_model_tokens=info.max_model_tokens,
        kv_format=info.kv_format,
        sampling_version=info.sampling_version,
        node=info.node,
        instance=info.instance,
    )
    return _ENCODER.encode(body)


def encode_health(*, num_running: int) -> bytes:
    """The body of ``GET /health``: the engine is well, and so many generations have begun and not let go of it."""
    return _ENCODER.encode({"status": "ok", "running": num_running})


def encode_models(info: EngineInfo) -> bytes:
    """The body of ``GET /v1/models``: exactly the one model."""
    model = {
        "id": info.model,
        "object": "model",
        "created": 0,
        "owned_by": "pdd",
        "max_model_len": info.max_model_tokens,
    }
    return _ENCODER.encode({"object": "list", "data": [model]})


def _choice_of(span: TokenSpan) -> Choice:
    return Choice(
        index=0,
        token_ids=list(span.tokens),
        finish_reason=span.finish_reason,
        first_position=span.first_position,
    )


def _read_choices(choices: list[ReadChoice], next_position: int) -> TokenSpan | None:
    if not choices:
        return None
    if len(choices) > 1 or choices[0].index != 0:
        raise WorkerFailed("the engine sent more choices than the one asked for")
    choice = choices[0]
    if not choice.token_ids and choice.finish_reason is None:
        return None
    return TokenSpan(
        first_position=next_position if choice.first_position is None else choice.first_position,
        tokens=tuple(choice.token_ids or ()),
        finish_reason=_read_finish(choice.finish_reason),
    )


def _read_finish(reason: str | None) -> FinishReason | None:
    if reason is None:
        return None
    try:
        return FinishReason(reason)
    except ValueError:
        raise WorkerFailed(f"the engine ended the request by itself: finish_reason is {reason!r}") from None
