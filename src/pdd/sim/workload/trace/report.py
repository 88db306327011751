"""What a reader of a trace should know before trusting it: contradictions, counted, and what was made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Doubt(StrEnum):
    """Something in a trace that can't be meant as it stands. The trace is read all the same."""

    EMPTY_PROMPT = "empty_prompt"
    EMPTY_ANSWER = "empty_answer"
    WRONG_TOTAL = "wrong_total"
    NO_TIME_ZONE = "no_time_zone"
    BACKWARDS = "backwards"
    RESTARTED = "restarted"
    SHORT_TURN = "short_turn"
    LOST_PARENT = "lost_parent"
    TWO_PREFIXES = "two_prefixes"


WORDS: Mapping[Doubt, str] = {
    Doubt.EMPTY_PROMPT: "prompts of 0 tokens, played with 1",
    Doubt.EMPTY_ANSWER: "answers of 0 tokens, played with 1",
    Doubt.WRONG_TOTAL: "totals that are not prompt and answer together; those two count",
    Doubt.NO_TIME_ZONE: "times without a time zone, where others have one; read as UTC",
    Doubt.BACKWARDS: "requests earlier than the one before them in the file; played in the order of their times",
    Doubt.RESTARTED: "turns that do not begin with the prompt of the turn before; played after it, as other text",
    Doubt.SHORT_TURN: "turns too short for the prompt and the answer before them; that answer is played as other text",
    Doubt.LOST_PARENT: "turns of a chat that is not in the trace before them; played as new conversations",
    Doubt.TWO_PREFIXES: "hash ids that stand after different ids, though an id names all the text up to its block",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How often a doubt arose, and the line where it first did."""

    count: int
    first_line: int


class Doubts:
    """Counts them while a trace is read."""

    def __init__(self) -> None:
        self._found: dict[Doubt, Found] = {}

    def add(self, doubt: Doubt, line: int) -> None:
        """It arose at ``line``."""
        found = self._found.get(doubt, Found(count=0, first_line=line))
        self._found[doubt] = replace(found, count=found.count + 1, first_line=min(found.first_line, line))

    def found(self) -> dict[Doubt, Found]:
        """In the order of ``Doubt``."""
        return {doubt: self._found[doubt] for doubt in Doubt if doubt in self._found}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """``time_unit`` is in which its times were read, None where they are dates; ``looks_like``, what they rather seem
    to be.

    ``block_tokens`` is what one hash id stands for, None where there are none.
    """

    file: str
    format: str
    time_unit: str | None
    looks_like: str | None
    block_tokens: int | None
    doubts: Mapping[Doubt, Found]

    def lines(self) -> Iterator[str]:
        """What there is to tell, a sentence each; nothing where nothing is in doubt."""
        if self.looks_like is not None:
            yield f"{self.file}: its times are read as {self.time_unit}, but look like {self.looks_like}"
        for doubt, found in self.doubts.items():
            yield f"{self.file}: {WORDS[doubt]}: {found.count}, the first in line {found.first_line}"
