"""The messages of a chat: roles and contents as every chat template knows them. Pure.

OpenAI's newer words for the same thing are read as the old ones: ``developer`` is ``system``, a refusal is what the
assistant said, and an assistant's turn without content is an empty text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NewType, cast

from pdd.core.errors import InvalidRequest
from pdd.router.api.fields import MESSAGE, REFUSAL_PART, TEXT_PART
from pdd.router.api.reading import Record, items, one_of, shown, text, text_of, unsupported, wrong_type

MAX_MESSAGES = 2048
"""As many as OpenAI takes. What a conversation costs grows with the square of their number, at worst."""
MAX_PARTS = 8192
"""Content parts of all messages together: each is looked at while every other stream waits."""
MAX_NAME_CHARACTERS = 256

MessageRole = Literal["system", "user", "assistant"]
_ROLES: dict[str, MessageRole] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_NOT_YET = {
    "role": {"tool": "tools are", "function": "tools are"},
    "type": {"image_url": "images are", "input_audio": "audio is", "file": "files are"},
}
"""What OpenAI's schema allows, and why it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation; its text parts are joined by newlines. What ``name`` means, the template says."""

    role: MessageRole
    content: str
    name: str | None = None


MaskedMessage = NewType("MaskedMessage", Message)
"""Without any text of a special token in it (``special_text``): a template may have it."""


def read_messages(value: object, path: str) -> tuple[Message, ...]:
    """Raises InvalidRequest."""
    messages = items(value, path)
    if not messages:
        raise InvalidRequest(f"{path}: there must be at least one", param=path, code="empty_prompt")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"{path}: {len(messages)} of them; at most {MAX_MESSAGES} are allowed", param=path)
    _check_num_parts(messages, path)
    return tuple(_message(message, f"{path}[{index}]") for index, message in enumerate(messages))


def _check_num_parts(messages: list[object], path: str) -> None:
    contents = (cast(dict[str, object], each).get("content") for each in messages if isinstance(each, dict))
    num_parts = sum(len(cast(list[object], content)) for content in contents if isinstance(content, list))
    if num_parts > MAX_PARTS:
        message = f"{path}: their contents have {num_parts} parts; at most {MAX_PARTS} are allowed"
        raise InvalidRequest(message, param=path)


def _message(value: object, path: str) -> Message:
    role = _ROLES[_kind(value, path, "role", tuple(_ROLES))]
    message = Record(value, path, MESSAGE)
    return Message(
        role=role,
        content=_assistant_content(message) if role == "assistant" else _content_of_others(message),
        name=message.get("name", text_of(0, MAX_NAME_CHARACTERS)),
    )


def _assistant_content(message: Record) -> str:
    content = message.get("content", partial(_content, kinds=("text", "refusal"))) or ""
    refusal = message.get("refusal", text) or ""
    if content and refusal:
        path = message.path_of("refusal")
        raise unsupported(path, f"{shown(refusal)} beside a content is not supported yet; leave one of them out")
    return content or refusal


def _content_of_others(message: Record) -> str:
    refusal = message.get("refusal", text)
    if refusal is not None:
        raise unsupported(message.path_of("refusal"), f"{shown(refusal)}: only an assistant refuses; leave it out")
    return message.require("content", partial(_content, kinds=("text",)))


def _content(value: object, path: str, *, kinds: tuple[str, ...]) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(value, path, "a text or a list of parts")
    parts = cast(list[object], value)
    return "\n".join(_part(part, f"{path}[{index}]", kinds) for index, part in enumerate(parts))


def _part(value: object, path: str, kinds: tuple[str, ...]) -> str:
    kind = _kind(value, path, "type", kinds)
    return Record(value, path, REFUSAL_PART if kind == "refusal" else TEXT_PART).require(kind, text)


def _kind(value: object, path: str, field: str, kinds: tuple[str, ...]) -> str:
    """What sort of object this is, before anything else is said about its fields."""
    if not isinstance(value, dict):
        raise wrong_type(value, path, "an object")
    param, kind = f"{path}.{field}", cast(dict[str, object], value).get(field)
    if kind is None:
        message = f"{param}: it is missing; it must be one of {', '.join(kinds)}"
        raise InvalidRequest(message, param=param, code="missing_required_parameter")
    if isinstance(kind, str) and kind in _NOT_YET[field]:
        raise unsupported(
            param, f"{shown(kind)}: {_NOT_YET[field][kind]} not supported yet; use one of {', '.join(kinds)}"
        )
    return one_of(*kinds)(kind, param)
