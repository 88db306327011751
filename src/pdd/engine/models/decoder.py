"""A tokenizer's decoder, taken apart where bytes become characters.

The library's decoders make one text of all tokens at once. An answer grows token by token, and only the bytes at its
end tell whether that end may still become a character. So a decoder is three parts here:

    token --piece steps--> piece --to bytes--> bytes --UTF-8--> characters --text steps--> text

Piece steps see one token and where it stands; the library itself carries them out. Text steps see characters, however
these are cut into pieces. A decoder that can't be read this way is refused: nothing else could tell when its text is
final.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, cast

import msgspec
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.decoders import Decoder

from pdd.core.errors import ConfigError

Rule = dict[str, Any]
"""One step as ``tokenizer.json`` has it."""

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a token stands among those with a text."""

    is_first: bool
    is_last: bool


PieceStep = Callable[[str, Place], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDecoder:
    """The three parts. ``replaced`` are single characters with what stands for each; of ``leading``, one character or
    none, the text loses up to ``num_leading`` at its start.
    """

    piece_steps: tuple[PieceStep, ...]
    to_bytes: Callable[[str], bytes]
    replaced: tuple[tuple[str, str], ...]
    leading: str
    num_leading: int


def split_decoder(tokenizer: Tokenizer) -> SplitDecoder:
    """Takes the decoder of ``tokenizer`` apart.

    Raises:
        ConfigError: it has a step that needs other tokens, or is in no place where it could be carried out token by
        token.
    """
    splitter = _Splitter()
    if tokenizer.decoder is None:
        splitter.join_by_blanks()
    else:
        for rule in _flat(msgspec.json.decode(tokenizer.decoder.__getstate__())):
            splitter.add(rule)
    return splitter.result()


def _flat(rule: Rule) -> Iterator[Rule]:
    if rule["type"] != "Sequence":
        yield rule
        return
    for inner in cast("list[Rule]", rule["decoders"]):
        yield from _flat(inner)


class _Stage(IntEnum):
    """What the steps so far have made of the tokens."""

    PIECES = 0
    """A piece for each."""
    RUNS = 1
    """The same, but byte tokens that stand together are one piece."""
    TEXT = 2
    STRIPPED_TEXT = 3


class _Splitter:
    """Sorts a decoder's steps into the three parts."""

    def __init__(self) -> None:
        self._stage = _Stage.PIECES
        self._piece_steps: list[PieceStep] = []
        self._to_bytes: Callable[[str], bytes] = str.encode
        self._replaced: list[tuple[str, str]] = []
        self._leading, self._num_leading = "", 0

    def result(self) -> SplitDecoder:
        return SplitDecoder(
            piece_steps=tuple(self._piece_steps),
            to_bytes=self._to_bytes,
            replaced=tuple(self._replaced),
            leading=self._leading,
            num_leading=self._num_leading,
        )

    def join_by_blanks(self) -> None:
        """What the library does without a decoder."""
        self._piece_steps.append(lambda piece, place: piece if place.is_first else " " + piece)

    def add(self, rule: Rule) -> None:
        step = _piece_step(rule)
        match self._stage, rule:
            case _Stage.PIECES, _ if step is not None:
                self._piece_steps.append(step)
            case _Stage.PIECES, {"type": "ByteFallback"}:
                self._to_bytes, self._stage = _bytes_with_fallback, _Stage.RUNS
            case _Stage.PIECES, {"type": "ByteLevel"}:
                self._to_bytes, self._stage = _bytes_of_byte_level, _Stage.TEXT
            case _, {"type": "Fuse"}:
                self._stage = max(self._stage, _Stage.TEXT)
            case _Stage.RUNS, {"type": "Metaspace", "replacement": str(mark)} if step is not None:
                # As a text step it reaches the marks that are spelled in bytes, too.
                self._piece_steps.append(step)
                self._replaced.append((mark, " "))
            case (
                _Stage.RUNS | _Stage.TEXT,
                {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)},
            ) if len(old) == 1:
                self._replaced.append((old, new))
            case _Stage.TEXT, {"type": "Strip", "content": str(leading), "start": int(most), "stop": 0}:
                self._leading, self._num_leading, self._stage = leading, most, _Stage.STRIPPED_TEXT
            case _:
                raise ConfigError(
                    f"decoder: its step {msgspec.json.encode(rule).decode()} can't be carried out token by token; what can: "
                    "Replace, Metaspace, WordPiece, BPEDecoder and Strip at the start; then ByteLevel or ByteFallback; then "
                    "Fuse, Replace of one character and Strip at the start"
                )


def _piece_step(rule: Rule) -> PieceStep | None:
    """None if it is a step that does not treat each token by itself."""
    match rule:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return _for_itself(decoders.Replace(old, new))
        case {"type": "Replace", "pattern": {"Regex": str(old)}, "content": str(new)}:
            return _for_itself(decoders.Replace(Regex(old), new))
        case {"type": "Strip", "content": str(content), "start": int(start), "stop": 0}:
            return _for_itself(decoders.Strip(content, start, 0))
        case {"type": "Metaspace", "replacement": str(mark), "prepend_scheme": str(scheme)}:
            return _unlike_the_first(decoders.Metaspace(mark, scheme))
        case {"type": "WordPiece", "prefix": str(prefix), "cleanup": bool(cleanup)}:
            return _unlike_the_first(decoders.WordPiece(prefix, cleanup))
        case {"type": "BPEDecoder", "suffix": str(suffix)}:
            return _unlike_the_last(decoders.BPEDecoder(suffix))
        case _:
            return None


def _for_itself(decoder: Decoder) -> PieceStep:
    return lambda piece, _: decoder.decode([piece])


def _unlike_the_first(decoder: Decoder) -> PieceStep:
    """The empty token that it comes after adds no text of its own."""
    return lambda piece, place: decoder.decode([piece] if place.is_first else ["", piece])


def _unlike_the_last(decoder: Decoder) -> PieceStep:
    return lambda piece, place: decoder.decode([piece] if place.is_last else [piece, ""])


def _bytes_with_fallback(piece: str) -> bytes:
    found = _BYTE_TOKEN.fullmatch(piece)
    return bytes.fromhex(found[1]) if found else piece.encode()


def _bytes_of_byte_level(piece: str) -> bytes:
    """Added tokens are text; the library, and so this, knows one by a character that stands for no byte."""
    try:
        return bytes(map(_byte_level_alphabet().__getitem__, piece))
    except KeyError:
        return piece.encode()


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """The byte that each character stands for: its own code, if it can be shown, else the others in order of their
    codes.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    shown = [ord(letter) for letter in letters if ord(letter) < 256]
    hidden = sorted(set(range(256)).difference(shown))
    return dict(zip(letters, [*shown, *hidden], strict=True))
