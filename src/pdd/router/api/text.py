"""From an answer's spans of tokens to the text that the client sees, stop strings included.

Works token by token, so that text, usage and the end of the answer are the same however tokens were grouped into spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.ids import TokenId
from pdd.core.request import FinishReason
from pdd.router.api.answers import AnswerTokens
from pdd.router.api.detokenizer import Detokenizer
from pdd.router.api.stops import StopScanner


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a span contributed: text that may be shown now, and how many of its tokens belong to the answer."""

    text: str
    num_tokens: int


class AnswerText:
    """One answer as it grows. Push spans until ``stopped`` or the last one, then ``finish``."""

    __slots__ = ("_boundaries", "_detokenizer", "_num_released", "_scanner", "_text", "_tokens")

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops)
        self._tokens: list[TokenId] = []
        self._text: list[str] = []
        self._num_released = 0
        self._boundaries: list[tuple[int, int]] = [(0, 0)]
        """(tokens, characters) wherever the tokens so far end between two characters."""

    @property
    def num_tokens(self) -> int:
        """The answer's tokens so far, those that made a stop string included."""
        return len(self._tokens)

    @property
    def last_token(self) -> TokenId | None:
        return self._tokens[-1] if self._tokens else None

    @property
    def stopped(self) -> bool:
        """A stop string was found: nothing after it belongs to the answer."""
        return self._scanner.matched

    @property
    def text(self) -> str:
        """What the client has been shown so far."""
        return "".join(self._text)

    def push(self, tokens: Sequence[TokenId]) -> Piece:
        """Adds a span's tokens, up to the one that completes a stop string."""
        before = len(self._tokens)
        shown: list[str] = []
        for token in tokens:
            if self.stopped:
                break
            self._tokens.append(token)
            shown.append(self._release(self._detokenizer.push(token)))
            self._mark_boundary()
        return Piece(text="".join(shown), num_tokens=len(self._tokens) - before)

    def finish(self) -> str:
        """The rest of the text once the last token is there; may find a stop string, too."""
        rest = self._release(self._detokenizer.finish())
        self._mark_boundary()
        return rest + self._keep(self._scanner.flush())

    def finish_reason(self, reason: FinishReason) -> FinishReason:
        """What to tell the client when the engines said ``reason``: a stop string may have come first."""
        return FinishReason.STOP if self.stopped else reason

    def answer_tokens(self, *, ended_by: TokenId | None) -> AnswerTokens:
        """What to remember of the finished answer; ``ended_by`` is the textless token at its end, if one ended it."""
        num_characters = sum(map(len, self._text))
        num_tokens, num_covered = max(mark for mark in self._boundaries if mark[1] <= num_characters)
        if ended_by is not None and not self.stopped:
            num_tokens = min(num_tokens, len(self._tokens) - 1)
        return AnswerTokens(tokens=tuple(self._tokens[:num_tokens]), num_characters=num_covered)

    def _release(self, text: str) -> str:
        self._num_released += len(text)
        return self._keep(self._scanner.feed(text))

    def _keep(self, text: str) -> str:
        if text:
            self._text.append(text)
        return text

    def _mark_boundary(self) -> None:
        if not self._detokenizer.waits:
            self._boundaries.append((len(self._tokens), self._num_released))
