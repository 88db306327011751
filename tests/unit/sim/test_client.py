"""Clients know the right answer, and see what a router does with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from pdd.core.errors import LocalProtocolError, Unavailable, WorkerFailed
from pdd.core.ids import RequestId, WorkerId
from pdd.core.request import Role
from pdd.core.units import Seconds
from pdd.router.base import EmittedSpan, RequestReport, TokenRequest
from pdd.router.clock import LoopClock
from pdd.sim.client import Clients
from pdd.sim.loop import run
from pdd.sim.profile import load_model
from pdd.sim.result import Outcome, RequestSample
from pdd.sim.script import Scripts
from pdd.sim.workload.base import SimRequest, Workload

KV_FORMAT = load_model("Llama-3.1-70B").kv_format(16)


@dataclass
class Reply:
    """Tokens and when they come after the span before; then ``error``, if any."""

    spans: list[tuple[float, Role, tuple[int, ...]]]
    error: Exception | None = None


@dataclass
class FakeAnswer:
    reply: Reply
    report: RequestReport = field(default_factory=RequestReport)

    async def __aiter__(self) -> AsyncIterator[EmittedSpan]:
        position = 0
        for delay, role, tokens in self.reply.spans:
            await asyncio.sleep(delay)
            yield EmittedSpan(first_position=position, tokens=tokens, role=role, worker=WorkerId("w"))
            position += len(tokens)
        if self.reply.error is not None:
            raise self.reply.error

    def complete(self) -> None:
        raise AssertionError("nobody says so")


@dataclass
class FakeService:
    reply: Reply

    @asynccontextmanager
    async def open(self, request: TokenRequest) -> AsyncGenerator[FakeAnswer]:
        yield FakeAnswer(self.reply)


def ask(reply: Reply, *, max_tokens: int = 10) -> RequestSample:
    """A client whose right answer is 7, 7, 8."""
    request = SimRequest(
        request_id=RequestId("r"),
        arrival=Seconds(1.0),
        prompt=((1, 100),),
        answer=((7, 2), (8, 1)),
        max_tokens=max_tokens,
    )
    clients = Clients(
        Workload(name="w", requests=(request,)), scripts=Scripts(KV_FORMAT), kv_format=KV_FORMAT, clock=LoopClock()
    )
    run(clients.run(FakeService(reply)))
    (sample,) = clients.samples
    return sample


P, RLD, MD = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE


def test_times_are_from_sending_until_tokens_came():
    sample = ask(Reply([(0.5, P, (7,)), (0.25, RLD, (7,)), (2.0, MD, (8,))]))
    assert sample.outcome is Outcome.COMPLETE
    assert (sample.sent_at, sample.ttft_s, sample.ttst_s, sample.ended_s) == (1.0, 0.5, 0.75, 2.75)
    assert sample.decode_first_token_s == 0.75
    assert sample.itl_s == ((0.25, 1), (2.0, 1))
    assert sample.max_itl_s == 2.0


def test_tokens_of_one_span_share_its_time():
    sample = ask(Reply([(0.5, P, (7,)), (0.5, MD, (7, 8))]))
    assert sample.itl_s == ((0.25, 2),)
    assert sample.ttst_s == 1.0


def test_an_answer_is_as_long_as_its_budget():
    assert ask(Reply([(0.5, P, (7,)), (0.5, MD, (7,))]), max_tokens=2).num_output_tokens == 2


@pytest.mark.parametrize("tokens", [[(7,), (8,)], [(7,), (7, 7)], [(8,)], [(7, 7, 8, 9)]])
def test_wrong_tokens_end_the_simulation(tokens):
    with pytest.raises(ExceptionGroup) as raised:
        ask(Reply([(0.1, MD, each) for each in tokens]))
    assert raised.group_contains(LocalProtocolError, match="wrong tokens")


def test_tokens_that_never_come_end_the_simulation():
    with pytest.raises(ExceptionGroup) as raised:
        ask(Reply([(0.1, P, (7,))]))
    assert raised.group_contains(LocalProtocolError, match="got 1 of 3 tokens")


def test_who_is_refused_is_told_when_to_come_back():
    sample = ask(Reply([], Unavailable("full", retry_after_s=Seconds(4.0))))
    assert sample.outcome is Outcome.REFUSED
    assert sample.retry_after_s == 4.0
    assert sample.ttft_s is sample.ttst_s is sample.max_itl_s is None


def test_an_answer_that_breaks_off_counts_as_broken():
    sample = ask(Reply([(0.5, P, (7,))], WorkerFailed("gone")))
    assert sample.outcome is Outcome.BROKEN
    assert sample.num_output_tokens == 1
