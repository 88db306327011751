"""More requests than main decode has room for, and requests that need none: what is sent and computed meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pdd.core.errors import CapacityExhausted
from pdd.core.replication import ReplicationOrder
from pdd.core.request import Generation, Role, Route, SendClass, Steering
from pdd.core.topology import AdmissionTable
from pdd.core.units import Seconds
from pdd.protocol import relay
from pdd.router.base import TokenRequest
from pdd.router.clock import LoopClock
from pdd.sim.loop import run
from tests.support.worlds import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    PREFILL_SCRIPT,
    SETTINGS,
    Outcome,
    World,
    WorldSpec,
    ask,
    expected_answer,
    make_request,
    running_world,
)

now = LoopClock().now

P, RLD, MD = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE

PROMPT_TOKENS = 3000
PROMPT_BLOCKS = PROMPT_TOKENS // BLOCK_TOKENS
CHUNK_TOKENS = 128
ONE_FITS = WorldSpec(
    blocks_per_s=60.0,
    main_capacity=PROMPT_BLOCKS + 20,
    prefill=replace(PREFILL_SCRIPT, prefill_chunk_tokens=CHUNK_TOKENS),
)
"""Prefill takes 1.5 s, the line 3.1 s."""
NO_RELAY = replace(ONE_FITS, relay_capacity=10)
"""Relay decode's node can't hold such a prompt either."""
FULL_RELAY = replace(ONE_FITS, relay_capacity=PROMPT_BLOCKS + 20)
"""It can hold one, too."""
CHUNK_S = CHUNK_TOKENS / PREFILL_SCRIPT.prefill_tokens_per_s
ROUND_TRIP_S = 2 * ONE_FITS.line_delay
LONG = 250
"""Tokens of an answer that takes longer than the others may wait."""


def impatient(spec: WorldSpec) -> WorldSpec:
    return replace(spec, settings=replace(SETTINGS, admission=AdmissionTable(max_queue_s=Seconds(5.0))))


def request_of(number: int, *, max_tokens: int = LONG) -> TokenRequest:
    return make_request(number, prompt_tokens=PROMPT_TOKENS, max_tokens=max_tokens)


async def finish(world: World) -> None:
    await world.settle()
    await world.check_idle()


async def alone(spec: WorldSpec) -> Outcome:
    async with running_world(spec) as world:
        outcome = await ask(world, request_of(0))
        await finish(world)
        return outcome


async def ask_or_be_refused(world: World, request: TokenRequest) -> Outcome | None:
    try:
        return await ask(world, request)
    except CapacityExhausted:
        return None


async def ask_four(world: World) -> list[Outcome | None]:
    async with asyncio.TaskGroup() as clients:
        asking = [clients.create_task(ask_or_be_refused(world, request_of(number))) for number in range(4)]
    return [task.result() for task in asking]


def note_prefills(world: World) -> list[str]:
    """The requests of which prefill was asked anything, in order."""
    asked: list[str] = []
    engine = world.engines[P][0]
    generate = engine.generate

    def noting(generation: Generation):
        asked.append(generation.request_id)
        return generate(generation)

    engine.generate = noting
    return asked


async def computed_blocks(world: World) -> int:
    return (await world.nodes[P].stats()).held_blocks


@pytest.mark.parametrize("spec", [ONE_FITS, NO_RELAY], ids=["relay decode has room", "it has none"])
def test_three_that_find_no_room_beside_one_that_does_send_nothing_and_do_not_delay_it(spec: WorldSpec) -> None:
    async def main() -> None:
        undisturbed = await alone(spec)
        async with running_world(impatient(spec)) as world:
            outcomes = await ask_four(world)
            (served,) = [outcome for outcome in outcomes if outcome is not None]
            assert undisturbed.report.ttst_s is not None
            assert served.report.ttst_s is not None
            assert served.report.ttst_s <= 1.1 * undisturbed.report.ttst_s + ROUND_TRIP_S + CHUNK_S
            assert world.driver.wan_kv_bytes <= 1.05 * PROMPT_BLOCKS * BLOCK_BYTES
            await finish(world)

    run(main())


def test_what_has_no_place_anywhere_is_not_computed() -> None:
    async def main() -> None:
        async with running_world(impatient(NO_RELAY)) as world:
            outcomes = await ask_four(world)
            assert outcomes.count(None) == 3
            a_round_trip = 4 * ROUND_TRIP_S / CHUNK_S * CHUNK_TOKENS / BLOCK_TOKENS
            assert await computed_blocks(world) <= PROMPT_BLOCKS + LONG // BLOCK_TOKENS + a_round_trip
            await finish(world)

    run(main())


def test_who_comes_when_others_wait_already_is_not_even_begun() -> None:
    async def main() -> None:
        async with running_world(FULL_RELAY) as world, asyncio.TaskGroup() as clients:
            asked = note_prefills(world)
            first = clients.create_task(ask(world, request_of(0)))
            await asyncio.sleep(0.1)
            second = clients.create_task(ask(world, request_of(1, max_tokens=5)))
            await asyncio.sleep(0.1)
            third = clients.create_task(ask(world, request_of(2, max_tokens=5)))
            await asyncio.sleep(2.0)
            assert world.engines[P][0].num_open == 0
            assert (await world.nodes[P].stats()).orders == 1, "that of the one which has room"
            assert asked == ["r0", "r1"], "of the second it was not known at once"
            for client in (first, second, third):
                await client
            await finish(world)

    run(main())


def test_what_relay_decode_has_a_place_for_is_computed_when_prefill_is_free_and_answers_as_soon_as_there_is_room() -> (
    None
):
    async def main() -> None:
        async with running_world(ONE_FITS) as world:
            async with asyncio.TaskGroup() as clients:
                first = clients.create_task(ask(world, request_of(0, max_tokens=60)))
                await asyncio.sleep(0.1)
                began = asyncio.get_running_loop().time()
                second = clients.create_task(ask(world, request_of(1, max_tokens=60)))
                await first
                ended = asyncio.get_running_loop().time()
            report = second.result().report
            assert report.ttft_s is not None
            assert report.ttft_s == pytest.approx(ended - began, abs=5 * ROUND_TRIP_S)
            assert second.result().roles[:2] == [P, RLD]
            await finish(world)

    run(main())


def test_a_held_prefill_goes_on_from_what_it_had_computed() -> None:
    async def main() -> None:
        far = replace(NO_RELAY, line_delay=0.5)  # a second of prefill before the node has answered
        async with running_world(far) as world:
            async with asyncio.TaskGroup() as clients:
                first = clients.create_task(ask(world, request_of(0, max_tokens=20)))
                await asyncio.sleep(2.0)
                second = clients.create_task(ask(world, request_of(1, max_tokens=20)))
                await first
                freed = asyncio.get_running_loop().time()
                await second
                took = asyncio.get_running_loop().time() - freed
            starts = [c for name, c in world.commands if name == "r1" and isinstance(c, relay.StartDecode)]
            assert [(c.role, c.num_known) for c in starts[:2]] == [(P, 0), (P, 0)]
            alone_s = PROMPT_TOKENS / PREFILL_SCRIPT.prefill_tokens_per_s
            report = second.result().report
            assert report.ttft_s is not None
            assert report.ttft_s < 4.0 + took
            events = [(event.name, event.at) for event in second.result().report.events]
            (_, resumed) = [at for name, at in events if name == "prefill_started"]
            (token,) = [at for name, at in events if name == "first_token"]
            assert token - resumed < alone_s - 0.4
            pace = world.driver.pool.workers.pace(P).unit_s
            assert pace == pytest.approx(alone_s / (PROMPT_BLOCKS + 1), rel=0.1), (
                "the time for which one was held tells nothing"
            )
            await finish(world)

    run(main())


def test_a_client_that_leaves_while_its_prefill_is_held_leaves_nothing() -> None:
    async def main() -> None:
        async with running_world(NO_RELAY) as world:
            async with asyncio.TaskGroup() as clients:
                first = clients.create_task(ask(world, request_of(0)))
                await asyncio.sleep(0.1)
                second = clients.create_task(ask(world, request_of(1)))
                await asyncio.sleep(1.0)
                second.cancel()
                await first
            await finish(world)

    run(main())


def test_a_prefill_worker_that_dies_while_a_prefill_is_held_there_is_replaced() -> None:
    async def main() -> None:
        two = replace(NO_RELAY, workers_per_role=2, second_prefill_node=True)
        async with running_world(two) as world:
            async with asyncio.TaskGroup() as clients:
                first = clients.create_task(ask(world, request_of(0)))
                await asyncio.sleep(0.5)
                second = clients.create_task(ask(world, request_of(1, max_tokens=20)))
                await asyncio.sleep(1.5)  # the first one's prefill is over
                (held_at,) = [s.worker for s in world.driver.pool.workers.status(now()) if s.role is P and s.running]
                dying = next(engine for engine in world.engines[P] if engine.worker == held_at)
                dying.die()
                await first
            events = second.result().report.events
            assert [e for e in events if e.name == "transfer_failed" and e.fields["role"] is MD] == []
            await finish(world)

    run(main())


# Requests that need no main decode ------------------------------------------------------------------------------------


def test_an_answer_of_one_token_is_given_whatever_main_decode_has_room_for() -> None:
    async def main() -> None:
        async with running_world(NO_RELAY) as world:
            async with asyncio.TaskGroup() as clients:
                first = clients.create_task(ask(world, request_of(0)))
                await asyncio.sleep(2.0)
                short = await ask(world, request_of(1, max_tokens=1))
                assert not first.done()
            assert short.report.ttft_s == pytest.approx(PROMPT_TOKENS / PREFILL_SCRIPT.prefill_tokens_per_s, abs=0.1)
            assert short.report.wan_kv_bytes == 0
            await finish(world)

    run(main())


def test_it_takes_no_place_in_line_from_those_that_wait() -> None:
    async def main() -> None:
        async with running_world(NO_RELAY) as world:
            async with asyncio.TaskGroup() as clients:
                _ = clients.create_task(ask(world, request_of(0, max_tokens=60)))
                await asyncio.sleep(0.2)
                _ = clients.create_task(ask(world, request_of(1, max_tokens=60)))
                await asyncio.sleep(0.2)
                asked = note_prefills(world)
                short = clients.create_task(ask(world, request_of(2, max_tokens=1)))
            assert asked[0] == "r2"
            assert asked.count("r2") == 1, "it is not held either"
            assert "transfer_failed" in short.result().event_names
            await finish(world)

    run(main())


def test_what_nobody_will_ever_wait_for_goes_in_the_background_from_the_start() -> None:
    async def main() -> None:
        async with running_world(WorldSpec(blocks_per_s=5.0)) as world:
            orders: list[ReplicationOrder] = []
            place = world.nodes[P].replicate

            def replicate(order: ReplicationOrder):
                orders.append(order)
                return place(order)

            world.nodes[P].replicate = replicate
            _ = await ask(world, make_request(max_tokens=1))
            assert [(order.target, order.send_class) for order in orders] == [("node-md", SendClass.BACKGROUND)]
            await finish(world)

    run(main())


def test_an_answer_that_ended_at_its_first_token_gives_way_from_then_on_however_often_in_a_row() -> None:
    async def main() -> None:
        async with running_world(WorldSpec(blocks_per_s=2.0)) as world:
            prompt = make_request(0).prompt
            for number in range(3):
                first = expected_answer(make_request(prompt=prompt))[0]
                ended = make_request(number, prompt=prompt, max_tokens=9, stop_token_ids=frozenset({first}))
                outcome = await ask(world, ended)
                assert len(outcome.tokens) == 1
                prompt = (*prompt, *outcome.tokens, *range(number, number + 96))
            assert [transfer.delivery.demoted for transfer in world.driver._desk._running] == [True, True, True]
            await finish(world)

    run(main())


def test_a_normal_transfer_beside_one_that_nobody_waits_for_takes_as_long_as_alone() -> None:
    async def ttst(*beside: TokenRequest) -> float:
        async with running_world(WorldSpec(blocks_per_s=10.0)) as world:
            waiting = make_request(9, prompt_tokens=320, max_tokens=5, steering=Steering(route=Route.DIRECT))
            async with asyncio.TaskGroup() as clients:
                for request in beside:
                    _ = clients.create_task(ask(world, request))
                client = clients.create_task(ask(world, waiting))
            await finish(world)
            assert client.result().report.ttst_s is not None
            return client.result().report.ttst_s

    async def main() -> None:
        prefill_s = 3200 / PREFILL_SCRIPT.prefill_tokens_per_s
        one_block_s = 0.1
        beside = await ttst(make_request(1, prompt_tokens=3200, max_tokens=1))
        assert beside < await ttst() + one_block_s + prefill_s / 10

    run(main())
