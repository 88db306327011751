"""OpenAI's response bodies, whole and in chunks, as plain JSON values. Pure shapes: nothing is sent here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import assert_never

import msgspec

from pdd.core.ids import TokenId, WorkerId
from pdd.core.request import FinishReason, Role
from pdd.router.base import RequestReport

Json = dict[str, object]


class Path(StrEnum):
    """What there is to ask."""

    CHAT = "/v1/chat/completions"
    COMPLETION = "/v1/completions"
    MODELS = "/v1/models"
    HEALTH = "/health"
    METRICS = "/metrics"


class Endpoint(StrEnum):
    """Which of OpenAI's two generation endpoints is answered."""

    CHAT = "chat"
    COMPLETION = "completion"


class UsageReports(Enum):
    """Where a streamed answer says what it cost."""

    NONE = "none"
    AT_END = "at the end"
    """In a chunk of its own behind the answer."""
    THROUGHOUT = "throughout"
    """There, and in each chunk what it cost so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int

    def as_json(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTrace:
    """Who computed a span's tokens, for a client that asked for a trace."""

    role: Role
    worker: WorkerId
    first_position: int
    token_ids: tuple[TokenId, ...]

    def as_json(self) -> Json:
        return {
            "role": str(self.role),
            "worker": self.worker,
            "first_position": self.first_position,
            "token_ids": list(self.token_ids),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One response's identity; ``created`` is in seconds since 1970."""

    endpoint: Endpoint
    request_id: str
    created: int
    model: str

    def opening_chunk(self, text: str) -> Json:
        """The first chunk: a chat's names the role that speaks."""
        match self.endpoint:
            case Endpoint.CHAT:
                return self._chunk({"delta": {"role": "assistant", "content": text}}, None)
            case Endpoint.COMPLETION:
                return self.text_chunk(text)
            case _:
                assert_never(self.endpoint)

    def text_chunk(self, text: str) -> Json:
        """More text, possibly none."""
        match self.endpoint:
            case Endpoint.CHAT:
                return self._chunk({"delta": {"content": text}}, None)
            case Endpoint.COMPLETION:
                return self._chunk({"text": text}, None)
            case _:
                assert_never(self.endpoint)

    def finish_chunk(self, reason: FinishReason) -> Json:
        """Why the answer ended."""
        match self.endpoint:
            case Endpoint.CHAT:
                return self._chunk({"delta": {}}, reason)
            case Endpoint.COMPLETION:
                return self._chunk({"text": ""}, reason)
            case _:
                assert_never(self.endpoint)

    def closing_chunk(self) -> Json:
        """A chunk without choices: for what is said about the whole answer."""
        return {**self._head(self._chunk_object()), "choices": []}

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> Json:
        """The complete, unstreamed response."""
        match self.endpoint:
            case Endpoint.CHAT:
                kind, content = "chat.completion", {"message": {"role": "assistant", "content": text, "refusal": None}}
            case Endpoint.COMPLETION:
                kind, content = "text_completion", {"text": text}
            case _:
                assert_never(self.endpoint)
        return {**self._head(kind), "choices": [_choice(content, reason)], "usage": usage.as_json()}

    def _chunk(self, content: Mapping[str, object], reason: FinishReason | None) -> Json:
        return {**self._head(self._chunk_object()), "choices": [_choice(content, reason)]}

    def _chunk_object(self) -> str:
        return "chat.completion.chunk" if self.endpoint is Endpoint.CHAT else "text_completion"

    def _head(self, kind: str) -> Json:
        prefix = "chatcmpl" if self.endpoint is Endpoint.CHAT else "cmpl"
        return {"id": f"{prefix}-{self.request_id}", "object": kind, "created": self.created, "model": self.model}


def _choice(content: Mapping[str, object], reason: FinishReason | None) -> Json:
    return {"index": 0, **content, "logprobs": None, "finish_reason": None if reason is None else str(reason)}


def report_json(report: RequestReport) -> Json:
    """A report as JSON; each event is one flat object."""
    plain: Json = msgspec.to_builtins(report, str_keys=True)
    plain["events"] = [{**event.fields, "at": event.at, "name": event.name} for event in report.events]
    return plain


def error_json(message: str, *, kind: str, param: str | None, code: str | None) -> Json:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def models_json(name: str, *, created: int, max_model_tokens: int) -> Json:
    """The list of models: one."""
    return {"object": "list", "data": [model_json(name, created=created, max_model_tokens=max_model_tokens)]}


def model_json(name: str, *, created: int, max_model_tokens: int) -> Json:
    """One model; ``max_model_len`` is vLLM's extension."""
    return {"id": name, "object": "model", "created": created, "owned_by": "pdd", "max_model_len": max_model_tokens}


def spans_json(spans: Sequence[SpanTrace]) -> list[Json]:
    """An unstreamed answer's spans in order."""
    return [span.as_json() for span in spans]
