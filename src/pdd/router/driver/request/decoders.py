"""The child tasks of one request: each listens to one engine, or waits for one timer, and reports to the inbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine

from pdd.belief.worker_state import Seat
from pdd.core.clock import Clock
from pdd.core.errors import CapacityExhausted, InvalidRequest, PddError, WorkerFailed
from pdd.core.ids import WorkerId
from pdd.core.request import Generation, Role, TokenSpan
from pdd.core.units import Seconds
from pdd.policy.patience import is_refusal_final, prefill_patience
from pdd.protocol import relay
from pdd.router.driver.bounds.patience import Vigil, closing_within
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.request.mailbox import Inbox, InboxEvent, Refusal, RouteDue
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.prefill_turns import PrefillTurn
from pdd.router.driver.workers.worker import Worker

_logger = logging.getLogger(__name__)

DECODERS = (Role.RELAY_DECODE, Role.MAIN_DECODE)

Hear = Callable[[Generation, TokenSpan], Awaitable[None]]
"""What is done with a span."""


class Decoders:
    """Decodes, extends and timers of one request.

    Everything runs in ``tasks``; ``stop_all`` ends it in a fixed order.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        *,
        inbox: Inbox,
        prefill_turn: PrefillTurn,
        pool: Pool,
        clock: Clock,
        settings: DriverSettings,
    ) -> None:
        self.admitted = asyncio.Event()
        """While it is not set, the first token of an answer is held back."""
        self.admitted.set()
        self._tasks = tasks
        self._inbox = inbox
        self._prefill_turn = prefill_turn
        self._pool = pool
        self._workers = pool.workers
        self._clock = clock
        self._settings = settings
        self._running: dict[int, asyncio.Task[None]] = {}
        self._seats: dict[int, Seat[Worker]] = {}
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._refused_by: set[WorkerId] = set()
        self._last_error: PddError | None = None

    @property
    def last_error(self) -> PddError | None:
        """Why the last generation that broke off did so."""
        return self._last_error

    def seat_of(self, attempt: int) -> Seat[Worker] | None:
        """Where an attempt was started; None if nobody was up for it."""
        return self._seats.get(attempt)

    def decode(self, seat: Seat[Worker], generation: Generation, *, has_prompt: bool) -> None:
        """Starts a generation: its spans become ``TokensDecoded``, its failure, a long silence, or the end of its
        worker's process ``WorkerLost``.

        ``has_prompt``: the prompt's KV is at the worker's node, so its first token is due as soon as any other.
        """
        self._start(seat, generation, self._listen(seat, generation, self._pass_on, has_prompt=has_prompt))

    def extend(self, seat: Seat[Worker], generation: Generation, *, has_prompt: bool) -> None:
        """Starts a generation of one token, which is dropped: it becomes ``Extended`` or ``WorkerLost``."""
        self._start(seat, generation, self._listen(seat, generation, self._drop, has_prompt=has_prompt))

    def stop(self, attempt: int) -> None:
        """Aborts an attempt; ended ones are ignored."""
        task = self._running.get(attempt)
        if task is not None:
            task.cancel()

    def set_timer(self, timer: relay.Timer, delay: Seconds) -> None:
        """Starts ``timer`` anew."""
        self._post_later(timer, relay.TimerFired(timer=timer), delay)

    def set_route_timer(self, delay: Seconds) -> None:
        """After ``delay`` a route has to be chosen whatever is known."""
        self._post_later("route", RouteDue(), delay)

    def _post_later(self, name: str, event: InboxEvent, delay: Seconds) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._tasks.create_task(self._fire(event, delay), name=f"timer {name}")

    def stop_all(self) -> None:
        """Ends everything, by attempt number: a TaskGroup alone would do so in order of addresses."""
        for attempt in sorted(self._running):
            self._running[attempt].cancel()
        for timer in self._timers.values():
            timer.cancel()

    def _start(self, seat: Seat[Worker], generation: Generation, work: Coroutine[None, None, None]) -> None:
        attempt = generation.attempt
        self._seats[attempt] = seat
        name = f"attempt {attempt} of {generation.request_id} at {seat.worker.name}"
        task = self._tasks.create_task(work, name=name)
        self._running[attempt] = task
        task.add_done_callback(lambda _: self._running.pop(attempt, None))

    async def _listen(self, seat: Seat[Worker], generation: Generation, hear: Hear, *, has_prompt: bool) -> None:
        """Hands each span to ``hear``, until the last one, or until the worker fails or is told to stop.

        The last one when the worker is done with it: a first token may be held back until main decode's node has room,
        and whoever has that room may be waiting for this very worker.
        """
        settings, course = self._settings, _Course(generation)
        # An engine that hangs may well keep its connection alive, so silence counts as a loss.
        first = settings.decode_patience if has_prompt else self._prefill_patience(seat)
        spans = seat.worker.engine.generate(generation)
        vigil = Vigil(spans, seat.lifetime, first=first, later=settings.decode_patience)
        try:
            async with closing_within(spans, settings.release_patience):
                with vigil.kept():
                    last = await self._hear_all_but_last(vigil, course, seat, generation, hear)
            await hear(generation, last)
        except PddError as error:
            course.failed = True
            self._report(seat, generation, error)
        finally:
            self._note_end(seat, course, vigil.waited)

    def _prefill_patience(self, seat: Seat[Worker]) -> Seconds:
        is_prefill = seat.worker.role is Role.PREFILL
        expected = self._workers.prefill_time(seat, self._clock.now()) if is_prefill else None
        settings = self._settings
        return prefill_patience(expected, with_decoder=settings.decode_patience, most=settings.prefill_patience)

    async def _hear_all_but_last(
        self, vigil: Vigil, course: _Course, seat: Seat[Worker], generation: Generation, hear: Hear
    ) -> TokenSpan:
        while (span := await vigil.next()) is not None:
            course.accept(span)
            if course.num_spans == 1:
                self._note_first(seat, generation, course)
            if span.finish_reason is not None:
                return span
            await hear(generation, span)
        raise WorkerFailed("the engine's stream ended without a finish reason")

    async def _pass_on(self, generation: Generation, span: TokenSpan) -> None:
        """Of a decode."""
        if generation.first_position == 0:
            await self.admitted.wait()
        await self._inbox.put(_as_event(generation.attempt, span))

    async def _drop(self, generation: Generation, span: TokenSpan) -> None:
        """Of an extend."""
        if span.finish_reason is not None:
            self._inbox.post(relay.Extended(attempt=generation.attempt))

    def _note_first(self, seat: Seat[Worker], generation: Generation, course: _Course) -> None:
        """What prefill decodes in need says nothing about how fast it computes prompts."""
        if seat.worker.role is not Role.PREFILL:
            course.beside = self._workers.begin_decoding(seat)
        elif generation.first_position == 0:
            self._prefill_turn.computed()
            whole = list(self._seats.values()).count(seat) == 1
            self._workers.prefilled(seat, self._clock.now(), whole=whole)

    def _note_end(self, seat: Seat[Worker], course: _Course, seconds: Seconds) -> None:
        if course.num_spans == 0:
            return
        now = self._clock.now()
        if not course.failed:
            self._workers.vouch(seat, now)
        if seat.worker.role is not Role.PREFILL:
            tokens = course.num_later_tokens
            self._workers.end_decoding(seat, now, num_tokens=tokens, seconds=seconds, beside=course.beside)

    def _report(self, seat: Seat[Worker], generation: Generation, error: PddError) -> None:
        self._last_error = error
        attempt, worker = generation.attempt, seat.worker.name
        _logger.warning(
            "generation_failed request=%s attempt=%d worker=%s reason=%s",
            generation.request_id,
            attempt,
            worker,
            error,
        )
        if isinstance(error, InvalidRequest) and self._is_final(generation, worker):
            self._inbox.post(Refusal(error=error))
            return
        # Full is not broken, and what one engine refuses says nothing about its health.
        if not isinstance(error, InvalidRequest | CapacityExhausted):
            self._pool.suspect(seat)
        self._inbox.post(relay.WorkerLost(attempt=attempt))

    def _is_final(self, generation: Generation, refused_by: WorkerId) -> bool:
        self._refused_by.add(refused_by)
        up = (state.worker.name for role in DECODERS for state in self._workers.candidates(role))
        return is_refusal_final(
            by_prefill=generation.first_position == 0,
            num_refused=len(self._refused_by),
            all_refused=self._refused_by.issuperset(up),
        )

    async def _fire(self, event: InboxEvent, delay: Seconds) -> None:
        await self._clock.sleep(delay)
        self._inbox.post(event)


class _Course:
    """How a generation goes: whether its spans are those that were asked for, and how many tokens came
    after the first.
    """

    __slots__ = ("_end", "_next", "beside", "failed", "num_later_tokens", "num_spans")

    def __init__(self, generation: Generation) -> None:
        self._next = generation.first_position
        self._end = generation.first_position + generation.max_tokens
        self.num_spans = 0
        self.num_later_tokens = 0
        self.beside = 0
        self.failed = False

    def accept(self, span: TokenSpan) -> None:
        """Raises WorkerFailed: the span is not the one that was due, so nothing of it can be trusted."""
        if span.first_position != self._next:
            raise WorkerFailed(f"the engine sent position {span.first_position}; {self._next} was due")
        self._next = span.end_position
        if self._next > self._end:
            raise WorkerFailed(f"the engine went past max_tokens, to position {self._next - 1}")
        self.num_later_tokens += len(span.tokens) if self.num_spans else 0
        self.num_spans += 1


def _as_event(attempt: int, span: TokenSpan) -> relay.TokensDecoded:
    return relay.TokensDecoded(
        attempt=attempt, first_position=span.first_position, tokens=span.tokens, finish_reason=span.finish_reason
    )
