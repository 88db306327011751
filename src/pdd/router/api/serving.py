"""Runs requests: from a tokenized request to a reply, each in a task of its own.

A request's task may outlive its HTTP exchange: when an answer is finished the client is told at once and may send its
next turn over the same connection, while the KV transfer of this one still goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from aiohttp import web

from pdd.core.errors import InvalidRequest, LocalProtocolError, PddError, Unavailable
from pdd.core.ids import TokenId
from pdd.core.request import FinishReason
from pdd.core.units import Seconds
from pdd.router.api.answers import AnswerMemory
from pdd.router.api.replies import SpanTrace, Usage
from pdd.router.api.sending import ClientLeft, Ending, Reply
from pdd.router.api.text import AnswerText
from pdd.router.api.tokenizer import TextCodec
from pdd.router.base import Answer, EmittedSpan, RequestReport, Service, TokenRequest
from pdd.telemetry.metrics import Outcome, RouterMetrics

_logger = logging.getLogger(__name__)
_RESTART_S = Seconds(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request with where its reply goes. ``replied`` is settled when the HTTP exchange is over."""

    request: TokenRequest
    stops: tuple[str, ...]
    reply: Reply
    replied: asyncio.Future[web.StreamResponse] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def respond(self, response: web.StreamResponse) -> None:
        if not self.replied.done():
            self.replied.set_result(response)

    def break_off(self, error: PddError) -> None:
        """Tells the client unless it has been answered. Only when nobody writes to it any more."""
        if not self.replied.done():
            self.replied.set_exception(error)

    def fail(self, error: Exception) -> None:
        if self.replied.cancelled():
            return  # the client left: there is nobody to tell
        if self.replied.done():
            _logger.error("request_failed_after_reply request=%s", self.request.request_id, exc_info=error)
        else:
            self.replied.set_exception(error)


class RequestRunner:
    """Runs jobs within ``lifetime``.

    ``stop`` ends them all, and the lifetime's end waits until nothing of them is left.
    """

    __slots__ = ("_codec", "_group", "_memory", "_metrics", "_service", "_stopping", "_tasks")

    def __init__(self, service: Service, codec: TextCodec, memory: AnswerMemory, metrics: RouterMetrics) -> None:
        self._service = service
        self._codec = codec
        self._memory = memory
        self._metrics = metrics
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[asyncio.Task[None], Job] = {}  # in order of their start, to cancel them in that order
        self._stopping = False

    @asynccontextmanager
    async def lifetime(self) -> AsyncGenerator[None]:
        """The time in which requests can be run."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                self.stop()

    def stop(self) -> None:
        """Takes no more jobs and ends those that run: ``run`` raises Unavailable, so that their clients can be told."""
        self._stopping = True
        for task in tuple(self._tasks):
            task.cancel()

    async def run(self, job: Job) -> web.StreamResponse:
        """Answers ``job``; returns when the client has everything. Cancelling this means that the client left.

        Raises:
            PddError: why the answer could not be given, or not to its end (something was sent already). Unavailable
                if the router stops.
            ClientLeft: the client stopped reading.
        """
        if self._group is None or self._stopping:
            raise _stopping()
        task = self._group.create_task(self._run(job))
        self._tasks[task] = job
        task.add_done_callback(self._ended)
        try:
            return await self._keep_alive_until_replied(job)
        except (asyncio.CancelledError, ClientLeft):
            job.replied.cancel()
            task.cancel()
            raise

    async def _keep_alive_until_replied(self, job: Job) -> web.StreamResponse:
        while not job.replied.done():
            _ = await asyncio.wait([job.replied], timeout=job.reply.silence_left())
            if not job.replied.done() and job.reply.silence_left() == 0.0:
                await job.reply.keep_alive()
        return job.replied.result()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that was cancelled before it began, or while it opened its request, has told nobody."""
        self._tasks.pop(task).break_off(_stopping())

    async def _run(self, job: Job) -> None:
        """The edge of a request's task: nothing it raises may reach the group, where it would end all others."""
        self._metrics.request_started()
        report: RequestReport | None = None
        outcome = Outcome.CLIENT_LEFT
        try:
            async with self._service.open(job.request) as answer:
                report = answer.report
                failure = await self._answer(job, answer)
            if failure is not None:
                raise failure
            job.respond(await job.reply.conclude(report))
            outcome = Outcome.COMPLETED
        except Exception as error:  # noqa: BLE001  # the outermost edge; ``fail`` passes it on or logs it
            cause = _root_cause(error)
            outcome = _outcome(cause)
            job.fail(cause)
        except asyncio.CancelledError:
            outcome = Outcome.UNAVAILABLE if self._stopping else outcome
            raise
        finally:
            self._count(job, outcome, report)
            _logger.info("request_ended request=%s outcome=%s", job.request.request_id, outcome)

    def _count(self, job: Job, outcome: Outcome, report: RequestReport | None) -> None:
        """A figure that can't be counted must not end everybody's streams."""
        try:
            self._metrics.request_ended(outcome, report)
        except Exception:
            _logger.exception("request_not_counted request=%s", job.request.request_id)

    async def _answer(self, job: Job, answer: Answer) -> PddError | ClientLeft | None:
        """Returns what went wrong, so that the answer's context is always left in the ordinary way."""
        try:
            await self._stream(job, answer)
        except (PddError, ClientLeft) as error:
            return error
        except asyncio.CancelledError:
            if self._stopping:  # said here and not at the task's end: leaving the answer's context may take seconds
                job.break_off(_stopping())
            raise
        return None

    async def _stream(self, job: Job, answer: Answer) -> None:
        text = AnswerText(self._codec.detokenizer(), job.stops)
        finished = False
        async for span in answer:  # to its end, also after the finish: the answer may have to tidy up there
            piece = text.push(span.tokens)
            await job.reply.show(piece.text, _trace(span, piece.num_tokens), _usage(job.request, text))
            finished = span.finish_reason is not None
            if text.stopped:
                answer.complete()
            if text.stopped or finished:
                await self._finish(job, answer, text, span)
            if text.stopped:
                return
        if not finished:
            raise LocalProtocolError("an answer ended without a finish reason")

    async def _finish(self, job: Job, answer: Answer, text: AnswerText, last: EmittedSpan) -> None:
        rest = text.finish()
        remembered = text.answer_tokens(ended_by=self._end_token(text, last))
        self._memory.keep(job.request.tenant, job.request.prompt, text.text, remembered)
        ending = Ending(
            rest=rest,
            reason=text.finish_reason(last.finish_reason or FinishReason.STOP),
            usage=_usage(job.request, text),
            last=SpanTrace(role=last.role, worker=last.worker, first_position=text.num_tokens, token_ids=()),
        )
        await job.reply.finish(ending)
        if job.reply.finished:
            job.respond(await job.reply.conclude(answer.report))

    def _end_token(self, text: AnswerText, last: EmittedSpan) -> TokenId | None:
        """The textless token that ended the answer, if one did; it may have come in an earlier span than the finish."""
        if last.finish_reason is not FinishReason.STOP or text.last_token is None:
            return None
        return text.last_token if self._codec.is_special(text.last_token) else None


def _stopping() -> Unavailable:
    return Unavailable("the router is stopping", retry_after_s=_RESTART_S)


def _usage(request: TokenRequest, text: AnswerText) -> Usage:
    """What the answer has cost so far."""
    return Usage(prompt_tokens=len(request.prompt), completion_tokens=text.num_tokens)


def _trace(span: EmittedSpan, num_tokens: int) -> SpanTrace:
    """The span up to where the answer ends."""
    return SpanTrace(
        role=span.role,
        worker=span.worker,
        first_position=span.first_position,
        token_ids=span.tokens[:num_tokens],
    )


def _root_cause(error: Exception) -> Exception:
    """The one error in a group of one: a task group inside the service wraps what it lets through."""
    while isinstance(error, ExceptionGroup):
        inner = cast(tuple[Exception, ...], error.exceptions)  # pyright: ignore[reportUnknownMemberType]
        if len(inner) != 1:
            return cast(Exception, error)
        error = inner[0]
    return error


def _outcome(error: Exception) -> Outcome:
    match error:
        case ClientLeft():
            return Outcome.CLIENT_LEFT
        case InvalidRequest():
            return Outcome.REFUSED
        case Unavailable():
            return Outcome.UNAVAILABLE
        case _:
            return Outcome.FAILED
