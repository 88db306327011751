"""Traces as JSON lines: one object a request, with the hash ids of its prompt's blocks."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn, cast

import msgspec

from pdd.core.errors import ConfigError
from pdd.sim.workload.trace.report import Doubts
from pdd.sim.workload.trace.rows import (
    MOST_TIME,
    Format,
    Place,
    Row,
    TimeUnit,
    note_row,
    shown,
    wrong_ids,
    wrong_length,
)

MOONCAKE = Format(name="Mooncake", unit=TimeUnit.MILLISECONDS, block_tokens=512)
BAILIAN = Format(name="Qwen-Bailian", unit=TimeUnit.SECONDS, block_tokens=16, ids_name_prefixes=False)
_BLANK = " \t\r"
"""What JSON lets stand between its parts, but for the end of a line."""
_NO_PARENT = -1
"""Qwen-Bailian's word for a chat that begins."""

_HALF_A_PAIR = re.compile(r"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|[c-fC-F]..)")

_NOT_READ: Mapping[str, str] = {
    "requests": "one conversation, as kv-cache-tester records them: when it began, beside others, isn't in it; "
    "put its requests on lines of their own, with timestamp, input_length, output_length and hash_ids",
    "turns": "sessions with their turns inside, as in GitHub Copilot's traces; put each call on a line of its own, with "
    "timestamp, input_length and output_length",
}


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds have; fields that are not named here are passed over."""

    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] | None = None


class _MooncakeLine(_Line, frozen=True, kw_only=True):
    session_id: str | int | None = None


class _BailianLine(_Line, frozen=True, kw_only=True):
    chat_id: int
    parent_chat_id: int = _NO_PARENT


@dataclass(frozen=True, slots=True)
class _Field:
    """``fits`` says whether a value is what ``words`` say that it must be."""

    words: str
    fits: Callable[[object], bool]
    is_needed: bool = True


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: object) -> bool:
    return (_is_whole(value) or isinstance(value, float)) and abs(cast("float", value)) <= MOST_TIME


def _are_ids(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_whole, cast("list[object]", value))))


def _is_name(value: object) -> bool:
    return value is None or isinstance(value, str) or _is_whole(value)


_WHOLE = _Field("a whole number", _is_whole)
_FIELDS: Mapping[str, _Field] = {
    "timestamp": _Field("a number", _is_time),
    "input_length": _WHOLE,
    "output_length": _WHOLE,
    "hash_ids": _Field("a list of whole numbers", _are_ids, is_needed=False),
}
_NEEDED = ", ".join(name for name, field in _FIELDS.items() if field.is_needed)
_MORE_FIELDS: Mapping[Format, Mapping[str, _Field]] = {
    MOONCAKE: {"session_id": _Field("text or a whole number", _is_name, is_needed=False)},
    BAILIAN: {"chat_id": _WHOLE, "parent_chat_id": _Field("a whole number", _is_whole, is_needed=False)},
}


def find_json(text: str, file: str) -> Format:
    """Which it is, by the fields of its first line.

    Raises:
        ConfigError: it is JSON, but no trace that can be read. Says what is missing.
    """
    first = next(line for line in text.split("\n") if line.strip(_BLANK))
    begun = _decoded(first)
    whole = _decoded(text) if begun is None else begun
    if not isinstance(whole, dict):
        if isinstance(whole, list):
            raise ConfigError(
                f"{file}: a list; a trace has one request a line, an object each, and nothing around them"
            )
        return MOONCAKE  # what is wrong with its first line is told when that is read
    fields = cast("dict[str, object]", whole)
    for name, why in _NOT_READ.items():
        if isinstance(fields.get(name), list):
            raise ConfigError(f"{file}: {why}")
    if begun is None:
        raise ConfigError(f"{file}: one object in several lines; a trace has one request a line")
    return BAILIAN if "chat_id" in fields else MOONCAKE


def read_json(text: str, known: Format, block_tokens: int, file: str, doubts: Doubts) -> Iterator[Row]:
    """One row for each line that isn't blank. Lines end with LF only: all other line ends may stand in strings.

    Raises:
        ConfigError: a line is not what it should be.
    """
    before: Row | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip(_BLANK):
            row = _row(line, number, known, block_tokens, file)
            note_row(row, before, doubts)
            before = row
            yield row


def _row(line: str, number: int, known: Format, block_tokens: int, file: str) -> Row:
    try:
        told = msgspec.json.decode(line, type=_BailianLine if known is BAILIAN else _MooncakeLine)
    except (msgspec.DecodeError, RecursionError) as error:
        _refuse(line, number, known, file, str(error))
    ids = told.hash_ids or ()
    wrong = {
        "timestamp": None if _is_time(told.timestamp) else f"{told.timestamp}: it is too far away",
        "input_length": wrong_length(told.input_length),
        "output_length": wrong_length(told.output_length),
        "hash_ids": wrong_ids(ids, told.input_length, block_tokens),
    }
    for name, why in wrong.items():
        if why is not None:
            Place(file, number, _columns(line)[name]).refuse(f"{name} {why}")
    assert known.unit is not None
    row = Row(
        line=number,
        at_ns=round(told.timestamp * known.unit.ns),
        input_length=told.input_length,
        output_length=told.output_length,
        hash_ids=ids,
    )
    match told:
        case _BailianLine(chat_id=chat, parent_chat_id=parent):
            return replace(row, chat=chat, parent_chat=None if parent == _NO_PARENT else parent)
        case _MooncakeLine(session_id=session):
            return row if session is None or session == "" else replace(row, session=str(session))


def _refuse(line: str, number: int, known: Format, file: str, why: str) -> NoReturn:
    """Raises ConfigError, in our words where they can be found: which field, where it stands, what it must be."""
    begin = len(line) - len(line.lstrip(_BLANK)) + 1
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        Place(file, number, error.pos + 1).refuse(f"not JSON: {error.msg}")
    except (ValueError, RecursionError):
        Place(file, number, begin).refuse(f"not JSON that can be read: {why}")
    if not isinstance(value, dict):
        Place(file, number, begin).refuse(f"{shown(line.strip())}: it must be an object with {_NEEDED}")
    fields, columns = cast("dict[str, object]", value), _columns(line)
    for name, field in {**_FIELDS, **_MORE_FIELDS[known]}.items():
        if name not in fields:
            if field.is_needed:
                Place(file, number, begin).refuse(f"{name} is missing")
        elif not field.fits(fields[name]):
            Place(file, number, columns[name]).refuse(f"{name} {shown(fields[name])}: it must be {field.words}")
    half = _HALF_A_PAIR.search(line)
    if half is not None:
        Place(file, number, half.start() + 1).refuse(f"not JSON: half of a surrogate pair, {half[0]}")
    Place(file, number, begin).refuse(f"not JSON: {why}")


def _columns(line: str) -> defaultdict[str, int]:
    """Where each field's value stands, from 1. ``line`` is an object; one too deep for Python has only a beginning."""
    decoder, columns = json.JSONDecoder(), defaultdict[str, int](lambda: 1)
    at = line.index("{") + 1
    try:
        while (at := _skip(line, at, ",")) and line[at] != "}":
            name, at = decoder.raw_decode(line, at)
            at = _skip(line, at, ":")
            columns[name] = at + 1
            _, at = decoder.raw_decode(line, at)
    except RecursionError:
        pass
    return columns


def _skip(line: str, at: int, mark: str) -> int:
    while line[at] in _BLANK or line[at] == mark:
        at += 1
    return at


def _decoded(text: str) -> object:
    """None: it isn't JSON by itself."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
