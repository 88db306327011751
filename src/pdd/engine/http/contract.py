"""Holds a stream of spans to the contract of ``engine.base``: contiguous, bounded, finished exactly once. No I/O.

Both ends of the HTTP interface use it, so that a broken engine is caught where it runs, and a broken line or a foreign
engine is caught where its tokens arrive.
"""

from __future__ import annotations

from pdd.core.errors import WorkerFailed
from pdd.core.request import FinishReason, Generation, TokenSpan


class SpanContract:
    """Feed it every span of one generation, then tell it that the stream ended."""

    __slots__ = ("_end_limit", "_finished", "_next_position", "_stop_token_ids", "_stopped")

    def __init__(self, generation: Generation) -> None:
        self._next_position = generation.first_position
        self._end_limit = generation.first_position + generation.max_tokens
        self._stop_token_ids = generation.stop_token_ids
        self._stopped = False
        self._finished = False

    @property
    def next_position(self) -> int:
        """Where the next span has to begin."""
        return self._next_position

    @property
    def finished(self) -> bool:
        """A span with a finish reason has been seen."""
        return self._finished

    def accept(self, span: TokenSpan) -> TokenSpan:
        """Checks the next span and returns it.

        Raises:
            WorkerFailed: it breaks the contract; neither it nor anything after it may be used.
        """
        if self._finished:
            raise WorkerFailed("the engine went on after it had finished")
        if span.first_position != self._next_position:
            raise WorkerFailed(f"the engine sent position {span.first_position}; {self._next_position} was due")
        if span.end_position > self._end_limit:
            raise WorkerFailed(f"the engine went past max_tokens, to position {span.end_position - 1}")
        if not span.tokens and span.finish_reason is None:
            raise WorkerFailed("the engine sent a span without tokens before it finished")
        self._check_stop_tokens(span)
        self._next_position = span.end_position
        self._finished = span.finish_reason is not None
        self._check_reason(span.finish_reason)
        return span

    def check_end(self) -> None:
        """The stream is over. Raises WorkerFailed when it was cut short."""
        if not self._finished:
            raise WorkerFailed(f"the engine's stream ended at position {self._next_position} without a finish reason")

    def _check_stop_tokens(self, span: TokenSpan) -> None:
        if not span.tokens:
            return
        if self._stopped or any(token in self._stop_token_ids for token in span.tokens[:-1]):
            raise WorkerFailed("the engine went on after a stop token")
        self._stopped = span.tokens[-1] in self._stop_token_ids

    def _check_reason(self, reason: FinishReason | None) -> None:
        """An answer cut short under a false reason would pass for a whole one."""
        if reason is FinishReason.STOP and not self._stopped:
            raise WorkerFailed("the engine finished for a stop token that it did not send")
        if reason is FinishReason.LENGTH and self._next_position != self._end_limit:
            raise WorkerFailed(
                f"the engine finished for length at position {self._next_position}, not {self._end_limit}"
            )
