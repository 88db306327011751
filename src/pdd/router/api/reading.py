"""Reads JSON values as what they should be.

Every refusal names the field by its path, shows the value, and says what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar, cast

from pdd.core.errors import InvalidRequest
from pdd.router.api.fields import Fields, Neutral

_SHOWN_CHARACTERS = 80
_ENCODER = json.JSONEncoder(ensure_ascii=False)

T = TypeVar("T")
Number = TypeVar("Number", int, float)
Reader = Callable[[object, str], T]
"""From a value that is not null, and its path, to what it means; raises InvalidRequest."""


class Record:
    """One JSON object of which every field is known. A field that is null counts as left out."""

    __slots__ = ("_path", "_values")

    def __init__(self, value: object, path: str, fields: Fields) -> None:
        """Raises InvalidRequest: not an object, or a field of it is unknown, or unsupported with this value."""
        if not isinstance(value, dict):
            raise wrong_type(value, path, "an object")
        self._path = path
        self._values = cast(dict[str, object], value)
        for name, each in self._values.items():
            if name in fields.unsupported:
                _require_neutral(each, self.path_of(name), fields.unsupported[name])
            elif name not in fields.read and name not in fields.ignored:
                param = self.path_of(cut(name))
                raise InvalidRequest(f"{param}: unknown parameter", param=param, code="unknown_parameter")

    def path_of(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str, read: Reader[T]) -> T | None:
        """What the field says, or None where it says nothing."""
        value = self._values.get(name)
        return None if value is None else read(value, self.path_of(name))

    def require(self, name: str, read: Reader[T]) -> T:
        """What the field says; it must say something."""
        found = self.get(name, read)
        if found is None:
            param = self.path_of(name)
            given = "null" if name in self._values else "missing"
            message = f"{param}: it is {given}, but this parameter is required"
            raise InvalidRequest(message, param=param, code="missing_required_parameter")
        return found


def _require_neutral(value: object, path: str, neutral: Neutral) -> None:
    if value is None or any(_equals(value, choice) for choice in neutral):
        return
    possible = " or ".join(shown(choice) for choice in (None, *neutral))
    raise unsupported(path, f"{shown(value)} is not supported; leave it out or set it to {possible}")


def _equals(value: object, choice: object) -> bool:
    """Equality of JSON values: true is not 1, but 1.0 is."""
    if isinstance(value, bool) or isinstance(choice, bool):
        return value is choice
    return value == choice


def flag(value: object, path: str) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise wrong_type(value, path, "true or false")
    return value


def text(value: object, path: str) -> str:
    """Reads any text."""
    if not isinstance(value, str):
        raise wrong_type(value, path, "a text")
    return value


def items(value: object, path: str, right: str = "a list") -> list[object]:
    """Reads a list of anything; ``right`` says what else would do."""
    if not isinstance(value, list):
        raise wrong_type(value, path, right)
    return cast(list[object], value)


def text_of(least: int, most: int) -> Reader[str]:
    """Reads a text of so many characters."""
    right = f"at most {most} characters long" if least == 0 else f"from {least} to {most} characters long"

    def read(value: object, path: str) -> str:
        said = text(value, path)
        if not least <= len(said) <= most:
            raise out_of_range(value, path, right)
        return said

    return read


def one_of(*choices: str) -> Reader[str]:
    """Reads one of a few words."""

    def read(value: object, path: str) -> str:
        if value not in choices:
            raise InvalidRequest(f"{path}: {shown(value)} is not one of {', '.join(choices)}", param=path)
        return cast(str, value)

    return read


def whole_number(least: int, most: int) -> Reader[int]:
    """Reads a whole number within these bounds. JSON does not tell 5 from 5.0."""

    def read(value: object, path: str) -> int:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, bool) or not isinstance(whole, int):
            raise wrong_type(value, path, "a whole number")
        return _within(whole, path, least, most)

    return read


def number(least: float, most: float) -> Reader[float]:
    """Reads a number within these bounds."""

    def read(value: object, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(value, path, "a number")
        return float(_within(value, path, least, most))

    return read


def _within(value: Number, path: str, least: Number, most: Number) -> Number:
    if not least <= value <= most:
        raise out_of_range(value, path, f"from {shown(least)} to {shown(most)}")
    return value


def shown(value: object) -> str:
    """A value as JSON for an error message, cut to a length that a terminal bears; costs what is shown of it."""
    if isinstance(value, str):
        return cut(_ENCODER.encode(value[: _SHOWN_CHARACTERS + 1]))
    pieces = ""
    for piece in _ENCODER.iterencode(value):
        pieces += piece
        if len(pieces) > _SHOWN_CHARACTERS:
            break
    return cut(pieces)


def cut(words: str) -> str:
    """What can be shown of a client's words: half a surrogate pair is no text, and can't be sent."""
    short = words if len(words) <= _SHOWN_CHARACTERS else words[:_SHOWN_CHARACTERS] + "..."
    return short.encode("utf-8", "backslashreplace").decode()


def wrong_type(value: object, path: str, right: str) -> InvalidRequest:
    """``right`` says what it should be: ``a number``."""
    return InvalidRequest(f"{path}: {shown(value)} is not {right}", param=path, code="invalid_type")


def out_of_range(value: object, path: str, right: str) -> InvalidRequest:
    """``right`` says where it should be: ``from 1 to 5``."""
    return InvalidRequest(f"{path}: {shown(value)} is out of range; it must be {right}", param=path)


def unsupported(path: str, why: str) -> InvalidRequest:
    """What others do and PDD does not, yet."""
    return InvalidRequest(f"{path}: {why}", param=path, code="unsupported_parameter")
