"""A request's body as a JSON object, or a refusal that says why it is none. Pure.

Megabytes of next to nothing (``[],[],...``) take seconds and gigabytes to read, while nobody else gets the interpreter.
So it is counted first what a large body is made of. What the JSON library says stays here. It knows neither fields nor
halves of surrogate pairs, so what it can't read is read once more, leniently, in search of what is wrong.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf, isinf
from typing import cast

import msgspec

from pdd.core.errors import BodyTooLarge, InvalidRequest
from pdd.router.api.reading import cut, shown

_SMALL = 64 * 1024
"""So much is read in no time, whatever it is made of."""
_MOST_TEXTS = 200_000
_MOST_CONTAINERS = 100_000
_MOST_VALUES = 1_100_000
"""A prompt of a million token IDs."""
_SPEAK_FOR_NOTHING = bytes(sorted(set(range(256)).difference(b'"[{,')))
_MOST_SEARCHED_CHARACTERS = 1024 * 1024
_MOST_SEARCHED_VALUES = 50_000
"""Larger bodies are not searched to their end for what is wrong in them: every other stream waits."""
_MOST_DIGITS = 4000
_EXCERPT_CHARACTERS = 20
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_POSITION = re.compile(r"\(byte (\d+)\)")


def read_object(body: bytes) -> dict[str, object]:
    """The fields of a body in UTF-8, with or without a byte order mark.

    Raises:
        BodyTooLarge: it is made of too many values.
        InvalidRequest: it is not a JSON object.
    """
    plain = body.removeprefix(codecs.BOM_UTF8)
    if not plain.strip():
        raise _invalid("the body is empty; it must be a JSON object with the request's fields")
    if len(plain) > _SMALL:
        _check_what_it_is_made_of(plain)
    try:
        value: object = msgspec.json.decode(plain)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _what_is_wrong(plain, error) from error
    if not isinstance(value, dict):
        raise _invalid(f"the body must be a JSON object, not {shown(value)}")
    return cast(dict[str, object], value)


def _check_what_it_is_made_of(body: bytes) -> None:
    """Each step goes through the body as fast as memory does."""
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = unescaped.translate(None, _SPEAK_FOR_NOTHING)
    _refuse_more_than(_MOST_TEXTS, marks.count(b'"') // 2, "texts")
    outside = b"".join(marks.split(b'"')[::2])
    _refuse_more_than(_MOST_CONTAINERS, outside.count(b"[") + outside.count(b"{"), "lists and objects")
    _refuse_more_than(_MOST_VALUES, outside.count(b","), "values")


def _refuse_more_than(most: int, count: int, things: str) -> None:
    if count > most:
        raise BodyTooLarge(f"the body has {count} {things}; at most {most} are read", code="body_too_large")


def _what_is_wrong(body: bytes, error: Exception) -> InvalidRequest:
    if isinstance(error, RecursionError):
        return _invalid("the body is nested too deeply")
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in body[:4]:
        return _invalid("the body is not UTF-8 but UTF-16 or UTF-32; JSON is sent in UTF-8")
    try:
        text = body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as wrong:
        return _invalid(
            f"the body is not UTF-8: byte {wrong.start} (0x{body[wrong.start]:02x}) is part of no character"
        )
    parse_int = _int if isinstance(error, msgspec.ValidationError) else None  # a number, and it costs a call for each
    return _unreadable_value(text, parse_int) or _invalid(_where(body, str(error)))


def _where(body: bytes, error: str) -> str:
    """Where the body stops being JSON."""
    position = _POSITION.search(error)
    if position is None:
        return "the body is not valid JSON: it breaks off, or half a surrogate pair is in it"
    at = int(position[1])
    excerpt = body[max(0, at - _EXCERPT_CHARACTERS) : at + 1].decode("utf-8", "ignore")
    return f"the body is not valid JSON: something is wrong near byte {at}, at the end of {shown(excerpt)}"


def _unreadable_value(text: str, parse_int: Callable[[str], float] | None) -> InvalidRequest | None:
    """The first value that is written as JSON allows, but is nothing that can be read."""
    if len(text) > _MOST_SEARCHED_CHARACTERS:
        return None
    try:
        whole: object = json.loads(text, parse_int=parse_int, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    visited = islice(_values(whole), _MOST_SEARCHED_VALUES)
    return next((wrong for steps, value in visited if (wrong := _wrong_value(value, steps))), None)


def _values(whole: object) -> Iterator[tuple[Sequence[str], object]]:
    """Every value in the order in which it is written, with the steps to it, which are good until the next one is asked
    for.

    Not recursive, since values may be deep.
    """
    steps: list[str] = []
    entered: list[Iterator[tuple[str, object]]] = [iter([("", whole)])]
    while entered:
        step, value = next(entered[-1], (None, None))
        if step is None:
            entered.pop()
            del steps[-1:]
        else:
            steps.append(step)
            entered.append(_inside(value))
            yield steps, value


def _inside(value: object) -> Iterator[tuple[str, object]]:
    """The values of a list or an object, each with the step to it; before a field's value comes its name, which is no
    step.
    """
    match value:
        case list():
            for index, each in enumerate(cast(list[object], value)):
                yield f"[{index}]", each
        case dict():
            for name, each in cast(dict[str, object], value).items():
                yield "", name
                yield f".{name}", each
        case _:
            pass


def _wrong_value(value: object, steps: Sequence[str]) -> InvalidRequest | None:
    match value:
        case str() if half := _HALF_PAIR.search(value):
            why = f"{cut(half[0])} is half a surrogate pair, which is no character; send both halves"
        case float() if isinf(value):
            why = "the number is too large"
        case _:
            return None
    path = "".join(map(cut, steps)).lstrip(".")
    return _invalid(f"{path or 'the body'}: {why}", param=path or None)


def _int(digits: str) -> float:
    return int(digits) if len(digits) <= _MOST_DIGITS else inf


def _refuse_constant(name: str) -> object:
    """NaN and Infinity are not JSON."""
    raise ValueError(name)


def _invalid(message: str, *, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_json")
