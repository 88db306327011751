"""What one engine step computes: continuous batching with chunked prefill over a paged cache.

Decodes go first, so that a long prefill never stalls a stream by more than one chunk. What is left of the step's token
budget goes to prefills, oldest first; then waiting sequences are admitted in order of arrival. When a decode finds no
free block, a running sequence gives up its blocks and waits again: a paused one first, else the youngest. The oldest
is never a victim, so there is always progress. Mutable, owned by one thread, never waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pdd.core.errors import ConfigError


class Schedulable(Protocol):
    """One sequence, as the scheduler sees it. It is compared by identity."""

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: those it came with and those generated since."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """How many of them have their KV in the cache, or will have it before anything is to be computed.

        As many as ``num_tokens`` while there is nothing to compute: the sequence keeps its place, and holds nobody up.
        """
        ...

    @property
    def paused(self) -> bool:
        """True while its reader lags too far behind to be given more."""
        ...


_SequenceT = TypeVar("_SequenceT", bound=Schedulable)
_Sequence_contra = TypeVar("_Sequence_contra", bound=Schedulable, contravariant=True)


class CacheSpace(Protocol[_Sequence_contra]):
    """Blocks of the paged cache, given to sequences and taken back."""

    def admit(self, sequence: _Sequence_contra, /) -> bool:
        """Reuses what is cached of the sequence and finds room for all its known tokens; False changes nothing."""
        ...

    def grow(self, sequence: _Sequence_contra, num_tokens: int, /) -> bool:
        """Makes sure that the sequence has room for ``num_tokens`` tokens; False changes nothing."""
        ...

    def release(self, sequence: _Sequence_contra, /) -> None:
        """Takes back all blocks of the sequence, whose computed tokens thereby become 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingLimits:
    """Bounds of one step: ``max_batch`` running sequences, ``prefill_chunk_tokens`` prefilled beside their decodes."""

    max_batch: int
    prefill_chunk_tokens: int

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ConfigError(f"max_batch is {self.max_batch}; it must be at least 1")
        if self.prefill_chunk_tokens < 1:
            raise ConfigError(f"prefill_chunk_tokens is {self.prefill_chunk_tokens}; it must be at least 1")

    @property
    def max_step_tokens(self) -> int:
        """No step has more tokens than this."""
        return self.prefill_chunk_tokens + self.max_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork(Generic[_SequenceT]):
    """Compute the next ``num_tokens`` uncomputed tokens of ``sequence``."""

    sequence: _SequenceT
    num_tokens: int

    @property
    def completes(self) -> bool:
        """True if all known tokens are computed after this, so that the next one can be drawn."""
        return self.sequence.num_computed_tokens + self.num_tokens == self.sequence.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan(Generic[_SequenceT]):
    """One step: a token of each of ``decodes``, and ``prefills``.

    ``preempted`` lost their blocks while it was planned, ``admitted`` got theirs.
    """

    decodes: tuple[_SequenceT, ...]
    prefills: tuple[StepWork[_SequenceT], ...]
    admitted: tuple[_SequenceT, ...]
    preempted: tuple[_SequenceT, ...]

    @property
    def work(self) -> tuple[StepWork[_SequenceT], ...]:
        """All of it, in order."""
        return (*(StepWork(sequence=sequence, num_tokens=1) for sequence in self.decodes), *self.prefills)


class BatchScheduler(Generic[_SequenceT]):
    """Keeps the waiting and the running sequences. ``plan_step``, then compute all of it, then plan again."""

    __slots__ = ("_limits", "_running", "_space", "_waiting")

    def __init__(self, limits: BatchingLimits, space: CacheSpace[_SequenceT]) -> None:
        self._limits = limits
        self._space = space
        self._waiting: deque[_SequenceT] = deque()
        self._running: list[_SequenceT] = []  # by arrival, oldest first

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def is_full(self) -> bool:
        """True while nobody is let in unless somebody leaves or gives way."""
        return len(self._running) >= self._limits.max_batch

    @property
    def has_work(self) -> bool:
        """False if the next plan would be empty whatever the cache holds."""
        return any(not sequence.paused for sequence in (*self._running, *self._waiting))

    def add(self, sequence: _SequenceT) -> None:
        """Queues a new sequence. That it fits the cache when alone is the caller's to check."""
        self._waiting.append(sequence)

    def remove(self, sequence: _SequenceT) -> None:
        """Forgets a finished or aborted sequence and takes back its blocks; unknown ones are ignored."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._space.release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def plan_step(self) -> StepPlan[_SequenceT]:
        """Chooses the next step's work; it may be empty."""
        decoding: list[_SequenceT] = []
        prefilling: list[_SequenceT] = []
        for sequence in self._running:
            if not sequence.paused:
                (decoding if _is_decode(sequence) else prefilling).append(sequence)
        preempted: list[_SequenceT] = []
        decodes = self._plan_decodes(decoding, preempted)
        prefills: list[StepWork[_SequenceT]] = []
        budget = self._limits.prefill_chunk_tokens
        for sequence in prefilling:
            if sequence not in preempted:
                budget = self._plan_chunk(sequence, prefills, budget)
        admitted = self._admit_waiting(prefills, budget, preempted) if not preempted else []
        return StepPlan(
            decodes=tuple(decodes), prefills=tuple(prefills), admitted=tuple(admitted), preempted=tuple(preempted)
        )

    def _plan_decodes(self, decoding: list[_SequenceT], preempted: list[_SequenceT]) -> list[_SequenceT]:
        return [sequence for sequence in decoding if sequence not in preempted and self._make_room(sequence, preempted)]

    def _make_room(self, sequence: _SequenceT, preempted: list[_SequenceT]) -> bool:
        """Grows ``sequence``, at the cost of paused ones, of younger ones or, if it is itself the youngest,
        of itself.
        """
        while not self._space.grow(sequence, sequence.num_tokens):
            victim = self._youngest_paused() or self._running[-1]
            self._preempt(victim, preempted)
            if victim is sequence:
                return False
        return True

    def _youngest_paused(self) -> _SequenceT | None:
        return next((sequence for sequence in reversed(self._running) if sequence.paused), None)

    def _preempt(self, victim: _SequenceT, preempted: list[_SequenceT]) -> None:
        self._running.remove(victim)
        self._space.release(victim)
        self._waiting.appendleft(victim)
        preempted.append(victim)

    def _admit_waiting(
        self, prefills: list[StepWork[_SequenceT]], budget: int, preempted: list[_SequenceT]
    ) -> list[_SequenceT]:
        admitted: list[_SequenceT] = []
        for sequence in tuple(self._waiting):
            if sequence.paused:
                continue
            # Never overtaken by a smaller one where there is no room, else the large would starve.
            if budget < 1 or not self._admit(sequence, preempted):
                break
            admitted.append(sequence)
            budget = self._plan_chunk(sequence, prefills, budget)
        return admitted

    def _admit(self, sequence: _SequenceT, preempted: list[_SequenceT]) -> bool:
        """Moves a waiting sequence to the running ones, at the cost of paused ones if need be."""
        while self.is_full or not self._space.admit(sequence):
            victim = self._youngest_paused()
            if victim is None:
                return False
            self._preempt(victim, preempted)
        self._waiting.remove(sequence)
        self._running.append(sequence)
        return True

    def _plan_chunk(self, sequence: _SequenceT, prefills: list[StepWork[_SequenceT]], budget: int) -> int:
        """Adds as much of a prefill as the budget allows; returns the rest of the budget."""
        remaining = sequence.num_tokens - sequence.num_computed_tokens
        num_tokens = choose_chunk(remaining, budget)
        if num_tokens:
            prefills.append(StepWork(sequence=sequence, num_tokens=num_tokens))
        return budget - num_tokens


def choose_chunk(remaining: int, budget: int) -> int:
    """How many of ``remaining`` tokens to prefill now.

    A prefill that needs just over one more budget is halved instead of leaving a tiny tail: a tail chunk of a few
    tokens costs nearly as much as a whole one.
    """
    if remaining <= budget:
        return remaining
    if remaining < budget + budget // 4:
        return (remaining + 1) // 2
    return budget


def _is_decode(sequence: Schedulable) -> bool:
    return sequence.num_tokens - sequence.num_computed_tokens == 1
