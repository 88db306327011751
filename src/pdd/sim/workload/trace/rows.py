"""What a trace file says, whatever its format: one row a request, and where in the file it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

from pdd.core.errors import ConfigError
from pdd.sim.workload.trace.report import Doubt, Doubts

FIRST_NEW_TOKEN = 1 << 30
"""Text without a hash id gets token IDs from here on; hash ids lie below."""
MOST_TOKENS = 1 << 24
"""Of a prompt or an answer: beyond every model, and what one machine can still spell out."""
MOST_TIME = 10**20
"""Of a time, as written: nanoseconds since 1970 are far below."""
BLOCK_TOKENS_FLAG = "--trace-block-tokens"


class TimeUnit(StrEnum):
    """In which a trace's numbers for times are meant."""

    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    MICROSECONDS = "microseconds"
    NANOSECONDS = "nanoseconds"

    @property
    def ns(self) -> int:
        return {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 1000, "nanoseconds": 1}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a kind of trace is to be read.

    Attributes:
        unit: of its times; None where they are dates.
        block_tokens: what a hash id stands for, if nothing else is said; None where it has none.
        ids_name_prefixes: whether an id names its block and all before it, or the block's own text.
    """

    name: str
    unit: TimeUnit | None
    block_tokens: int | None = None
    ids_name_prefixes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request. ``at_ns`` counts from whenever the trace does; lengths are as written, 0 included.

    ``parent_chat`` is the chat that it goes on from, by name; where there are chats, None begins one.
    """

    line: int
    at_ns: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    session: str | None = None
    chat: int | None = None
    parent_chat: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A trace file as it was read, in the file's order."""

    format: Format
    block_tokens: int | None
    """What a hash id stands for; None: there are none."""
    rows: Sequence[Row]
    doubts: Doubts


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a file. Line and column count from 1."""

    file: str
    line: int
    column: int

    def refuse(self, why: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"{self.file}:{self.line}:{self.column}: {why}")


def wrong_length(length: int) -> str | None:
    """What is wrong with a number of tokens."""
    return None if 0 <= length <= MOST_TOKENS else f"{length}: it must be from 0 to {MOST_TOKENS} tokens"


def wrong_ids(ids: Sequence[int], input_length: int, block_tokens: int) -> str | None:
    """What is wrong with a prompt's hash ids: the last block may lack one, and the whole prompt may lack them."""
    for each in ids:
        if not 0 <= each < FIRST_NEW_TOKEN:
            return f"{each}: it must be from 0 to {FIRST_NEW_TOKEN - 1}"
    most = -(-input_length // block_tokens)
    if not ids or most - 1 <= len(ids) <= most:
        return None
    right = f"{most - 1} or {most}" if most > 1 else f"{most}"
    return (
        f"{len(ids)} ids for {input_length} tokens: with one for {block_tokens} tokens it must be "
        f"{right}, or none; for blocks of another length give {BLOCK_TOKENS_FLAG}"
    )


def note_row(row: Row, before: Row | None, doubts: Doubts) -> None:
    """What a row by itself, or after the one before it in the file, leaves in doubt."""
    if not row.input_length:
        doubts.add(Doubt.EMPTY_PROMPT, row.line)
    if not row.output_length:
        doubts.add(Doubt.EMPTY_ANSWER, row.line)
    if before is not None and row.at_ns < before.at_ns:
        doubts.add(Doubt.BACKWARDS, row.line)


def shown(value: object) -> str:
    """What stands in a file, as far as a message has room for it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
