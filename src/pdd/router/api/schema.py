"""OpenAI's request bodies as checked values. Pure: bytes in, a call or ``InvalidRequest`` out.

``fields`` says which fields there are, ``reading`` how each kind of value is checked, ``messages`` what a chat holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pdd.core.errors import InvalidRequest
from pdd.core.ids import TokenId
from pdd.core.request import HandoffMode, Route, Steering
from pdd.router.api.body import read_object
from pdd.router.api.fields import CHAT, COMPLETION, PDD, STREAM_OPTIONS
from pdd.router.api.messages import Message, read_messages
from pdd.router.api.reading import (
    Record,
    flag,
    items,
    number,
    one_of,
    out_of_range,
    shown,
    text,
    text_of,
    unsupported,
    whole_number,
    wrong_type,
)
from pdd.router.api.replies import UsageReports

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_CACHE_SALT_CHARACTERS = 1024
"""As many as vLLM takes."""
MAX_TEMPERATURE = 2
_INT64 = (-(2**63), 2**63 - 1)
_MAX_COUNT = 2**31 - 1
_count = whole_number(1, _MAX_COUNT)
_token_id = whole_number(0, _MAX_COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What chats and completions have in common.

    None: of ``model``, the one that is served; of ``max_tokens``, the default; of ``seed``, one that the router draws.
    """

    model: str | None
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int | None
    seed: int | None
    stops: tuple[str, ...]
    stop_token_ids: frozenset[TokenId]
    ignore_eos: bool
    stream: bool
    usage_reports: UsageReports
    steering: Steering
    cache_salt: str | None
    trace: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A checked ``/v1/chat/completions`` body."""

    messages: tuple[Message, ...]
    options: Options


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCall:
    """A checked ``/v1/completions`` body; ``prompt`` is text or token IDs (not yet checked against the vocabulary)."""

    prompt: str | tuple[TokenId, ...]
    options: Options


def parse_chat(body: bytes) -> ChatCall:
    """Reads a chat request.

    Raises:
        InvalidRequest: it is not one; ``param`` says where.
    """
    chat = Record(read_object(body), "", CHAT)
    return ChatCall(
        messages=chat.require("messages", read_messages),
        options=_options(chat, _chat_max_tokens(chat)),
    )


def parse_completion(body: bytes) -> CompletionCall:
    """Reads a completion request.

    Raises:
        InvalidRequest: it is not one; ``param`` says where.
    """
    completion = Record(read_object(body), "", COMPLETION)
    return CompletionCall(
        prompt=completion.require("prompt", _prompt),
        options=_options(completion, completion.get("max_tokens", _count)),
    )


def _options(body: Record, max_tokens: int | None) -> Options:
    pdd = body.get("pdd", _pdd) or Record({}, "pdd", PDD)
    temperature = body.get("temperature", number(0, MAX_TEMPERATURE))
    stream = bool(body.get("stream", flag))
    return Options(
        model=body.get("model", text) or None,
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=body.get("top_p", _top_p) or 1.0,
        top_k=body.get("top_k", _top_k),
        seed=body.get("seed", _seed),
        stops=body.get("stop", _stops) or (),
        stop_token_ids=body.get("stop_token_ids", _stop_token_ids) or frozenset(),
        ignore_eos=bool(body.get("ignore_eos", flag)),
        stream=stream,
        usage_reports=_usage_reports(body, stream=stream),
        steering=_steering(pdd),
        cache_salt=_cache_salt(body, pdd),
        trace=bool(pdd.get("trace", flag)),
    )


def _chat_max_tokens(chat: Record) -> int | None:
    newer, older = chat.get("max_completion_tokens", _count), chat.get("max_tokens", _count)
    if newer is not None and older is not None and newer != older:
        raise _contradiction("max_tokens", older, "max_completion_tokens", newer)
    return newer if newer is not None else older


def _prompt(value: object, path: str) -> str | tuple[TokenId, ...]:
    """The one prompt of a batch of one, or the prompt itself."""
    if isinstance(value, str):
        return value
    prompts = items(value, path, "a text or a list of token IDs")
    if not prompts:
        raise InvalidRequest(f"{path}: it is empty", param=path, code="empty_prompt")
    kind = type(prompts[0])
    if kind not in (str, list):
        return _token_ids(prompts, path)
    if len(prompts) > 1:
        raise unsupported(path, f"a batch of {len(prompts)} prompts is not supported yet; send one prompt per request")
    first = f"{path}[0]"
    return text(prompts[0], first) if kind is str else _token_ids(items(prompts[0], first), first)


def _token_ids(values: list[object], path: str) -> tuple[TokenId, ...]:
    """Checks all at once: there may be millions, and every other stream waits."""
    kinds = list(map(type, values))
    others = [kinds.index(kind) for kind in set(kinds) - {int}]
    if others:
        at = min(others)
        raise wrong_type(values[at], f"{path}[{at}]", "a token ID; a prompt is a text or a list of token IDs")
    return cast(tuple[TokenId, ...], tuple(values))


def _usage_reports(body: Record, *, stream: bool) -> UsageReports:
    options = body.get("stream_options", _stream_options) or Record({}, "stream_options", STREAM_OPTIONS)
    at_end = options.get("include_usage", flag)
    throughout = options.get("continuous_usage_stats", flag)
    if (at_end or throughout) and not stream:
        raise InvalidRequest("stream_options: only allowed when stream is true", param="stream_options")
    if throughout and not at_end:
        path = options.path_of("continuous_usage_stats")
        raise InvalidRequest(f"{path}: true needs include_usage, which is not true", param=path)
    return UsageReports.THROUGHOUT if throughout else UsageReports.AT_END if at_end else UsageReports.NONE


def _stream_options(value: object, path: str) -> Record:
    return Record(value, path, STREAM_OPTIONS)


def _pdd(value: object, path: str) -> Record:
    return Record(value, path, PDD)


def _steering(pdd: Record) -> Steering:
    route = pdd.get("route", one_of("auto", "direct", "relay"))
    handoff = pdd.get("handoff", one_of("auto", "one_shot", "catch_up"))
    return Steering(
        route=None if route in (None, "auto") else Route(route),
        handoff=None if handoff in (None, "auto") else HandoffMode(handoff),
        handoff_after_tokens=pdd.get("handoff_after_tokens", _count),
    )


def _cache_salt(body: Record, pdd: Record) -> str | None:
    """Our field and vLLM's mean the same."""
    salt = text_of(0, MAX_CACHE_SALT_CHARACTERS)
    theirs, ours = body.get("cache_salt", salt), pdd.get("cache_salt", salt)
    if theirs is not None and ours is not None and theirs != ours:
        raise _contradiction("cache_salt", theirs, "pdd.cache_salt", ours)
    return ours if theirs is None else theirs


def _top_p(value: object, path: str) -> float:
    top_p = number(0, 1)(value, path)
    if top_p == 0.0:
        raise out_of_range(value, path, "greater than 0 and at most 1")
    return top_p


def _top_k(value: object, path: str) -> int | None:
    """Off is 0 or -1 for vLLM's users."""
    top_k = whole_number(*_INT64)(value, path)
    if top_k in (0, -1):
        return None
    if not 1 <= top_k <= _MAX_COUNT:
        raise out_of_range(value, path, f"from 1 to {_MAX_COUNT}, or null, 0 or -1 for no limit")
    return top_k


def _seed(value: object, path: str) -> int:
    """Folded from a signed 64-bit number into [0, 2**63)."""
    return whole_number(*_INT64)(value, path) % 2**63


def _stops(value: object, path: str) -> tuple[str, ...]:
    stop = text_of(1, MAX_STOP_CHARACTERS)
    if isinstance(value, str):
        return (stop(value, path),)
    stops = _at_most(MAX_STOPS, items(value, path, "a text or a list of texts"), path)
    return tuple(stop(each, f"{path}[{index}]") for index, each in enumerate(stops))


def _stop_token_ids(value: object, path: str) -> frozenset[TokenId]:
    ids = _at_most(MAX_STOP_TOKEN_IDS, items(value, path), path)
    return frozenset(_token_id(each, f"{path}[{index}]") for index, each in enumerate(ids))


def _at_most(most: int, values: list[object], path: str) -> list[object]:
    if len(values) > most:
        raise InvalidRequest(f"{path}: {len(values)} of them; at most {most} are allowed", param=path)
    return values


def _contradiction(name: str, value: object, other: str, other_value: object) -> InvalidRequest:
    return InvalidRequest(
        f"{name}: {shown(value)} contradicts {other} {shown(other_value)}; send one of them", param=name
    )


def check_token_ids(param: str, ids: Sequence[TokenId], vocab_size: int) -> None:
    """Raises InvalidRequest for the first ID that is not in the vocabulary.

    Nearly always there is none, and that is quick.
    """
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"{param}: token ID {shown(token)} at index {index} is not in the vocabulary; "
                f"IDs go from 0 to {vocab_size - 1}",
                param=param,
                code="invalid_token_id",
            )
