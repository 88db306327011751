"""What becomes of one generation at an engine that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from pdd.belief.health import BreakerState
from pdd.belief.worker_state import Seat
from pdd.core.errors import CapacityExhausted, ContextTooLong, InvalidRequest, PddError, Unavailable, WorkerFailed
from pdd.core.ids import NodeId, RequestId, Salt, WorkerId
from pdd.core.request import GREEDY, FinishReason, Generation, Role, TokenSpan
from pdd.core.units import Seconds
from pdd.engine.base import EngineInfo
from pdd.protocol import relay
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.request.decoders import Decoders
from pdd.router.driver.request.mailbox import Inbox, InboxEvent, Refusal
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.prefill_turns import PrefillTurns
from pdd.router.driver.workers.worker import Worker
from pdd.sim.loop import VirtualTimeLoop, run
from pdd.sim.memory.network import MemoryNetwork
from tests.support.worlds import KV_FORMAT

SETTINGS = DriverSettings()
PROMPT = tuple(range(20))

Step = TokenSpan | PddError | float | None
"""A span, a failure, a pause, or the stream's end."""


@dataclass(slots=True)
class ToldEngine:
    """Plays ``steps``, then says nothing more. ``hangs`` stops it altogether, like SIGSTOP.

    A check takes it a moment.
    """

    steps: list[Step] = field(default_factory=list[Step])
    hangs: bool = False
    life: int = 1
    num_open: int = 0
    worker: WorkerId = field(default=WorkerId("engine"))

    async def info(self) -> EngineInfo:
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0.001)
        return EngineInfo(
            model="m", max_model_tokens=100, kv_format=None, sampling_version=None, node=None, instance=str(self.life)
        )

    async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        self.num_open += 1
        try:
            for step in self.steps:
                match step:
                    case None:
                        return
                    case PddError():
                        raise step
                    case TokenSpan():
                        yield step
                    case _:
                        await asyncio.sleep(step)
            await asyncio.Event().wait()
        finally:
            self.num_open -= 1


def span(position: int, *, tokens: int = 1, last: bool = False) -> TokenSpan:
    reason = FinishReason.LENGTH if last else None
    return TokenSpan(first_position=position, tokens=tuple(range(tokens)), finish_reason=reason)


def generation(*, position: int = 1, max_tokens: int = 10) -> Generation:
    return Generation(
        request_id=RequestId("r"),
        attempt=7,
        known_tokens=PROMPT + (5,) * position,
        num_prompt_tokens=len(PROMPT),
        max_tokens=max_tokens,
        stop_token_ids=frozenset(),
        sampling=GREEDY,
        salt=Salt(""),
    )


class Stage:
    """One engine and perhaps others that do the same, one request's decoders."""

    def __init__(self, *steps: Step, role: Role = Role.MAIN_DECODE, max_spans: int = 100, num_others: int = 0) -> None:
        self.engine = ToldEngine(steps=list(steps))
        others = [ToldEngine(steps=list(steps), worker=WorkerId(f"engine-{n}")) for n in range(1, num_others + 1)]
        node = MemoryNetwork(KV_FORMAT).add(NodeId("node"), capacity=4)
        workers = [Worker(engine=engine, node=node, role=role, cluster="A") for engine in (self.engine, *others)]
        self.pool = Pool(workers, SETTINGS, LoopClock())
        self.inbox = Inbox(max_spans=max_spans)

    def play(self, scene: Callable[[Decoders], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.pool.check_all()
            async with asyncio.TaskGroup() as tasks:
                self.pool.start(tasks)
                async with asyncio.TaskGroup() as own:
                    decoders = self.decoders(own)
                    await scene(decoders)
                    decoders.stop_all()
                self.pool.stop()
            assert self.engine.num_open == 0, "no stream is left open"

        run(main())

    def decoders(self, tasks: asyncio.TaskGroup) -> Decoders:
        return Decoders(
            tasks,
            inbox=self.inbox,
            prefill_turn=PrefillTurns().turn(lambda _: None),
            pool=self.pool,
            clock=LoopClock(),
            settings=SETTINGS,
        )

    def sit(self, number: int = 0) -> Seat:
        return self.pool.workers.take(WorkerId(f"engine-{number}" if number else "engine"), now())

    @property
    def breaker(self) -> BreakerState:
        (status,) = self.pool.workers.status(now())
        return status.breaker


def now() -> float:
    return asyncio.get_running_loop().time()


LOST = relay.WorkerLost(attempt=7)


async def until_lost(stage: Stage) -> list[InboxEvent]:
    events: list[InboxEvent] = []
    while not events or events[-1] != LOST:
        events.append(await stage.inbox.get())
    return events


def test_spans_arrive_until_the_last_and_nothing_after_it() -> None:
    stage = Stage(span(1), 0.5, span(2, tokens=3), span(5, last=True))

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        events = [await stage.inbox.get() for _ in range(3)]
        assert [(e.first_position, len(e.tokens)) for e in events if isinstance(e, relay.TokensDecoded)] == [
            (1, 1),
            (2, 3),
            (5, 1),
        ]
        await asyncio.sleep(100.0)
        assert stage.pool.workers.role_view(Role.MAIN_DECODE).up

    stage.play(scene)


def test_an_engine_that_hangs_altogether_is_left_when_its_checks_say_so_not_half_a_minute_later() -> None:
    stage = Stage(span(1))

    async def scene(decoders: Decoders) -> None:
        seat = stage.sit()
        decoders.decode(seat, generation(), has_prompt=True)
        await stage.inbox.get()
        stage.engine.hangs = True
        assert await until_lost(stage) == [LOST]
        assert now() < 5.1
        assert seat.down
        assert isinstance(decoders.last_error, WorkerFailed)

    stage.play(scene)


def test_a_process_that_was_replaced_is_lost_even_if_its_connection_stays() -> None:
    stage = Stage(span(1))

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        await stage.inbox.get()
        stage.engine.life = 2
        assert await until_lost(stage) == [LOST]
        assert now() < 1.1
        assert stage.pool.workers.role_view(Role.MAIN_DECODE).up, "the new one has done nothing wrong"

    stage.play(scene)


def test_what_begins_at_a_process_that_is_gone_is_lost_at_once() -> None:
    stage = Stage(span(1))

    async def scene(decoders: Decoders) -> None:
        seat = stage.sit()
        stage.engine.hangs = True
        await asyncio.sleep(10.0)
        decoders.decode(seat, generation(), has_prompt=True)
        assert await until_lost(stage) == [LOST]
        assert now() == pytest.approx(10.0, abs=0.01)

    stage.play(scene)


@pytest.mark.parametrize(
    ("has_prompt", "steps", "patience"),
    [(True, (), 30.0), (False, (), 300.0), (False, (span(1),), 30.0), (False, (200.0, span(1)), 230.0)],
)
def test_an_engine_may_be_silent_for_so_long_and_longer_only_before_the_first_token_of_a_prompt_it_computes(
    has_prompt: bool, steps: tuple[Step, ...], patience: float
) -> None:
    stage = Stage(*steps)

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=has_prompt)
        await until_lost(stage)
        assert now() == pytest.approx(patience, abs=0.01)
        assert not stage.pool.workers.role_view(Role.MAIN_DECODE).up, "it is asked before it gets anything else"

    stage.play(scene)


@pytest.mark.parametrize(
    ("block_s", "before", "patience"),
    [
        (0.01, 0, 30.0 + 5 * 0.09),
        (2.0, 0, 30.0 + 5 * 2.0 * (3 + 5 + 1)),
        (2.0, 4, 30.0 + 5 * 2.0 * (3 + 5 + 1 + 4 + 1)),
        (60.0, 0, 300.0),
    ],
)
def test_patience_with_a_prefill_goes_by_what_was_measured_of_prefills_and_what_stands_before_it(
    block_s: float, before: int, patience: float
) -> None:
    stage = Stage(role=Role.PREFILL)

    async def scene(decoders: Decoders) -> None:
        name = WorkerId("engine")
        stage.pool.workers.pace(Role.PREFILL).record(name, work=1.0, seconds=Seconds(block_s), now=Seconds(0.0))
        if before:
            stage.pool.workers.take(name, now(), num_missing=before)
        seat = stage.pool.workers.take(name, now(), num_missing=3, num_blocks=5)
        decoders.decode(seat, generation(position=0, max_tokens=1), has_prompt=False)
        await until_lost(stage)
        assert now() == pytest.approx(patience, abs=0.01)

    stage.play(scene)


def test_what_was_measured_of_prefills_says_nothing_about_a_decoder_that_computes_a_prompt() -> None:
    stage = Stage()

    async def scene(decoders: Decoders) -> None:
        stage.pool.workers.pace(Role.PREFILL).record(WorkerId("p"), work=1.0, seconds=Seconds(0.01), now=Seconds(0.0))
        decoders.decode(stage.sit(), generation(), has_prompt=False)
        await until_lost(stage)
        assert now() == pytest.approx(300.0, abs=0.01)

    stage.play(scene)


def test_each_span_begins_the_patience_anew() -> None:
    stage = Stage(*(step for position in range(1, 9) for step in (29.0, span(position))))

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        assert len(await until_lost(stage)) == 9
        assert now() == pytest.approx(8 * 29.0 + 30.0, abs=0.01)

    stage.play(scene)


def test_what_the_reader_takes_is_not_the_engines_time() -> None:
    stage = Stage(*(span(position) for position in range(1, 6)), 20.0, span(6, last=True), max_spans=1)

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        for _ in range(6):
            await asyncio.sleep(50.0)
            assert isinstance(await stage.inbox.get(), relay.TokensDecoded)

    stage.play(scene)


def test_a_router_that_was_stopped_itself_gives_the_engine_its_patience_again() -> None:
    stage = Stage(span(1), 40.0, span(2, last=True))

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        await stage.inbox.get()
        await asyncio.sleep(1.0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.advance(60.0)
        assert isinstance(await stage.inbox.get(), relay.TokensDecoded)

    stage.play(scene)


@pytest.mark.parametrize(
    "wrong",
    [span(2), span(0), span(1, tokens=11), span(1, tokens=11, last=True)],
    ids=["gap", "repetition", "past the budget", "past the budget, and last"],
)
def test_a_span_that_was_not_due_is_a_failure_of_the_worker_and_is_not_passed_on(wrong: TokenSpan) -> None:
    stage = Stage(wrong)

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        assert await until_lost(stage) == [LOST]
        assert not stage.pool.workers.role_view(Role.MAIN_DECODE).up

    stage.play(scene)


def test_a_stream_that_ends_without_a_reason_is_a_failure() -> None:
    stage = Stage(span(1), None)

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        assert len(await until_lost(stage)) == 2

    stage.play(scene)


@pytest.mark.parametrize("fault", [WorkerFailed("died"), Unavailable("refuses to begin", retry_after_s=Seconds(1.0))])
def test_failures_of_the_worker_make_it_suspect_and_in_numbers_open_its_breaker(fault: PddError) -> None:
    stage = Stage(fault)

    async def scene(decoders: Decoders) -> None:
        for round_ in range(3):
            assert stage.breaker is BreakerState.CLOSED, round_
            decoders.decode(stage.sit(), generation(), has_prompt=True)
            await until_lost(stage)
            await asyncio.sleep(0.01)
        assert stage.breaker is BreakerState.OPEN

    stage.play(scene)


@pytest.mark.parametrize(
    "refusal",
    [
        InvalidRequest("no such thing"),
        ContextTooLong("too long"),
        CapacityExhausted("full", retry_after_s=Seconds(1.0)),
    ],
)
def test_what_the_client_or_the_crowd_has_done_is_never_held_against_a_worker(refusal: PddError) -> None:
    stage = Stage(refusal)

    async def scene(decoders: Decoders) -> None:
        for _ in range(20):
            decoders.decode(stage.sit(), generation(), has_prompt=True)
            _ = await stage.inbox.get()
        assert stage.breaker is BreakerState.CLOSED
        assert stage.pool.workers.role_view(Role.MAIN_DECODE).up

    stage.play(scene)


@pytest.mark.parametrize("refusal", [InvalidRequest("no such thing"), ContextTooLong("too long")])
@pytest.mark.parametrize(("num_others", "num_losses"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_what_is_refused_in_mid_answer_is_tried_elsewhere_unless_all_or_three_have_refused_it(
    refusal: InvalidRequest, num_others: int, num_losses: int
) -> None:
    stage = Stage(refusal, num_others=num_others)

    async def scene(decoders: Decoders) -> None:
        for number in range(num_losses):
            decoders.decode(stage.sit(number), generation(), has_prompt=True)
            assert await stage.inbox.get() == LOST
        decoders.decode(stage.sit(num_losses), generation(), has_prompt=True)
        assert await stage.inbox.get() == Refusal(error=refusal)

    stage.play(scene)


def test_who_has_no_room_in_mid_answer_is_asked_again_and_again() -> None:
    stage = Stage(CapacityExhausted("full", retry_after_s=Seconds(1.0)))

    async def scene(decoders: Decoders) -> None:
        for _ in range(5):
            decoders.decode(stage.sit(), generation(), has_prompt=True)
            assert await stage.inbox.get() == LOST

    stage.play(scene)


def test_a_request_that_prefill_refuses_is_refused() -> None:
    stage = Stage(ContextTooLong("too long"), role=Role.PREFILL)

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(position=0, max_tokens=1), has_prompt=False)
        event = await stage.inbox.get()
        assert isinstance(event, Refusal)
        assert isinstance(event.error, ContextTooLong)

    stage.play(scene)


def test_a_client_that_leaves_proves_nothing_against_a_worker_but_tokens_prove_something_for_it() -> None:
    stage = Stage(span(1))

    async def scene(decoders: Decoders) -> None:
        await open_breaker(stage)
        await asyncio.sleep(6.0)
        assert stage.breaker is BreakerState.HALF_OPEN
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        await stage.inbox.get()
        decoders.stop(7)
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        assert stage.breaker is BreakerState.CLOSED

    stage.play(scene)


def test_a_client_that_leaves_before_the_first_token_proves_nothing_at_all() -> None:
    stage = Stage()

    async def scene(decoders: Decoders) -> None:
        await open_breaker(stage)
        await asyncio.sleep(6.0)
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        await asyncio.sleep(1.0)
        decoders.stop(7)
        await asyncio.sleep(1.0)
        assert stage.breaker is BreakerState.HALF_OPEN

    stage.play(scene)


def test_a_stopped_attempt_lets_go_of_its_stream_at_once() -> None:
    stage = Stage(span(1))

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        await stage.inbox.get()
        decoders.stop(7)
        await asyncio.sleep(0.01)
        assert stage.engine.num_open == 0

    stage.play(scene)


def test_the_end_of_a_request_ends_its_attempts_and_its_timers() -> None:
    stage = Stage(span(1))

    async def main() -> None:
        await stage.pool.check_all()
        async with asyncio.TaskGroup() as own:
            decoders = stage.decoders(own)
            decoders.decode(stage.sit(), generation(), has_prompt=True)
            decoders.set_timer(relay.Timer.RECOVER, Seconds(5.0))
            decoders.set_route_timer(Seconds(5.0))
            await stage.inbox.get()
            ended_at = now()
            decoders.stop_all()
        assert now() == ended_at
        assert stage.engine.num_open == 0

    run(main())


def test_a_timer_that_is_set_anew_goes_off_once() -> None:
    stage = Stage()

    async def scene(decoders: Decoders) -> None:
        decoders.set_timer(relay.Timer.RECOVER, Seconds(1.0))
        await asyncio.sleep(0.5)
        decoders.set_timer(relay.Timer.RECOVER, Seconds(2.0))
        decoders.set_timer(relay.Timer.RESEND, Seconds(4.0))
        fired = [(await stage.inbox.get(), now()) for _ in range(2)]
        assert [event for event, _ in fired] == [
            relay.TimerFired(timer=relay.Timer.RECOVER),
            relay.TimerFired(timer=relay.Timer.RESEND),
        ]
        assert [at for _, at in fired] == pytest.approx([2.5, 4.5], abs=0.01)

    stage.play(scene)


async def open_breaker(stage: Stage) -> None:
    for _ in range(3):
        seat = stage.sit()
        stage.pool.suspect(seat)
        stage.pool.workers.release(seat)
        await asyncio.sleep(0.01)


def test_an_extend_tells_its_end_and_passes_no_token_on() -> None:
    stage = Stage(2.0, span(3, last=True))

    async def scene(decoders: Decoders) -> None:
        decoders.extend(stage.sit(), generation(position=3, max_tokens=1), has_prompt=True)
        assert await stage.inbox.get() == relay.Extended(attempt=7)
        assert now() == pytest.approx(2.0, abs=0.01)

    stage.play(scene)


def test_the_first_token_waits_until_the_request_is_admitted() -> None:
    stage = Stage(span(0, last=True), role=Role.PREFILL)

    async def scene(decoders: Decoders) -> None:
        decoders.admitted.clear()
        decoders.decode(stage.sit(), generation(position=0, max_tokens=1), has_prompt=False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await stage.inbox.get()
        decoders.admitted.set()
        assert isinstance(await stage.inbox.get(), relay.TokensDecoded)

    stage.play(scene)


def test_a_decoders_pace_is_measured_between_its_spans() -> None:
    stage = Stage(7.0, span(1), 0.5, span(2, tokens=5), 0.5, span(7, tokens=4, last=True))

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        for _ in range(3):
            await stage.inbox.get()
        await asyncio.sleep(0.01)
        pace = stage.pool.workers.pace(Role.MAIN_DECODE)
        assert pace.unit_s == pytest.approx(1.0 / 9)
        assert pace.typical_work == 9
        assert stage.pool.workers.pace(Role.PREFILL).unit_s is None

    stage.play(scene)


def test_prefills_pace_is_that_of_prompts_alone() -> None:
    stage = Stage(4.0, span(0), 3.0, span(1, last=True), role=Role.PREFILL)

    async def scene(decoders: Decoders) -> None:
        decoders.decode(
            stage.pool.workers.take(WorkerId("engine"), now(), num_missing=7), generation(position=0), has_prompt=False
        )
        for _ in range(2):
            await stage.inbox.get()
        await asyncio.sleep(0.01)
        assert stage.pool.workers.pace(Role.PREFILL).unit_s == pytest.approx(0.5)

    stage.play(scene)


def test_what_prefill_decodes_in_need_says_nothing_about_its_prompts() -> None:
    stage = Stage(4.0, span(3), 3.0, span(4, last=True), role=Role.PREFILL)

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(position=3), has_prompt=False)
        for _ in range(2):
            await stage.inbox.get()
        await asyncio.sleep(0.01)
        assert stage.pool.workers.pace(Role.PREFILL).unit_s is None

    stage.play(scene)


def test_an_engine_that_decodes_is_alive_though_it_answers_no_checks() -> None:
    stage = Stage(*(step for position in range(1, 10) for step in (1.5, span(position))), 0.0, span(10, last=True))

    async def scene(decoders: Decoders) -> None:
        decoders.decode(stage.sit(), generation(), has_prompt=True)
        stage.engine.hangs = True
        for _ in range(10):
            assert isinstance(await stage.inbox.get(), relay.TokensDecoded)

    stage.play(scene)


def test_a_generation_that_is_over_listens_to_its_worker_no_more() -> None:
    stage = Stage(span(1, last=True))

    async def scene(decoders: Decoders) -> None:
        seat = stage.sit()
        for _ in range(10):
            decoders.decode(seat, generation(), has_prompt=True)
            await stage.inbox.get()
            await asyncio.sleep(0.01)
        assert not seat.lifetime._listeners

    stage.play(scene)


def test_the_crowd_that_a_decoder_was_in_is_counted_until_it_has_left() -> None:
    stage = Stage(*(step for position in range(1, 10) for step in (0.1, span(position))), 0.1, span(10, last=True))

    async def scene(decoders: Decoders) -> None:
        for _ in range(3):
            decoders.decode(stage.sit(), generation(), has_prompt=True)
            await asyncio.sleep(0.3)
        await asyncio.sleep(10.0)
        (state,) = stage.pool.workers.candidates(Role.MAIN_DECODE)
        assert state.num_decoding == 0
        beside = stage.pool.workers.begin_decoding(stage.sit())
        assert beside == 0
        stage.pool.workers.end_decoding(stage.sit(), now(), num_tokens=0, seconds=Seconds(0.0), beside=beside)

    stage.play(scene)


def test_a_decoders_pace_is_measured_together_with_the_crowd_that_it_was_in() -> None:
    """One alone takes 0.1 s a token; each of eleven, beside five on average from its begin to its end, takes 0.2 s."""
    stage = Stage()

    async def scene(decoders: Decoders) -> None:
        for num, interval in ((1, 0.1), (11, 0.2)):
            stage.engine.steps = [s for position in range(1, 10) for s in (interval, span(position))]
            stage.engine.steps += [interval, span(10, last=True)]
            for _ in range(num):
                decoders.decode(stage.sit(), generation(), has_prompt=True)
                await asyncio.sleep(0.001)
            for _ in range(10 * num):
                await stage.inbox.get()
            await asyncio.sleep(0.01)
        pace = stage.pool.workers.pace(Role.MAIN_DECODE)
        assert pace.crowd_s == pytest.approx(0.1 / 5, rel=0.01)
        assert pace.alone_s == pytest.approx(0.1, rel=0.01)

    stage.play(scene)
