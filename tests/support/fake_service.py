"""A ``router.base.Service`` that says what a test tells it to, and remembers what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field

from pdd.core.ids import TokenId, WorkerId
from pdd.core.request import FinishReason, Role, Route
from pdd.core.units import Bytes, Seconds
from pdd.router.base import EmittedSpan, RequestReport, TokenRequest
from pdd.telemetry.events import Event


@dataclass(frozen=True, kw_only=True)
class Step:
    """Tokens of one span; then ``error`` is raised, or everything waits for ``gate``."""

    tokens: tuple[TokenId, ...] = ()
    role: Role = Role.MAIN_DECODE
    finish: FinishReason | None = None
    error: Exception | None = None
    gate: asyncio.Event | None = None


Script = Callable[[TokenRequest], Sequence[Step]]


def steps(*spans: Sequence[TokenId], finish: FinishReason = FinishReason.LENGTH) -> list[Step]:
    """Spans by prefill, relay decode and then main decode, and the finish in an empty span of its own."""
    roles = (Role.PREFILL, Role.RELAY_DECODE)
    told = [
        Step(tokens=tuple(span), role=roles[index] if index < len(roles) else Role.MAIN_DECODE)
        for index, span in enumerate(spans)
    ]
    return [*told, Step(finish=finish)]


@dataclass(kw_only=True)
class FakeAnswer:
    request: TokenRequest
    script: Sequence[Step]
    report: RequestReport = field(default_factory=RequestReport)
    completed: bool = False
    finished: bool = False

    def complete(self) -> None:
        self.completed = True

    async def __aiter__(self) -> AsyncIterator[EmittedSpan]:
        position = 0
        for step in self.script:
            if step.gate is not None:
                await step.gate.wait()
            if step.error is not None:
                raise step.error
            yield EmittedSpan(
                first_position=position,
                tokens=step.tokens,
                role=step.role,
                worker=WorkerId(f"{step.role}-0"),
                finish_reason=step.finish,
            )
            self.finished = step.finish is not None
            position += len(step.tokens)
            counts = self.report.tokens_by_role
            counts[step.role] = counts.get(step.role, 0) + len(step.tokens)


@dataclass(kw_only=True)
class FakeService:
    """Plays ``script`` for each request.

    ``opening`` is raised at once, ``closing`` at the end; ``transfer`` holds each context's end.
    """

    script: Script
    opening: Exception | None = None
    closing: Exception | None = None
    transfer: asyncio.Event | None = None
    report: RequestReport = field(default_factory=RequestReport)
    """What each answer's report begins as."""
    answers: list[FakeAnswer] = field(default_factory=list)
    cancelled: int = 0
    running: int = 0
    any_opened: asyncio.Event = field(default_factory=asyncio.Event)
    all_left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def requests(self) -> list[TokenRequest]:
        return [answer.request for answer in self.answers]

    @asynccontextmanager
    async def open(self, request: TokenRequest) -> AsyncGenerator[FakeAnswer]:
        if self.opening is not None:
            raise self.opening
        answer = FakeAnswer(request=request, script=self.script(request), report=deepcopy(self.report))
        answer.report.num_prompt_tokens = len(request.prompt)
        self.answers.append(answer)
        self.running += 1
        self.any_opened.set()
        self.all_left.clear()
        try:
            yield answer
            if answer.completed or answer.finished:
                if self.transfer is not None:
                    await self.transfer.wait()
                self._conclude(answer.report)
                if self.closing is not None:
                    raise self.closing
            else:
                self.cancelled += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            if not self.running:
                self.all_left.set()

    def _conclude(self, report: RequestReport) -> None:
        report.route = Route.RELAY
        report.ttft_s = Seconds(0.5)
        report.ttst_s = Seconds(0.75)
        report.wan_kv_bytes = Bytes(1000)
        report.events.append(Event(at=Seconds(0.25), name="prefill_done", fields={"worker": "p-0"}))
