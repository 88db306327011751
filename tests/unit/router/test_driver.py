"""What a client sees of the driver, route by route, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from pdd.core.errors import CapacityExhausted, ContextTooLong, LocalProtocolError, Unavailable
from pdd.core.ids import RequestId, WorkerId
from pdd.core.request import FinishReason, HandoffMode, Role, Route, Steering
from pdd.core.topology import AdmissionTable, PolicyTable
from pdd.core.units import Seconds
from pdd.engine.scripted.engine import Faults, Script
from pdd.protocol import relay
from pdd.router.base import EmittedSpan
from pdd.router.clock import LoopClock
from pdd.router.driver.request.answer import RunningAnswer
from pdd.router.driver.request.report import Reporter
from pdd.router.driver.request.run import RequestRun
from pdd.sim.loop import run
from tests.support.worlds import (
    BLOCK_BYTES,
    MAIN_SCRIPT,
    PREFILL_SCRIPT,
    RELAY_SCRIPT,
    SETTINGS,
    World,
    WorldSpec,
    ask,
    build_world,
    check_spans,
    check_whole,
    make_request,
    running_world,
    with_policy,
)

now = LoopClock().now

SLOW_LINE = WorldSpec(blocks_per_s=2.0)
"""The six blocks of the usual prompt take 3 s."""
FAST_LINE = WorldSpec(blocks_per_s=1000.0)
PATIENT = PolicyTable(relay_threshold_s=Seconds(2.0))
"""Four blocks over the slow line are not worth a relay."""

P, RLD, MD = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE


def direct() -> Steering:
    return Steering(route=Route.DIRECT)


def relayed(after: int | None = None, handoff: HandoffMode | None = None) -> Steering:
    return Steering(route=Route.RELAY, handoff=handoff, handoff_after_tokens=after)


async def finish(world: World) -> None:
    await world.settle()
    await world.check_idle()


# Routes ---------------------------------------------------------------------------------------------------------------


def test_a_slow_line_is_hidden_by_a_relay() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            outcome = await ask(world, make_request(max_tokens=200))
            assert outcome.roles == [P, RLD, MD]
            report = outcome.report
            assert report.route is Route.RELAY
            assert report.ttft_s == pytest.approx(0.05)
            assert report.ttst_s is not None
            assert report.ttst_s < 0.1
            assert report.max_itl_s is not None
            assert report.max_itl_s < 0.1
            assert report.wan_kv_bytes == 6 * BLOCK_BYTES
            assert report.missing_blocks_at_main == 6
            await finish(world)

    run(main())


def test_a_fast_line_needs_no_relay() -> None:
    async def main() -> None:
        async with running_world(FAST_LINE) as world:
            outcome = await ask(world, make_request())
            assert outcome.roles == [P, MD]
            assert outcome.report.route is Route.DIRECT
            assert outcome.report.handoff_gap_s is None
            assert outcome.report.handoff_rounds == 0
            await finish(world)

    run(main())


def test_a_pinned_direct_request_waits_for_its_line_however_slow() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            outcome = await ask(world, make_request(steering=direct()))
            assert outcome.roles == [P, MD]
            assert outcome.report.ttst_s == pytest.approx(3.1, abs=0.1)
            targets = [c.target for _, c in world.commands if isinstance(c, relay.Replicate)]
            assert targets == [MD], "nothing is prepared at relay decode"
            await finish(world)

    run(main())


@pytest.mark.parametrize("after", [1, 2, 15, 16, 17, 33, 64, 100])
def test_a_pinned_one_shot_hands_over_after_exactly_so_many_tokens(after: int) -> None:
    async def main() -> None:
        async with running_world(FAST_LINE) as world:
            outcome = await ask(world, make_request(max_tokens=150, steering=relayed(after)))
            assert outcome.roles == [P, RLD, MD]
            assert outcome.report.tokens_by_role == {P: 1, RLD: after, MD: 149 - after}
            assert outcome.report.handoff_rounds == 1
            await finish(world)

    run(main())


def test_a_pinned_catch_up_goes_in_batches() -> None:
    async def main() -> None:
        spec = replace(FAST_LINE, main_decode=replace(MAIN_SCRIPT, prefill_tokens_per_s=500.0))
        async with running_world(spec) as world:
            steering = relayed(40, HandoffMode.CATCH_UP)
            outcome = await ask(world, make_request(max_tokens=150, steering=steering))
            assert outcome.roles == [P, RLD, MD]
            assert outcome.report.tokens_by_role[RLD] >= 40
            assert outcome.event_names.count("extend_started") >= 1
            assert outcome.report.handoff_rounds == 1 + outcome.event_names.count("extended")
            await finish(world)

    run(main())


def test_relay_decode_may_finish_first_and_the_transfer_goes_on_for_the_next_turn() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            request = make_request(max_tokens=10)
            outcome = await ask(world, request)
            assert outcome.roles == [P, RLD]
            assert outcome.report.wan_kv_bytes < 6 * BLOCK_BYTES
            assert world.driver.num_transfers == 1
            assert world.driver.num_open == 0
            await world.settle()
            assert world.driver.wan_kv_bytes == 6 * BLOCK_BYTES
            turn = make_request(1, prompt=(*request.prompt, *outcome.tokens))
            second = await ask(world, turn)
            assert second.report.wan_kv_bytes == 0
            assert second.report.missing_blocks_at_main == 0
            assert second.roles == [P, MD]
            await finish(world)

    run(main())


def test_a_second_turn_sends_only_what_is_new() -> None:
    async def main() -> None:
        async with running_world(with_policy(SLOW_LINE, PATIENT)) as world:
            request = make_request(max_tokens=150)
            first = await ask(world, request)
            turn = make_request(1, prompt=(*request.prompt, *first.tokens, *range(40)))
            second = await ask(world, turn)
            assert second.report.wan_kv_bytes <= 4 * BLOCK_BYTES
            assert second.roles == [P, MD]
            await finish(world)

    run(main())


def test_a_waiting_direct_request_turns_into_a_relay_when_the_line_gets_worse() -> None:
    async def main() -> None:
        async with running_world(with_policy(WorldSpec(blocks_per_s=6.0), PATIENT)) as world:
            request = make_request(max_tokens=300)
            async with world.driver.open(request) as answer:
                spans: list[EmittedSpan] = []
                async for span in answer:
                    spans.append(span)
                    if len(spans) == 1:
                        world.line.rate = type(world.line.rate)(world.line.rate / 50)
                        crowd = make_request(1, prompt_tokens=3000, max_tokens=1)
                        _ = await ask(world, crowd)
            assert answer.report.tokens_by_role.get(RLD, 0) > 0
            assert [e.fields["route"] for e in answer.report.events if e.name == "route_chosen"] == [
                Route.DIRECT,
                Route.RELAY,
            ]
            await finish(world)

    run(main())


def test_a_prompt_without_a_full_block_needs_no_transfer() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            outcome = await ask(world, make_request(prompt_tokens=15))
            assert outcome.roles == [P, MD]
            assert outcome.report.wan_kv_bytes == 0
            assert outcome.report.missing_blocks_at_main == 0
            await finish(world)

    run(main())


def test_requests_of_the_same_prompt_send_each_block_once() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            prompt = make_request().prompt
            async with asyncio.TaskGroup() as clients:
                requests = [make_request(number, prompt=prompt, max_tokens=200) for number in range(5)]
                asked = [clients.create_task(ask(world, request)) for request in requests]
            assert sum(task.result().report.wan_kv_bytes for task in asked) == 6 * BLOCK_BYTES
            await finish(world)

    run(main())


def test_salts_share_nothing() -> None:
    async def main() -> None:
        async with running_world(FAST_LINE) as world:
            prompt = make_request().prompt
            for number, salt in enumerate(("red", "blue")):
                outcome = await ask(world, make_request(number, prompt=prompt, salt=salt))
                assert outcome.report.wan_kv_bytes == 6 * BLOCK_BYTES
            await finish(world)

    run(main())


# Clients --------------------------------------------------------------------------------------------------------------


def test_a_slow_reader_slows_only_itself() -> None:
    async def main() -> None:
        spec = replace(FAST_LINE, settings=replace(SETTINGS, max_spans_ahead=4))
        async with running_world(spec) as world:
            async with asyncio.TaskGroup() as clients:
                clients.create_task(ask(world, make_request(0, max_tokens=40), read_interval=5.0))
                quick = clients.create_task(ask(world, make_request(1, max_tokens=40)))
            events = quick.result().report.events
            assert events[-1].at < 1.5
            await finish(world)

    run(main())


def test_a_reader_that_stands_still_keeps_nobody_running_far_ahead() -> None:
    async def main() -> None:
        spec = replace(FAST_LINE, settings=replace(SETTINGS, max_spans_ahead=4))
        async with running_world(spec) as world:
            async with world.driver.open(make_request(max_tokens=500)) as answer:
                await asyncio.sleep(60.0)
                assert sum(answer.report.tokens_by_role.values()) <= 6
            await finish(world)

    run(main())


def test_a_client_that_leaves_has_everything_cancelled() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            async with world.driver.open(make_request(max_tokens=200)) as answer:
                async for span in answer:
                    if span.role is RLD:
                        break
            assert world.driver.num_transfers == 0, "not even its transfer goes on"
            assert answer.report.events[-1].name == "client_left"
            await world.check_idle()

    run(main())


def test_a_client_that_leaves_while_somebody_is_waited_for_is_let_go_at_once() -> None:
    async def main() -> None:
        spec = replace(SLOW_LINE, settings=replace(SETTINGS, recovery_delay=Seconds(600.0)))
        async with running_world(spec) as world:
            async with world.driver.open(make_request(max_tokens=200, steering=direct())) as answer:
                async for span in answer:
                    if span.role is MD:
                        world.engines[MD][0].die()
                        world.engines[RLD][0].die()
                        world.engines[P][0].die()
                        break
                await asyncio.sleep(5.0)
                left_at = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - left_at < 1.0
            await finish(world)

    run(main())


def test_prefills_place_is_free_after_its_token() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world, world.driver.open(make_request(max_tokens=200)) as answer:
            async for span in answer:
                if span.role is RLD:
                    break
            running = {status.role: status.running for status in world.driver.pool.workers.status(now())}
            assert running == {P: 0, RLD: 1, MD: 1}

    run(main())


def test_two_emissions_of_one_batch_are_both_sent_and_the_last_says_why_it_is_the_last() -> None:
    async def main() -> None:
        async with running_world(FAST_LINE) as world:
            reporter = Reporter(RequestId("r"), num_prompt_tokens=100, clock=LoopClock())
            request_run = RequestRun(make_request(), world.driver._shared, reporter)
            request_run._decoders._seats[1] = world.driver.pool.workers.take(WorkerId("relay_decode-0"), now())
            emitted = [relay.Emit(attempt=1, role=RLD, first_position=index, tokens=(index,)) for index in range(2)]
            request_run._carry_out((*emitted, relay.Finish(reason=FinishReason.LENGTH)))
            spans = [await request_run.outbox.receive() for _ in range(3)]
            assert [(span.tokens, span.finish_reason) for span in spans if span is not None] == [
                ((0,), None),
                ((1,), FinishReason.LENGTH),
            ]

    run(main())


def test_a_handler_cancelled_twice_still_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(max_tokens=200)))
                await asyncio.sleep(1.0)
                client.cancel()
                await asyncio.sleep(0)
                client.cancel()
                await asyncio.sleep(0)
                client.cancel()
            assert client.cancelled()
            await world.check_idle()

    run(main())


def test_a_completed_answer_ends_as_it_is_and_its_transfer_goes_on() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            request = make_request(max_tokens=200)
            spans: list[EmittedSpan] = []
            async with world.driver.open(request) as answer:
                async for span in answer:
                    spans.append(span)
                    if span.first_position == 5:
                        answer.complete()
                        answer.complete()
            check_spans(request, spans)
            assert spans[-1].finish_reason is FinishReason.STOP
            assert len([span for span in spans if span.tokens]) < 10
            assert world.driver.num_transfers == 1
            await finish(world)
            stats = await world.nodes[MD].stats()
            assert stats.held_blocks == 6

    run(main())


def test_only_so_many_transfers_outlive_their_requests() -> None:
    async def main() -> None:
        spec = replace(SLOW_LINE, settings=replace(SETTINGS, max_detached_transfers=2))
        async with running_world(spec) as world:
            for number in range(5):
                _ = await ask(world, make_request(number, max_tokens=4, steering=relayed()))
            await asyncio.sleep(0.01)
            assert world.driver.num_transfers == 2
            await finish(world)

    run(main())


def test_tokens_after_a_stop_token_are_never_seen() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            plain = await ask(world, make_request())
            stop = plain.tokens[7]
            outcome = await ask(world, make_request(stop_token_ids=frozenset({stop})))
            assert outcome.tokens == plain.tokens[: plain.tokens.index(stop) + 1]
            assert outcome.spans[-1].finish_reason is FinishReason.STOP
            await finish(world)

    run(main())


# Nobody there, no room ------------------------------------------------------------------------------------------------


def test_without_prefill_a_request_is_refused_at_once_and_served_when_it_is_back() -> None:
    async def main() -> None:
        async with running_world(FAST_LINE) as world:
            world.engines[P][0].die()
            await asyncio.sleep(2.0)
            with pytest.raises(Unavailable) as refusal:
                _ = await ask(world, make_request())
            assert refusal.value.retry_after_s > 0
            assert world.commands == []
            world.engines[P][0].revive()
            await asyncio.sleep(2.0)
            _ = await ask(world, make_request())
            await finish(world)

    run(main())


def test_without_main_decode_cluster_a_serves_alone_and_hands_over_when_it_is_back() -> None:
    async def main() -> None:
        async with running_world(FAST_LINE) as world:
            world.engines[MD][0].die()
            await asyncio.sleep(2.0)
            async with asyncio.TaskGroup() as clients:
                short = clients.create_task(ask(world, make_request(0, max_tokens=20)))
                long = clients.create_task(ask(world, make_request(1, max_tokens=400)))
                await asyncio.sleep(5.0)
                world.engines[MD][0].revive()
            assert short.result().roles == [P, RLD]
            assert long.result().roles == [P, RLD, MD]
            assert long.result().report.max_itl_s is not None
            assert long.result().report.max_itl_s < 0.5
            assert long.result().report.route_reason == "no main decode worker is available"
            await finish(world)

    run(main())


def test_cluster_a_alone_takes_no_more_than_relay_decode_has_room_for() -> None:
    async def main() -> None:
        async with running_world(replace(FAST_LINE, relay_batch=1)) as world:
            world.engines[MD][0].die()
            await asyncio.sleep(2.0)
            async with world.driver.open(make_request(0, max_tokens=200)) as first:
                while (await anext(first)).role is not RLD:
                    pass
                with pytest.raises(Unavailable, match="no room for whole answers"):
                    _ = await ask(world, make_request(1))
            assert (await ask(world, make_request(2))).roles == [P, RLD]
            await finish(world)

    run(main())


def test_without_main_decode_and_relay_decode_a_request_is_refused() -> None:
    async def main() -> None:
        async with running_world(FAST_LINE) as world:
            for role in (MD, RLD):
                world.engines[role][0].die()
            await asyncio.sleep(2.0)
            with pytest.raises(Unavailable):
                _ = await ask(world, make_request())
            assert world.commands == []

    run(main())


def test_a_prefill_that_dies_and_is_back_in_a_moment_costs_a_moment() -> None:
    async def main() -> None:
        async with running_world(FAST_LINE) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request()))
                await asyncio.sleep(0.03)
                world.engines[P][0].die()
                await asyncio.sleep(2.0)
                world.engines[P][0].revive()
            assert client.result().report.ttft_s is not None
            assert client.result().report.ttft_s < 5.0
            await finish(world)

    run(main())


def test_a_main_decode_lost_in_mid_answer_is_replaced_by_another() -> None:
    async def main() -> None:
        async with running_world(replace(SLOW_LINE, workers_per_role=2)) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(max_tokens=400)))
                await asyncio.sleep(5.0)
                world.engines[MD][0].die()
            outcome = client.result()
            workers = list(dict.fromkeys(span.worker for span in outcome.spans if span.role is MD))
            assert workers == ["main_decode-0", "main_decode-1"]
            assert outcome.report.max_itl_s is not None
            assert outcome.report.max_itl_s < 0.5
            await finish(world)

    run(main())


def test_a_main_decode_that_restarts_gets_the_answer_back() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(max_tokens=600)))
                await asyncio.sleep(5.0)
                world.engines[MD][0].die()
                await asyncio.sleep(2.0)
                world.engines[MD][0].revive()
            assert client.result().roles == [P, RLD, MD, RLD, MD]
            await finish(world)

    run(main())


@pytest.mark.parametrize("steering", [Steering(), relayed(), relayed(5)])
def test_without_relay_decode_requests_go_direct(steering: Steering) -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            world.engines[RLD][0].die()
            await asyncio.sleep(2.0)
            outcome = await ask(world, make_request(steering=steering))
            assert outcome.roles == [P, MD]
            assert "relay decode" in outcome.report.route_reason
            await finish(world)

    run(main())


def test_relay_decode_without_room_means_that_this_request_goes_direct() -> None:
    async def main() -> None:
        async with running_world(replace(SLOW_LINE, relay_capacity=24)) as world:
            async with asyncio.TaskGroup() as clients:
                first = clients.create_task(ask(world, make_request(0, max_tokens=250, steering=relayed(100))))
                second = clients.create_task(ask(world, make_request(1, max_tokens=250, steering=direct())))
                await asyncio.sleep(0.2)
                third = clients.create_task(ask(world, make_request(2, max_tokens=250)))
            assert first.result().roles == [P, RLD, MD]
            assert second.result().roles == [P, MD]
            assert third.result().event_names.count("transfer_refused") >= 1
            assert next(e for e in third.result().report.events if e.name == "route_chosen").fields["route"] == "direct"
            await finish(world)

    run(main())


def test_a_request_that_relay_decode_could_never_hold_goes_direct() -> None:
    async def main() -> None:
        async with running_world(replace(SLOW_LINE, relay_capacity=4)) as world:
            outcome = await ask(world, make_request(max_tokens=90))
            assert outcome.roles == [P, MD]
            await finish(world)

    run(main())


@pytest.mark.parametrize("steering", [Steering(), relayed()])
def test_a_relay_transfer_that_finds_no_room_has_failed_and_starts_nothing(steering: Steering) -> None:
    async def main() -> None:
        async with running_world(replace(SLOW_LINE, relay_capacity=4)) as world:
            async with world.driver.open(make_request(max_tokens=90, steering=steering)) as answer:
                assert [span.role async for span in first_of(answer)] == [P]
                await asyncio.sleep(1.0)
            await finish(world)
            assert answer.report.route is Route.DIRECT
            assert "transfer_failed" in [event.name for event in answer.report.events]
            targets = {c.attempt: c.target for _, c in world.commands if isinstance(c, relay.Replicate)}
            cancelled = [targets[c.attempt] for _, c in world.commands if isinstance(c, relay.CancelReplication)]
            assert cancelled == [MD], "the machine knows that relay decode's transfer is over"
            assert RLD not in [c.role for _, c in world.commands if isinstance(c, relay.StartDecode)]

    run(main())


async def first_of(answer: RunningAnswer) -> AsyncGenerator[EmittedSpan]:
    async for span in answer:
        yield span
        return


def test_main_decode_without_room_makes_a_request_wait_in_line_before_its_first_token() -> None:
    async def main() -> None:
        async with running_world(replace(FAST_LINE, main_capacity=12)) as world:
            async with asyncio.TaskGroup() as clients:
                _ = clients.create_task(ask(world, make_request(0, max_tokens=90)))
                await asyncio.sleep(0.2)
                second = clients.create_task(ask(world, make_request(1, max_tokens=90)))
            report = second.result().report
            assert report.ttft_s is not None
            assert 1.0 < report.ttft_s < 3.0
            assert report.ttst_s == pytest.approx(report.ttft_s, abs=0.1)
            await finish(world)

    run(main())


def test_a_request_that_waited_in_line_too_long_is_refused_with_a_hint_when_to_come_back() -> None:
    async def main() -> None:
        slow = replace(MAIN_SCRIPT, token_interval=Seconds(1.0))
        async with running_world(replace(FAST_LINE, main_capacity=12, main_decode=slow)) as world:
            async with asyncio.TaskGroup() as clients:
                _ = clients.create_task(ask(world, make_request(0, max_tokens=90)))
                await asyncio.sleep(0.2)
                with pytest.raises(CapacityExhausted) as refusal:
                    _ = await ask(world, make_request(1, max_tokens=90))
            assert refusal.value.retry_after_s > 0
            await finish(world)

    run(main())


def test_an_answer_that_has_begun_does_not_wait_long_for_room_at_main_decode() -> None:
    async def main() -> None:
        slow = replace(MAIN_SCRIPT, token_interval=Seconds(0.5))
        far = replace(
            FAST_LINE, main_capacity=12, main_decode=slow, line_delay=0.2
        )  # prefill is done before it refuses
        async with running_world(far) as world, asyncio.TaskGroup() as clients:
            first = clients.create_task(ask(world, make_request(max_tokens=60, steering=direct())))
            await asyncio.sleep(1.0)
            second = await ask(world, make_request(1, max_tokens=10, steering=direct()))
            assert not first.done()
            assert second.event_names.count("transfer_failed") == 1
            assert second.report.ttst_s is not None
            assert second.report.ttst_s < 4.0
            await first
            await finish(world)

    run(main())


def test_an_answer_of_one_token_still_sends_its_prompt_to_main_decode() -> None:
    async def main() -> None:
        async with running_world(replace(FAST_LINE, line_delay=0.2)) as world:  # over before main's node has answered
            outcome = await ask(world, make_request(max_tokens=1))
            assert outcome.roles == [P]
            await finish(world)
            assert (await world.nodes[MD].stats()).held_blocks == 6

    run(main())


def test_a_request_that_main_decodes_node_can_never_hold_is_refused_before_its_first_token() -> None:
    async def main() -> None:
        async with running_world(replace(FAST_LINE, main_capacity=10)) as world:
            with pytest.raises(ContextTooLong):
                _ = await ask(world, make_request(max_tokens=90))
            await finish(world)

    run(main())


@pytest.mark.parametrize("steering", [direct(), relayed(4)], ids=["direct", "relay"])
def test_what_no_engine_takes_after_prefill_ends_with_their_reason_at_once_instead_of_forty_attempts(
    steering: Steering,
) -> None:
    async def main() -> None:
        async with running_world(replace(FAST_LINE, decode_limits=(120, 120))) as world:
            async with world.driver.open(make_request(max_tokens=90, steering=steering)) as answer:
                with pytest.raises(ContextTooLong, match="at most 120"):
                    _ = [span async for span in answer]
            assert P in answer.report.tokens_by_role
            assert MD not in answer.report.tokens_by_role
            events = [event.name for event in answer.report.events]
            assert (events.count("worker_lost"), events[-1]) == (1, "failed"), "one of each role was asked"
            assert answer.report.events[-1].at < 3.0
            await finish(world)

    run(main())


def test_an_engine_that_refuses_what_another_takes_ends_no_answer() -> None:
    async def main() -> None:
        async with running_world(replace(FAST_LINE, workers_per_role=2, decode_limits=(120, 190))) as world:
            outcome = await ask(world, make_request(max_tokens=90, steering=direct()))
            assert outcome.event_names.count("worker_lost") == 2
            assert outcome.roles == [P, MD]
            await finish(world)

    run(main())


def test_more_open_requests_than_the_limit_are_refused() -> None:
    async def main() -> None:
        no_line = replace(SETTINGS, max_open_requests=2, admission=AdmissionTable(max_queued_requests=0))
        async with running_world(replace(FAST_LINE, settings=no_line)) as world:
            async with world.driver.open(make_request(0)), world.driver.open(make_request(1)):
                with pytest.raises(CapacityExhausted):
                    _ = await ask(world, make_request(2))
            _ = await ask(world, make_request(3))
            await finish(world)

    run(main())


def test_what_the_engine_refuses_the_client_is_told() -> None:
    async def main() -> None:
        async with running_world(replace(FAST_LINE, capacity=40_000)) as world:
            with pytest.raises(ContextTooLong):
                _ = await ask(world, make_request(prompt_tokens=131_072))
            await finish(world)

    run(main())


# Losses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [P, RLD, MD])
@pytest.mark.parametrize("at", [0.06, 1.0, 3.1, 4.0])
def test_losing_any_engine_for_good_after_the_first_token_costs_nothing_but_time(role: Role, at: float) -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(max_tokens=200)))
                await asyncio.sleep(at)
                world.engines[role][0].die()
            assert len(client.result().tokens) == 200
            await finish(world)

    run(main())


@pytest.mark.parametrize("role", [P, RLD, MD])
@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("steering", [direct(), relayed(3), Steering()])
def test_losing_any_node_in_mid_transfer_costs_nothing_but_time(role: Role, restarts: bool, steering: Steering) -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(max_tokens=200, steering=steering)))
                await asyncio.sleep(1.0)
                world.nodes[role].kill()
                await asyncio.sleep(0.5)
                if restarts:
                    world.nodes[role].restart()
            report = client.result().report
            assert report.max_itl_s is not None
            assert report.max_itl_s < 25.0
            await finish(world)

    run(main())


def test_a_target_that_restarts_gets_the_blocks_again() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(max_tokens=200, steering=direct())))
                await asyncio.sleep(2.0)
                world.nodes[MD].kill()
                world.nodes[MD].restart()
            assert client.result().event_names.count("main_ready") == 1
            assert client.result().report.wan_kv_bytes > 6 * BLOCK_BYTES
            await finish(world)

    run(main())


@pytest.mark.parametrize("downtime", [0.0, 3.0])
def test_a_source_that_restarts_has_lost_the_prompt_and_nobody_waits_for_it(downtime: float) -> None:
    """Away for seconds, it is forgotten by the health checks before it is back."""

    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(max_tokens=60, steering=direct())))
                await asyncio.sleep(1.2)
                world.nodes[P].kill()
                await asyncio.sleep(downtime)
                world.nodes[P].restart()
            report = client.result().report
            assert "transfer_failed" in client.result().event_names
            assert report.ttst_s is not None
            assert report.ttst_s < downtime + 3.0
            await finish(world)

    run(main())


def test_a_line_that_is_cut_for_good_is_given_up_in_bounded_time() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(max_tokens=60, steering=direct())))
                await asyncio.sleep(1.0)
                world.network.cut(world.line)
            report = client.result().report
            assert report.ttst_s is not None
            assert report.ttst_s < 15.0
            await finish(world)

    run(main())


def test_prefill_lost_before_the_first_token_is_tried_at_another_worker() -> None:
    async def main() -> None:
        async with running_world(replace(FAST_LINE, workers_per_role=2)) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request()))
                await asyncio.sleep(0.03)
                world.engines[P][0].die()
            assert client.result().spans[0].worker == "prefill-1"
            await finish(world)

    run(main())


def test_prefill_that_always_dies_fails_the_request_and_nothing_else() -> None:
    async def main() -> None:
        broken = replace(PREFILL_SCRIPT, faults=Faults(die_after_tokens=0))
        async with running_world(replace(FAST_LINE, prefill=broken)) as world:
            with pytest.raises(Unavailable):
                _ = await ask(world, make_request())
            await finish(world)

    run(main())


def test_a_relay_decode_that_hangs_is_overtaken_by_main_decode() -> None:
    async def main() -> None:
        hanging = replace(RELAY_SCRIPT, faults=Faults(hang_after_tokens=4))
        async with running_world(replace(SLOW_LINE, relay_decode=hanging)) as world:
            outcome = await ask(world, make_request(max_tokens=60))
            assert outcome.report.tokens_by_role[RLD] == 4
            await finish(world)

    run(main())


def hanging(script: Script, after: int, attempt: int) -> Script:
    return replace(script, faults=Faults(hang_after_tokens=after, only_attempts=frozenset((attempt,))))


@pytest.mark.parametrize("after", [0, 4])
def test_an_engine_that_sends_nothing_for_half_a_minute_is_lost_and_suspected(
    after: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        spec = replace(FAST_LINE, main_decode=hanging(MAIN_SCRIPT, after, 3))
        async with running_world(spec) as world:
            outcome = await ask(world, make_request(max_tokens=60, steering=direct()))
            assert [e.fields["role"] for e in outcome.report.events if e.name == "worker_lost"] == [MD]
            assert outcome.report.tokens_by_role.get(MD, 0) >= after
            assert outcome.report.max_itl_s == pytest.approx(SETTINGS.decode_patience, abs=0.5)
            await finish(world)

    run(main())
    assert [r.message for r in caplog.records if r.message.startswith("worker_suspect")] == [
        "worker_suspect worker=main_decode-0 role=main_decode breaker=closed"
    ]


def test_a_prefill_may_take_minutes_but_not_for_ever() -> None:
    async def main() -> None:
        slow = replace(PREFILL_SCRIPT, prefill_tokens_per_s=0.4)
        async with running_world(replace(FAST_LINE, prefill=slow)) as world:
            outcome = await ask(world, make_request(steering=direct()))
            assert outcome.report.ttft_s == pytest.approx(250.0)
            assert "worker_lost" not in outcome.event_names
            await finish(world)
        async with running_world(replace(FAST_LINE, prefill=hanging(PREFILL_SCRIPT, 0, 2))) as world:
            outcome = await ask(world, make_request(steering=direct()))
            assert outcome.event_names.count("worker_lost") == 1
            assert outcome.report.ttft_s == pytest.approx(SETTINGS.prefill_patience, abs=1.0)
            await finish(world)

    run(main())


def test_a_decoder_that_must_compute_the_prompt_itself_has_a_prefills_time() -> None:
    async def main() -> None:
        slow = replace(MAIN_SCRIPT, prefill_tokens_per_s=1.0)
        async with running_world(replace(SLOW_LINE, main_decode=slow)) as world, asyncio.TaskGroup() as clients:
            client = clients.create_task(ask(world, make_request(max_tokens=9, steering=direct())))
            await asyncio.sleep(0.5)
            world.nodes[P].kill()
            outcome = await client
            assert "transfer_failed" in outcome.event_names
            assert "worker_lost" not in outcome.event_names
            assert outcome.report.ttst_s is not None
            assert outcome.report.ttst_s > 2 * SETTINGS.decode_patience

    run(main())


def test_an_extend_that_hangs_is_lost_too() -> None:
    async def main() -> None:
        # Transfers are 1 and 2, prefill is 3, relay decode 4, the extend 5.
        steering = relayed(4, HandoffMode.CATCH_UP)
        spec = replace(
            FAST_LINE,
            main_decode=hanging(MAIN_SCRIPT, 0, 5),
            settings=replace(SETTINGS, decode_patience=Seconds(1.0)),
        )
        async with running_world(spec) as world:
            outcome = await ask(world, make_request(max_tokens=100, steering=steering))
            assert any(isinstance(c, relay.StartExtend) and c.attempt == 5 for _, c in world.commands)
            assert outcome.event_names.count("worker_lost") == 1
            assert outcome.roles == [P, RLD, MD], "it was sent the prompt again, and the next hand-off worked"
            await finish(world)

    run(main())


def test_a_reader_that_takes_its_time_makes_no_engine_look_silent() -> None:
    async def main() -> None:
        spec = replace(FAST_LINE, settings=replace(SETTINGS, max_spans_ahead=2))
        async with running_world(spec) as world:
            outcome = await ask(world, make_request(max_tokens=12), read_interval=45.0)
            assert "worker_lost" not in outcome.event_names
            await finish(world)

    run(main())


def test_relay_decode_stops_computing_once_it_has_handed_over() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world, world.driver.open(make_request(max_tokens=300)) as answer:
            async for span in answer:
                if span.role is MD:
                    await asyncio.sleep(0)
                    assert world.engines[RLD][0].num_open == 0

    run(main())


def test_a_transfer_that_outlives_its_request_does_not_outlive_a_dead_line_for_ever() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            _ = await ask(world, make_request(max_tokens=10))
            assert world.driver.num_transfers == 1
            world.network.cut(world.line)
            async with asyncio.timeout(60.0):
                await world.settle()

    run(main())


def test_transfers_that_only_wait_their_turn_are_not_given_up() -> None:
    async def main() -> None:
        async with running_world(WorldSpec(blocks_per_s=0.5)) as world:
            requests = [make_request(n, prompt_tokens=40, steering=direct()) for n in range(12)]
            async with asyncio.TaskGroup() as clients:
                asked = [clients.create_task(ask(world, request)) for request in requests]
            assert all("transfer_failed" not in task.result().event_names for task in asked)
            await finish(world)

    run(main())


def test_the_second_prefill_sends_from_its_own_node() -> None:
    async def main() -> None:
        spec = replace(FAST_LINE, workers_per_role=2, second_prefill_node=True)
        async with running_world(spec) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(steering=direct())))
                await asyncio.sleep(0.03)
                world.engines[P][0].die()
            assert client.result().report.ttst_s is not None
            assert client.result().report.ttst_s < 1.0
            assert (await world.nodes[MD].stats()).received_bytes["node-p-1"] >= 4 * BLOCK_BYTES
            starts = [c for _, c in world.commands if isinstance(c, relay.StartDecode) and c.role is P]
            assert len(starts) == 2
            await finish(world)

    run(main())


def test_an_engine_that_is_full_is_not_taken_for_dead() -> None:
    async def main() -> None:
        narrow = replace(PREFILL_SCRIPT, max_running=1, max_waiting=0, prefill_tokens_per_s=10.0)
        async with running_world(replace(FAST_LINE, prefill=narrow)) as world:
            async with asyncio.TaskGroup() as clients:
                _ = clients.create_task(ask(world, make_request(0)))
                await asyncio.sleep(0.1)
                with pytest.raises(Unavailable):
                    _ = await ask(world, make_request(1))
                assert world.driver.pool.workers.role_view(P).up
            tries = [c for request, c in world.commands if request == "r1" and isinstance(c, relay.StartDecode)]
            assert len(tries) == 3, "a suspect would not have been tried again"
            await finish(world)

    run(main())


def test_an_engine_that_was_full_is_not_asked_again_by_this_request_while_another_is_there() -> None:
    async def main() -> None:
        async with running_world(replace(FAST_LINE, workers_per_role=2)) as world:
            full = world.engines[MD][0]
            full._max_open = 0
            outcome = await ask(world, make_request())
            assert outcome.event_names.count("worker_lost") == 1
            assert outcome.spans[-1].worker == "main_decode-1"
            await finish(world)

    run(main())


def test_who_failed_in_mid_stream_gets_nobody_else_before_it_has_answered_a_check() -> None:
    async def main() -> None:
        async with running_world(FAST_LINE) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(max_tokens=60)))
                await asyncio.sleep(0.5)
                world.engines[MD][0].die()
                await asyncio.sleep(0.001)
                assert not world.driver.pool.workers.role_view(MD).up
            assert len(client.result().tokens) == 60
            await finish(world)

    run(main())


# The driver itself ----------------------------------------------------------------------------------------------------


def test_events_tell_a_relays_life_in_order() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            outcome = await ask(world, make_request(max_tokens=200, steering=relayed(handoff=HandoffMode.ONE_SHOT)))
            assert outcome.event_names == [
                "opened",
                "prefill_started",
                "relay_ready",
                "first_token",
                "route_chosen",
                "decode_started",
                "main_ready",
                "handoff_chosen",
                "handoff_started",
                "handed_off",
                "finished",
            ]
            times = [event.at for event in outcome.report.events]
            assert times == sorted(times)
            await finish(world)

    run(main())


def test_stopping_the_driver_ends_what_is_open() -> None:
    async def main() -> None:
        world = build_world(SLOW_LINE)
        outcome: list[str] = []

        async def client() -> None:
            async with world.driver.open(make_request(max_tokens=500)) as answer:
                async for _ in answer:
                    pass
            outcome.append(answer.report.events[-1].name)

        async with asyncio.TaskGroup() as clients, world.driver.running():
            clients.create_task(client())
            await asyncio.sleep(1.0)
        assert outcome == ["client_left"]
        await world.check_idle()

    run(main())


def test_what_goes_wrong_around_the_driver_comes_through_as_it_is() -> None:
    async def main() -> None:
        with pytest.raises(KeyError):
            async with running_world(FAST_LINE):
                raise KeyError("the front door's own trouble")

    run(main())


def test_nothing_can_be_opened_before_the_driver_runs() -> None:
    async def main() -> None:
        world = build_world(FAST_LINE)
        await world.driver.pool.check_all()
        with pytest.raises(LocalProtocolError):
            _ = await ask(world, make_request())

    run(main())


def test_a_hundred_requests_at_once_are_all_answered_rightly() -> None:
    async def main() -> None:
        async with running_world(WorldSpec(blocks_per_s=50.0, workers_per_role=2)) as world:
            requests = [make_request(n, prompt_tokens=20 + 7 * (n % 9), max_tokens=1 + n % 40) for n in range(100)]
            async with asyncio.TaskGroup() as clients:
                asked = [clients.create_task(ask(world, request)) for request in requests]
            for request, task in zip(requests, asked, strict=True):
                check_whole(request, task.result())
            await finish(world)

    run(main())
