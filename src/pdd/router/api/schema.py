"""OpenAI's request bodies as checked values. Pure: bytes in, a call or ``InvalidRequest`` out.

Unknown fields are refused with their path. Every refusal names the field, its value and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, cast, get_args

import msgspec

from pdd.core.errors import InvalidRequest
from pdd.core.ids import TokenId
from pdd.core.request import HandoffMode, Route
from pdd.router.api.parameters import (
    IGNORED,
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_COMPLETIONS,
    UNSUPPORTED_IN_MESSAGES,
    shown,
    without_unsupported,
)
from pdd.router.base import Steering

MAX_MESSAGES = 2048
"""As many as OpenAI takes. What a conversation costs grows with the square of their number, at worst."""
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_CACHE_SALT_CHARACTERS = 256
MAX_TEMPERATURE = 2.0
_INT64 = (-(2**63), 2**63 - 1)
_MAX_COUNT = 2**31 - 1

MessageRole = Literal["system", "user", "assistant"]
_RouteName = Literal["auto", "direct", "relay"]
_HandoffName = Literal["auto", "one_shot", "catch_up"]
_CHOICES = {
    "role": get_args(MessageRole),
    "route": get_args(_RouteName),
    "handoff": get_args(_HandoffName),
    "type": ("text",),
}
"""What a field of this name may say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation; its text parts are joined by newlines."""

    role: MessageRole
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What chats and completions have in common. ``seed`` None: the router draws one. ``max_tokens`` None: its default."""

    model: str
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int | None
    seed: int | None
    stops: tuple[str, ...]
    stop_token_ids: frozenset[TokenId]
    ignore_eos: bool
    stream: bool
    include_usage: bool
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


class _Wire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shapes only; ranges are checked by hand because a refusal must show the value."""


class _Pdd(_Wire, frozen=True, kw_only=True):
    route: _RouteName | None = None
    handoff: _HandoffName | None = None
    handoff_after_tokens: int | None = None
    cache_salt: str | None = None
    trace: bool | None = None


class _StreamOptions(_Wire, frozen=True, kw_only=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _TextPart(_Wire, frozen=True, kw_only=True):
    type: Literal["text"]
    text: str


class _Message(_Wire, frozen=True, kw_only=True):
    role: MessageRole
    content: str | list[_TextPart]


class _Common(_Wire, frozen=True, kw_only=True):
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    pdd: _Pdd | None = None


class _Chat(_Common, frozen=True, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None


class _Completion(_Common, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]


_Body = TypeVar("_Body", _Chat, _Completion)


def parse_chat(body: bytes) -> ChatCall:
    """Reads a chat request.

    Raises:
        InvalidRequest: it is not one; ``param`` says where.
    """
    fields = without_unsupported(_json_object(body), UNSUPPORTED_IN_CHAT)
    fields["messages"] = _plain_messages(fields["messages"]) if "messages" in fields else None
    chat = _convert(fields, _Chat)
    if not chat.messages:
        raise InvalidRequest("messages: there must be at least one", param="messages", code="empty_prompt")
    messages = tuple(Message(role=message.role, content=_text(message.content)) for message in chat.messages)
    return ChatCall(messages=messages, options=_options(chat, _chat_max_tokens(chat)))


def parse_completion(body: bytes) -> CompletionCall:
    """Reads a completion request.

    Raises:
        InvalidRequest: it is not one; ``param`` says where.
    """
    completion = _convert(without_unsupported(_json_object(body), UNSUPPORTED_IN_COMPLETIONS), _Completion)
    max_tokens = _in_range("max_tokens", completion.max_tokens, 1, _MAX_COUNT)
    return CompletionCall(prompt=_single_prompt(completion.prompt), options=_options(completion, max_tokens))


def _json_object(body: bytes) -> dict[str, object]:
    if not body.strip():
        raise InvalidRequest(
            "the body is empty; it must be a JSON object with the request's fields", code="invalid_json"
        )
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {shown(value)}", code="invalid_json")
    fields = cast(dict[str, object], value)
    return {name: field for name, field in fields.items() if name not in IGNORED}


def _plain_messages(messages: object) -> object:
    """Messages without the fields that are there but empty; anything else is left for the conversion to refuse."""
    if not isinstance(messages, list):
        return messages
    listed = cast(list[object], messages)
    if len(listed) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: {len(listed)} of them; at most {MAX_MESSAGES} are allowed", param="messages")
    return [_plain_message(message, index) for index, message in enumerate(listed)]


def _plain_message(message: object, index: int) -> object:
    if not isinstance(message, dict):
        return message
    fields = cast(dict[str, object], message)
    return without_unsupported(fields, UNSUPPORTED_IN_MESSAGES, path=f"messages[{index}].")


def _convert(fields: Mapping[str, object], shape: type[_Body]) -> _Body:
    present = {name: value for name, value in fields.items() if not (name == "messages" and value is None)}
    try:
        return msgspec.convert(present, shape)
    except msgspec.ValidationError as error:
        raise _refused_shape(str(error), present) from error


_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"(?P<kind>unknown|required) field `(?P<name>[^`]*)`")


def _refused_shape(text: str, fields: Mapping[str, object]) -> InvalidRequest:
    """The message of msgspec, with the path written the way OpenAI does and the value added."""
    found = _PATH.match(text)
    what, path = (found["what"], found["path"] or "") if found else (text, "")
    field = _FIELD.search(what)
    if field:
        param = f"{path}.{field['name']}" if path else field["name"]
        code = "unknown_parameter" if field["kind"] == "unknown" else "missing_required_parameter"
        saying = "unknown parameter" if field["kind"] == "unknown" else "this parameter is required"
        return InvalidRequest(f"{param}: {saying}", param=param, code=code)
    value = shown(_value_at(fields, path))
    choices = _CHOICES.get(path.rpartition(".")[2])
    if choices:
        return InvalidRequest(f"{path}: {value} is not one of {', '.join(choices)}", param=path)
    return InvalidRequest(f"{path}: {what}; the value is {value}", param=path, code="invalid_type")


def _value_at(fields: Mapping[str, object], path: str) -> object:
    value: object = dict(fields)
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if index and isinstance(value, list):
            value = cast(list[object], value)[int(index)]
        elif key and isinstance(value, dict):
            value = cast(dict[str, object], value).get(key)
    return value


def _text(content: str | list[_TextPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _chat_max_tokens(chat: _Chat) -> int | None:
    newer = _in_range("max_completion_tokens", chat.max_completion_tokens, 1, _MAX_COUNT)
    older = _in_range("max_tokens", chat.max_tokens, 1, _MAX_COUNT)
    if newer is not None and older is not None and newer != older:
        raise InvalidRequest(
            f"max_tokens: {older} contradicts max_completion_tokens {newer}; send one of them", param="max_tokens"
        )
    return newer if newer is not None else older


def _single_prompt(prompt: str | list[str | int | list[int]]) -> str | tuple[TokenId, ...]:
    """The one prompt of a batch of one, or the prompt itself."""
    if isinstance(prompt, str):
        return prompt
    if not prompt:
        raise InvalidRequest("prompt: it is empty", param="prompt", code="empty_prompt")
    first = prompt[0]
    if set(map(type, prompt)) == {int}:  # all at once: there may be millions, and every other stream waits
        return tuple(cast(list[TokenId], prompt))
    if isinstance(first, int):
        return tuple(_token_id(token, index) for index, token in enumerate(prompt))
    if len(prompt) > 1:
        raise InvalidRequest(
            f"prompt: a batch of {len(prompt)} prompts is not supported yet; send one prompt per request",
            param="prompt",
            code="unsupported_parameter",
        )
    return first if isinstance(first, str) else tuple(first)


def _token_id(token: str | int | list[int], index: int) -> TokenId:
    if not isinstance(token, int):
        raise InvalidRequest(
            f"prompt[{index}]: {shown(token)} among token IDs; a prompt is a text or a list of token IDs",
            param=f"prompt[{index}]",
            code="invalid_type",
        )
    return token


def _options(body: _Common, max_tokens: int | None) -> Options:
    pdd = body.pdd or _Pdd()
    streaming = body.stream_options or _StreamOptions()
    _check_streaming(body, streaming)
    top_p = _in_range("top_p", body.top_p, 0.0, 1.0)
    if top_p == 0.0:
        raise _out_of_range("top_p", top_p, "greater than 0 and at most 1")
    temperature = _in_range("temperature", body.temperature, 0.0, MAX_TEMPERATURE)
    return Options(
        model=body.model,
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=_top_k(body.top_k),
        seed=_seed(body.seed),
        stops=_stops(body.stop),
        stop_token_ids=_stop_token_ids(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        stream=bool(body.stream),
        include_usage=bool(streaming.include_usage),
        steering=_steering(pdd),
        cache_salt=_cache_salt(pdd.cache_salt),
        trace=bool(pdd.trace),
    )


def _check_streaming(body: _Common, streaming: _StreamOptions) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options: only allowed when stream is true", param="stream_options")
    if streaming.include_obfuscation:
        raise InvalidRequest(
            "stream_options.include_obfuscation: true is not supported yet; leave it out or set it to false",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )


def _steering(pdd: _Pdd) -> Steering:
    return Steering(
        route=None if pdd.route in (None, "auto") else Route(pdd.route),
        handoff=None if pdd.handoff in (None, "auto") else HandoffMode(pdd.handoff),
        handoff_after_tokens=_in_range("pdd.handoff_after_tokens", pdd.handoff_after_tokens, 1, _MAX_COUNT),
    )


def _cache_salt(salt: str | None) -> str | None:
    if salt is not None and len(salt) > MAX_CACHE_SALT_CHARACTERS:
        raise _out_of_range("pdd.cache_salt", salt, f"at most {MAX_CACHE_SALT_CHARACTERS} characters long")
    return salt


def _top_k(top_k: int | None) -> int | None:
    """Off is 0 or -1 for vLLM's users."""
    if top_k in (None, 0, -1):
        return None
    if not 1 <= top_k <= _MAX_COUNT:
        raise _out_of_range("top_k", top_k, f"from 1 to {_MAX_COUNT}, or null, 0 or -1 for no limit")
    return top_k


def _seed(seed: int | None) -> int | None:
    """Folded from a signed 64-bit number into [0, 2**63)."""
    checked = _in_range("seed", seed, *_INT64)
    return None if checked is None else checked % 2**63


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop: {len(stops)} strings; at most {MAX_STOPS} are allowed", param="stop")
    for index, text in enumerate(stops):
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            param = "stop" if isinstance(stop, str) else f"stop[{index}]"
            raise _out_of_range(param, text, f"from 1 to {MAX_STOP_CHARACTERS} characters long")
    return stops


def _stop_token_ids(ids: Sequence[int]) -> frozenset[TokenId]:
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"stop_token_ids: {len(ids)} of them; at most {MAX_STOP_TOKEN_IDS} are allowed", param="stop_token_ids"
        )
    return frozenset(ids)


_Number = TypeVar("_Number", int, float)


def _in_range(param: str, value: _Number | None, low: _Number, high: _Number) -> _Number | None:
    if value is not None and not low <= value <= high:
        raise _out_of_range(param, value, f"from {low} to {high}")
    return value


def _out_of_range(param: str, value: object, right: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {shown(value)} is out of range; it must be {right}", param=param)


def check_token_ids(param: str, ids: Sequence[TokenId], vocab_size: int) -> None:
    """Raises InvalidRequest for the first ID that is not in the vocabulary."""
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"{param}: token ID {token} at index {index} is not in the vocabulary; IDs go from 0 to {vocab_size - 1}",
                param=param,
                code="invalid_token_id",
            )
