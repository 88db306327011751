"""Requests beyond what is served at a time: who waits, who is turned away, and that nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pdd.core.errors import CapacityExhausted, ContextTooLong, PddError, TenantOverLimit, Unavailable
from pdd.core.ids import RequestId, TenantId
from pdd.core.replication import Readiness, Watch
from pdd.core.request import Role
from pdd.core.topology import AdmissionTable
from pdd.core.units import Seconds
from pdd.policy.admission import ShedReason
from pdd.router.base import TokenRequest
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.bounds.waiting_room import Place, WaitingRoom
from pdd.sim.loop import run
from pdd.sim.memory.node import MemoryNode
from tests.support.worlds import SETTINGS, Outcome, World, WorldSpec, ask, check_spans, make_request, running_world

BIG, SMALL = TenantId("big"), TenantId("small")


def settings(*, places: int = 1, waiting: int = 8, wait: float = 30.0, **weights: float) -> DriverSettings:
    return replace(
        SETTINGS,
        max_open_requests=places,
        admission=AdmissionTable(max_queued_requests=waiting, max_queue_s=Seconds(wait)),
        tenant_weights={TenantId(name): weight for name, weight in weights.items()},
    )


def request(number: int, tenant: TenantId = BIG, *, max_tokens: int = 20) -> TokenRequest:
    """About half a second of work."""
    return replace(make_request(number, prompt_tokens=20, max_tokens=max_tokens), tenant=tenant)


def play(limits: DriverSettings, scene: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with running_world(WorldSpec(blocks_per_s=1000.0, settings=limits)) as world:
            await scene(world)
            await world.settle()
            await world.check_idle()
            assert (world.driver.room.num_running, world.driver.room.num_waiting) == (0, 0)

    run(main())


async def together(world: World, requests: list[TokenRequest]) -> list[Outcome | PddError]:
    """What each client gets, in the order of ``requests``; all ask at once."""
    answers: dict[RequestId, Outcome | PddError] = {}

    async def one(each: TokenRequest) -> None:
        try:
            answers[each.request_id] = await ask(world, each)
        except PddError as error:
            answers[each.request_id] = error

    async with asyncio.TaskGroup() as tasks:
        for each in requests:
            tasks.create_task(one(each))
    return [answers[each.request_id] for each in requests]


def served(answers: list[Outcome | PddError]) -> list[Outcome]:
    return [answer for answer in answers if isinstance(answer, Outcome)]


def test_requests_beyond_the_limit_wait_and_are_answered_in_order() -> None:
    async def scene(world: World) -> None:
        answers = served(await together(world, [request(number) for number in range(4)]))
        waits = [answer.report.queued_s for answer in answers]
        assert len(answers) == 4
        assert waits == sorted(waits)
        assert waits[0] == 0
        assert waits[1] > 0.3
        first, second = answers[0].event_names, answers[1].event_names
        assert first[:2] == ["opened", "prefill_started"]
        assert second[:4] == ["opened", "queued", "admitted", "prefill_started"]
        assert answers[3].report.ttft_s > answers[3].report.queued_s

    play(settings(), scene)


def test_a_full_line_turns_away_with_a_time_to_come_back() -> None:
    async def scene(world: World) -> None:
        answers = await together(world, [request(number) for number in range(6)])
        refusals = [answer for answer in answers if isinstance(answer, CapacityExhausted)]
        assert len(served(answers)) == 3
        assert all(1 <= refusal.retry_after_s <= 60 for refusal in refusals)
        assert world.driver.room.shed == {ShedReason.QUEUE_FULL: 3}

    play(settings(waiting=2), scene)


def test_a_tenant_beyond_its_share_of_the_line_is_told_so_and_the_other_still_comes_in() -> None:
    async def scene(world: World) -> None:
        requests = [request(number) for number in range(6)]
        answers = await together(world, [*requests, request(6, SMALL), request(7, SMALL)])
        assert [type(answer) for answer in answers[3:6]] == [TenantOverLimit] * 3
        assert len(served(answers)) == 5
        assert world.driver.room.shed == {ShedReason.TENANT_LIMIT: 3}

    play(settings(waiting=4, big=1.0, small=1.0), scene)


def test_whoever_has_waited_too_long_is_turned_away_and_holds_nothing() -> None:
    async def scene(world: World) -> None:
        answers = await together(world, [request(0, max_tokens=100), request(1), request(2)])
        assert len(served(answers)) == 1
        assert world.driver.room.shed == {ShedReason.QUEUE_TIMEOUT: 2}
        _ = await ask(world, request(3))

    play(settings(wait=0.7), scene)


def test_whose_turn_would_not_come_in_time_is_turned_away_at_once() -> None:
    async def scene(world: World) -> None:
        loop = asyncio.get_running_loop()
        _ = await together(world, [request(number) for number in range(4)])
        began = loop.time()
        seconds: list[float] = []

        async def late(number: int) -> None:
            try:
                _ = await ask(world, request(number))
            except CapacityExhausted:
                seconds.append(loop.time() - began)

        async with asyncio.TaskGroup() as tasks:
            for number in range(10, 20):
                tasks.create_task(late(number))
        assert seconds
        assert set(seconds) == {0.0}
        assert world.driver.room.shed[ShedReason.QUEUE_TOO_LONG] == len(seconds)

    play(settings(waiting=100, wait=2.0), scene)


def test_a_client_that_leaves_the_line_makes_room_at_once_and_takes_no_ones_turn() -> None:
    async def scene(world: World) -> None:
        async with world.driver.open(request(0)) as first:
            before = asyncio.get_running_loop().time()
            async with world.driver.open(request(1)):
                assert world.driver.room.num_waiting == 1
            assert asyncio.get_running_loop().time() == before
            assert (world.driver.room.num_waiting, world.driver.num_open) == (0, 1)
            async with world.driver.open(request(2)) as third:
                tokens = [token async for span in first for token in span.tokens]
                assert len(tokens) == 20
                check_spans(request(2), [span async for span in third])

    play(settings(waiting=1), scene)


def test_a_client_in_line_is_told_when_the_router_stops() -> None:
    async def main() -> None:
        told: list[PddError] = []

        async def read(world: World, number: int) -> None:
            async with world.driver.open(request(number)) as answer:
                try:
                    _ = [span async for span in answer]
                except PddError as error:
                    told.append(error)

        async with asyncio.TaskGroup() as clients, running_world(WorldSpec(settings=settings())) as world:
            clients.create_task(read(world, 0))
            clients.create_task(read(world, 1))
            await asyncio.sleep(0.2)
            assert world.driver.room.num_waiting == 1
        assert [str(error) for error in told] == ["the router is stopping"]
        assert (world.driver.room.num_running, world.driver.num_open) == (0, 0)

    run(main())


def test_a_reader_that_leaves_before_its_request_began_leaves_nothing_behind() -> None:
    async def scene(world: World) -> None:
        async with asyncio.timeout(1.0), world.driver.open(request(0, max_tokens=1000)):
            pass
        async with world.driver.open(request(1)) as first:
            async with world.driver.open(request(2, max_tokens=1000)) as second:
                tokens = [token async for span in first for token in span.tokens]
                assert len(tokens) == 20
                await until(lambda: world.driver.room.num_waiting == 0)
            assert second.report.events[-1].name == "client_left"

    play(replace(settings(), max_spans_ahead=2), scene)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the very moment counts
        await asyncio.sleep(0)


@pytest.mark.parametrize("downtime", [0.5, 5.0])
def test_those_in_line_outlast_a_restart_of_the_only_prefill(downtime: float) -> None:
    async def scene(world: World) -> None:
        (prefill,) = world.engines[Role.PREFILL]

        async def restart() -> None:
            await asyncio.sleep(0.2)
            prefill.die()
            await asyncio.sleep(downtime)
            prefill.revive()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(restart())
            answers = await together(world, [request(number) for number in range(6)])
        assert len(served(answers)) == 6

    play(settings(), scene)


def test_a_client_that_waits_for_engines_to_come_back_may_leave_at_any_time() -> None:
    async def scene(world: World) -> None:
        async with world.driver.open(request(0, max_tokens=200)) as first:
            async with world.driver.open(request(1)) as second:
                _ = await anext(first)
                world.engines[Role.PREFILL][0].die()
                _ = [span async for span in first]
                await asyncio.sleep(2)
                assert second.report.events[-1].name == "queued"
                assert (world.driver.room.num_running, world.driver.room.num_waiting) == (1, 0)
                before = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - before < 1
            assert second.report.events[-1].name == "client_left"

    play(settings(), scene)


def test_those_in_line_are_told_when_nobody_came_back_in_time() -> None:
    async def scene(world: World) -> None:
        async def fail_everybody() -> None:
            await asyncio.sleep(0.2)
            for role in (Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE):
                world.engines[role][0].die()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail_everybody())
            answers = await together(world, [request(0, max_tokens=200), request(1)])
        assert [isinstance(answer, Unavailable) for answer in answers] == [True, True]
        assert sum(world.driver.room.shed.values()) == 1
        assert asyncio.get_running_loop().time() < 60

    play(settings(), scene)


# What the turned away are told ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class HandClock:
    time: float = 0.0

    def now(self) -> Seconds:
        return Seconds(self.time)

    async def sleep(self, delay: Seconds) -> None:
        raise AssertionError("nobody sleeps here")


def busy_room(clock: HandClock, limits: DriverSettings) -> tuple[WaitingRoom, list[Place]]:
    """Its one place has completed 40 tokens a second for a minute, and is taken."""
    room = WaitingRoom(limits, clock)
    places = [room.enter(request(0))]
    for number in range(1, 61):
        places.append(room.enter(request(number)))
        clock.time += 1
        room.leave(places.pop(0))
    return room, places


def test_the_retry_time_of_a_tenant_beyond_its_share_is_that_of_its_own_line() -> None:
    room, _ = busy_room(HandClock(), settings(waiting=20, big=3.0, small=1.0))
    for number in range(15):
        _ = room.enter(request(100 + number))
    for number in range(5):
        _ = room.enter(request(200 + number, SMALL))
    with pytest.raises(CapacityExhausted) as full:
        _ = room.enter(request(300, SMALL))
    assert full.value.retry_after_s == pytest.approx(20, rel=0.2)

    room, _ = busy_room(HandClock(), settings(waiting=20, big=1.0, small=3.0))
    for number in range(5):
        _ = room.enter(request(100 + number))
    with pytest.raises(TenantOverLimit) as beyond:
        _ = room.enter(request(200))
    assert beyond.value.retry_after_s == pytest.approx(5, rel=0.2)
    for number in range(10):
        _ = room.enter(request(300 + number, SMALL))
    with pytest.raises(TenantOverLimit) as beside_others:
        _ = room.enter(request(200))
    assert beside_others.value.retry_after_s == pytest.approx(5 + 10 + 1, rel=0.2)


def test_the_retry_time_of_one_whose_turn_would_not_come_in_time_counts_what_is_served_before_it() -> None:
    room, _ = busy_room(HandClock(), settings(waiting=100, wait=8.0))
    for number in range(7):
        _ = room.enter(request(100 + number))
    for number in range(4):
        _ = room.enter(request(200 + number, SMALL))
    with pytest.raises(CapacityExhausted) as too_long:
        _ = room.enter(request(300, SMALL))
    assert room.shed == {ShedReason.QUEUE_TOO_LONG: 1}
    assert too_long.value.retry_after_s == pytest.approx(4 + 4, rel=0.1)


def test_however_large_a_request_is_it_may_have_a_place_that_is_free() -> None:
    room, places = busy_room(HandClock(), settings())
    room.leave(places[0])
    assert room.has_place(room.enter(request(1000, max_tokens=10**6)))


def test_who_is_refused_for_another_reason_is_told_by_the_backlog_but_no_less_than_that_reason_takes() -> None:
    room, _ = busy_room(HandClock(), settings(waiting=20))
    assert room.retry_after() == SETTINGS.retry_after
    for number in range(10):
        _ = room.enter(request(100 + number))
    assert room.retry_after() == pytest.approx(10, rel=0.2)
    assert room.nobody_is_up("nobody").retry_after_s == room.retry_after()
    for told, retry_after in ((1.0, room.retry_after()), (30.0, 30.0)):
        advised = room.advised(CapacityExhausted("full", retry_after_s=Seconds(told)))
        assert isinstance(advised, CapacityExhausted)
        assert (advised.message, advised.retry_after_s) == ("full", retry_after)
    other = ContextTooLong("too long")
    assert room.advised(other) is other
    assert room.shed == {ShedReason.NO_WORKER: 1, ShedReason.NO_ROOM: 2}


# Room at main decode's node ---------------------------------------------------------------------------------------------


def count_watches(node: MemoryNode) -> list[Watch]:
    """Every watch that is asked for from now on."""
    asked: list[Watch] = []
    ask_node = node.watch

    def watch(wanted: Watch) -> AsyncGenerator[Readiness]:
        asked.append(wanted)
        return ask_node(wanted)

    node.watch = watch
    return asked


def test_many_without_room_at_main_decodes_node_are_served_in_order_and_hardly_ask() -> None:
    async def main() -> None:
        limits = replace(settings(places=100, wait=60.0), node_retry=Seconds(5.0))
        spec = WorldSpec(blocks_per_s=1000.0, main_capacity=6, settings=limits)
        async with running_world(spec) as world:
            requests = [request(number, max_tokens=40) for number in range(30)]
            finished: list[RequestId] = []
            asked = count_watches(world.nodes[Role.MAIN_DECODE])

            async def one(each: TokenRequest) -> None:
                _ = await ask(world, each)
                finished.append(each.request_id)

            async with asyncio.TaskGroup() as tasks:
                for each in requests:
                    tasks.create_task(one(each))
                    await asyncio.sleep(0.02)
            assert finished == [each.request_id for each in requests]
            waited = asyncio.get_running_loop().time()
            assert waited < 13, "what was let go was asked for at once"
            assert len(asked) < len(requests) * 3
            await world.settle()
            await world.check_idle()

    run(main())


def test_who_waits_for_room_at_main_decode_keeps_nobody_from_prefill_who_has_it() -> None:
    async def main() -> None:
        spec = WorldSpec(blocks_per_s=1000.0, main_capacity=6, settings=settings(places=100, wait=60.0))
        async with running_world(spec) as world:
            answers = await together(world, [request(number, max_tokens=40) for number in range(30)])
            assert len(served(answers)) == 30
            assert asyncio.get_running_loop().time() < 20

    run(main())


# A burst ----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Burst:
    """What came of a minute of ten times the capacity."""

    answers: dict[TenantId, list[Outcome]]
    refusals: dict[TenantId, list[CapacityExhausted]]
    recovered_after: float


CAPACITY = 4.0
"""Requests a second: two places, half a second each."""


async def _send(world: World, burst: Burst, each: TokenRequest, at: float) -> None:
    await asyncio.sleep(at)
    try:
        burst.answers[each.tenant].append(await ask(world, each))
    except CapacityExhausted as refusal:
        burst.refusals[each.tenant].append(refusal)


async def _play_burst(world: World) -> Burst:
    burst = Burst({BIG: [], SMALL: []}, {BIG: [], SMALL: []}, 0.0)
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(10 * CAPACITY * 60)):
            tasks.create_task(_send(world, burst, request(number), number / (10 * CAPACITY)))
        for number in range(60):
            tasks.create_task(_send(world, burst, request(100_000 + number, SMALL), number + 0.5))
    burst.recovered_after = asyncio.get_running_loop().time() - 60
    last = await ask(world, request(999_999))
    assert last.report.queued_s == 0
    return burst


@pytest.mark.timeout(300)
def test_a_minute_of_ten_times_the_capacity_loses_nothing_that_was_accepted_and_is_fair() -> None:
    limits = settings(places=2, waiting=32, wait=10.0, big=1.0, small=1.0)

    async def scene(world: World) -> None:
        burst = await _play_burst(world)  # ``ask`` has checked that every answer is whole
        big, small = burst.answers[BIG], burst.answers[SMALL]
        assert len(big) + len(burst.refusals[BIG]) == 10 * CAPACITY * 60
        assert len(big) > 0.7 * CAPACITY * 60
        assert all(1 <= refusal.retry_after_s <= 60 for refusal in burst.refusals[BIG])
        assert max(refusal.retry_after_s for refusal in burst.refusals[BIG]) > 10
        assert world.driver.room.shed.get(ShedReason.QUEUE_TIMEOUT, 0) == 0
        assert burst.refusals[SMALL] == []
        assert len(small) == 60
        assert max(answer.report.queued_s for answer in small) < 1.0
        assert max(answer.report.queued_s for answer in big) <= 10.0
        assert burst.recovered_after < 11.0

    play(limits, scene)


@pytest.mark.timeout(300)
def test_those_turned_away_who_come_back_when_told_are_served_soon_and_seldom_turned_away_again() -> None:
    tries: Counter[int] = Counter()

    async def persist(world: World, number: int) -> None:
        await asyncio.sleep(number / (10 * CAPACITY))
        for attempt in range(1, 20):
            try:
                _ = await ask(world, replace(request(number), request_id=RequestId(f"r{number}.{attempt}")))
            except CapacityExhausted as refusal:
                await asyncio.sleep(refusal.retry_after_s)
            else:
                tries[attempt] += 1
                return

    async def scene(world: World) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(10 * CAPACITY * 6)):
                tasks.create_task(persist(world, number))
        assert tries.total() == 10 * CAPACITY * 6
        assert max(tries) <= 4
        assert asyncio.get_running_loop().time() < 1.5 * 60

    play(settings(places=2, waiting=16, wait=10.0), scene)
