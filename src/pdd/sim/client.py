"""Clients of a simulated router: they send a workload's requests when they are due, and remember what they saw.

Open loop: a request is sent at its time whatever the router does, but never before the one that it follows has ended
and its client has thought about the answer. What one is refused is not sent again; its conversation goes on as if it
had been answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdd.core.clock import Clock
from pdd.core.errors import LocalProtocolError, PddError, Unavailable
from pdd.core.ids import RequestId, Salt, TokenId
from pdd.core.kv_format import KvFormat
from pdd.core.request import GREEDY, Role
from pdd.core.units import Seconds
from pdd.router.base import EmittedSpan, RequestReport, Service, TokenRequest
from pdd.sim.engine import Prefilled
from pdd.sim.result import Outcome, RequestSample
from pdd.sim.script import Script, Scripts
from pdd.sim.workload.base import SimRequest, Workload


@dataclass(slots=True, kw_only=True)
class _Sight:
    """What one client sees of its answer. Times are seconds since it sent its request."""

    num_tokens: int = 0
    ttft: float | None = None
    ttst: float | None = None
    decode_first_token: float | None = None
    last_at: float = 0.0
    itl: list[tuple[Seconds, int]] = field(default_factory=list[tuple[Seconds, int]])

    def see(self, span: EmittedSpan, elapsed: float) -> None:
        """A span has come."""
        count = len(span.tokens)
        if not count:
            return
        if self.ttft is None:
            self.ttft = elapsed
        else:
            self.itl.append((Seconds((elapsed - self.last_at) / count), count))
        if self.ttst is None and self.num_tokens + count >= 2:
            self.ttst = elapsed
        if self.decode_first_token is None and span.role is not Role.PREFILL:
            self.decode_first_token = elapsed
        self.num_tokens += count
        self.last_at = elapsed


class Clients:
    """Those of ``workload``; ``samples`` are of the requests that have ended, in that order."""

    def __init__(self, workload: Workload, *, scripts: Scripts, kv_format: KvFormat, clock: Clock) -> None:
        self.samples: list[RequestSample] = []
        self._workload = workload
        self._scripts = scripts
        self._kv_format = kv_format
        self._clock = clock
        self._began_at = Seconds(0.0)
        self._followers = _followers(workload.requests)
        self._prefill_hits: dict[RequestId, int] = {}

    @property
    def num_requests(self) -> int:
        return len(self._workload.requests)

    def prefilled(self, news: Prefilled) -> None:
        """An engine has admitted a generation: the last that computes the whole prompt counts as its prefill."""
        if news.generation.first_position == 0:
            self._prefill_hits[news.generation.request_id] = news.num_cached

    async def run(self, service: Service) -> None:
        """Sends everything and waits for all answers."""
        self._began_at = self._clock.now()
        async with asyncio.TaskGroup() as tasks:
            for request in self._workload.requests:
                if request.after is None:
                    await self._sleep_until(request.arrival)
                    conversation = self._converse(tasks, service, request)
                    tasks.create_task(conversation, name=f"client {request.request_id}")

    async def _converse(self, tasks: asyncio.TaskGroup, service: Service, request: SimRequest) -> None:
        """Sends a request when it is due, and then has those sent that follow it."""
        await self._sleep_until(request.arrival)
        self.samples.append(await self._ask(service, request))
        for follower in self._followers.get(request.request_id, ()):
            due = max(follower.arrival, self._elapsed() + follower.think_s)
            conversation = self._converse(tasks, service, replace(follower, arrival=Seconds(due)))
            tasks.create_task(conversation, name=f"client {follower.request_id}")

    async def _sleep_until(self, due: float) -> None:
        if due > self._elapsed():
            await self._clock.sleep(Seconds(due - self._elapsed()))

    def _elapsed(self) -> float:
        return self._clock.now() - self._began_at

    async def _ask(self, service: Service, request: SimRequest) -> RequestSample:
        salt = Salt(request.tenant)
        script = self._scripts.write(request, salt)
        sent_at, sight = self._elapsed(), _Sight()
        failure: PddError | None = None
        async with service.open(_token_request(request, script, salt)) as answer:
            try:
                async for span in answer:
                    _check(request, script, span, sight.num_tokens)
                    sight.see(span, self._elapsed() - sent_at)
            except LocalProtocolError:
                raise
            except PddError as error:
                failure = error
            ended = self._elapsed() - sent_at
        self._scripts.forget(request.request_id)
        if failure is None and sight.num_tokens != len(script.answer):
            raise LocalProtocolError(
                f"request {request.request_id} got {sight.num_tokens} of {len(script.answer)} tokens"
            )
        return self._sample(request, answer.report, sight, failure, sent_at=sent_at, ended=ended)

    def _sample(
        self,
        request: SimRequest,
        report: RequestReport,
        sight: _Sight,
        failure: PddError | None,
        *,
        sent_at: float,
        ended: float,
    ) -> RequestSample:
        num_prompt_tokens = request.num_prompt_tokens
        return RequestSample(
            request_id=request.request_id,
            tenant=request.tenant,
            sent_at=Seconds(sent_at),
            outcome=_outcome(sight, failure),
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=sight.num_tokens,
            ttft_s=_seconds(sight.ttft),
            ttst_s=_seconds(sight.ttst),
            decode_first_token_s=_seconds(sight.decode_first_token),
            ended_s=Seconds(ended),
            itl_s=tuple(sight.itl),
            max_itl_s=max((interval for interval, _ in sight.itl), default=None),
            handoff_gap_s=report.handoff_gap_s,
            route=report.route,
            filtered=report.filtered,
            queued_s=report.queued_s,
            tokens_by_role=dict(report.tokens_by_role),
            wan_kv_bytes=report.wan_kv_bytes,
            transfer_s=_transfer_time(report),
            prefill_hit_tokens=self._prefill_hits.pop(request.request_id, None),
            missing_blocks_at_main=report.missing_blocks_at_main,
            num_prompt_blocks=self._kv_format.num_full_blocks(num_prompt_tokens),
            retry_after_s=failure.retry_after_s if isinstance(failure, Unavailable) else None,
        )


def _followers(requests: Sequence[SimRequest]) -> Mapping[RequestId, tuple[SimRequest, ...]]:
    followers: dict[RequestId, tuple[SimRequest, ...]] = {}
    for request in requests:
        if request.after is not None:
            followers[request.after] = (*followers.get(request.after, ()), request)
    return followers


def _token_request(request: SimRequest, script: Script, salt: Salt) -> TokenRequest:
    return TokenRequest(
        request_id=request.request_id,
        tenant=request.tenant,
        prompt=script.prompt,
        max_tokens=request.max_tokens,
        stop_token_ids=frozenset[TokenId](),
        sampling=GREEDY,
        salt=salt,
        steering=request.steering,
    )


def _check(request: SimRequest, script: Script, span: EmittedSpan, num_seen: int) -> None:
    """Every client knows its answer: a token that is lost, doubled or wrong ends the simulation."""
    right = script.answer[num_seen : num_seen + len(span.tokens)]
    if span.first_position != num_seen or span.tokens != right:
        raise LocalProtocolError(f"request {request.request_id} got wrong tokens at position {span.first_position}")


def _outcome(sight: _Sight, failure: PddError | None) -> Outcome:
    if failure is None:
        return Outcome.COMPLETE
    return Outcome.BROKEN if sight.num_tokens else Outcome.REFUSED


def _seconds(value: float | None) -> Seconds | None:
    return None if value is None else Seconds(value)


def _transfer_time(report: RequestReport) -> Seconds | None:
    """From the end of prefill until main decode's node held the whole prompt; None if that was not seen."""
    ready = next((event.at for event in report.events if event.name == "main_ready"), None)
    prefilled = next((event.at for event in report.events if event.name == "first_token"), None)
    return None if ready is None or prefilled is None else Seconds(max(0.0, ready - prefilled))
