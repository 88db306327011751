"""What the policies make of requests in a whole world, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from pdd.core.errors import BlocksLost
from pdd.core.replication import ReplicationOrder, ReplicationProgress
from pdd.core.request import HandoffMode, Role, Route, Steering
from pdd.core.topology import FilterRule, PolicyTable, RouteRule
from pdd.core.units import Seconds
from pdd.protocol import relay
from pdd.sim.loop import run
from pdd.sim.memory.node import MemoryNode
from tests.support.worlds import (
    BLOCK_BYTES,
    Outcome,
    World,
    WorldSpec,
    ask,
    make_request,
    running_world,
    with_policy,
)

P, RLD, MD = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE

SLOW_LINE = WorldSpec(blocks_per_s=0.5)
"""The six blocks of the usual prompt take 12 s."""


def commands_of(world: World, kind: type, request: str | None = None) -> list[relay.Command]:
    return [c for name, c in world.commands if isinstance(c, kind) and request in (None, name)]


def targets(world: World, request: str) -> list[Role]:
    return [c.target for c in commands_of(world, relay.Replicate, request) if isinstance(c, relay.Replicate)]


async def finish(world: World) -> None:
    await world.settle()
    await world.check_idle()


# The filter -----------------------------------------------------------------------------------------------------------


async def learn_relay_decodes_pace(world: World) -> None:
    _ = await ask(world, make_request(99, max_tokens=30, steering=Steering(route=Route.RELAY)))
    await world.settle()


def filtering(rule: FilterRule, *, share: float = 1.0) -> WorldSpec:
    return with_policy(SLOW_LINE, PolicyTable(filter=rule, filter_max_share=share))


def test_singular_traffic_stays_at_relay_decode_and_crosses_while_the_line_is_idle() -> None:
    async def main() -> None:
        async with running_world(filtering(FilterRule.BACKGROUND)) as world:
            await learn_relay_decodes_pace(world)
            outcome = await ask(world, make_request(0, max_tokens=20))
            report = outcome.report
            assert (report.route, report.filtered, outcome.roles) == (Route.RELAY_ONLY, True, [P, RLD])
            assert len(commands_of(world, relay.Demote)) == 1
            assert world.driver.num_transfers == 1
            await finish(world)
            assert (await world.nodes[MD].stats()).held_blocks == 12, "nothing displaced it"

    run(main())


def test_what_is_filtered_gives_way_to_whoever_waits_and_crosses_afterwards() -> None:
    async def main() -> None:
        async with running_world(filtering(FilterRule.BACKGROUND)) as world:
            await learn_relay_decodes_pace(world)
            await ask_for_both(world)
            assert (await world.nodes[MD].stats()).held_blocks == 24

    run(main())


def test_what_gets_nothing_for_too_long_is_cut() -> None:
    async def main() -> None:
        spec = filtering(FilterRule.BACKGROUND)
        spec = replace(spec, settings=replace(spec.settings, spare_patience=Seconds(10.0)))
        async with running_world(spec) as world:
            await learn_relay_decodes_pace(world)
            await ask_for_both(world)
            assert (await world.nodes[MD].stats()).held_blocks < 24, "the singular one's blocks never all came"

    run(main())


async def ask_for_both(world: World) -> None:
    """One that is filtered, and one that waits for main decode: 24 s for its 12 blocks."""
    singular = await ask(world, make_request(0, max_tokens=20))
    assert singular.report.filtered
    waiting = await ask(world, make_request(1, prompt_tokens=200, max_tokens=5, steering=Steering(route=Route.DIRECT)))
    assert waiting.report.ttst_s == pytest.approx(12 / 0.5, rel=0.2), "as if it were alone"
    await finish(world)


def test_a_cut_transfer_ends_at_once() -> None:
    async def main() -> None:
        async with running_world(filtering(FilterRule.CUT)) as world:
            await learn_relay_decodes_pace(world)
            outcome = await ask(world, make_request(0, max_tokens=20))
            assert (outcome.report.filtered, outcome.roles) == (True, [P, RLD])
            assert world.driver.num_transfers == 0
            await world.check_idle()
            assert (await world.nodes[MD].stats()).held_blocks < 9

    run(main())


def test_without_the_filter_every_relay_goes_on_to_main_decode() -> None:
    async def main() -> None:
        async with running_world(filtering(FilterRule.OFF)) as world:
            await learn_relay_decodes_pace(world)
            outcome = await ask(world, make_request(0, max_tokens=20))
            assert (outcome.report.route, outcome.report.filtered) == (Route.RELAY, False)
            await finish(world)

    run(main())


def test_a_conversation_is_never_filtered_on_two_turns_in_a_row() -> None:
    async def main() -> None:
        async with running_world(filtering(FilterRule.CUT)) as world:
            await learn_relay_decodes_pace(world)
            filtered, prompt = [], make_request(0).prompt
            for turn in range(4):
                outcome = await ask(world, make_request(turn, prompt=prompt, max_tokens=20))
                filtered.append(outcome.report.filtered)
                prompt = (*prompt, *outcome.tokens, *range(100 * turn, 100 * turn + 96))
                await world.settle()
            assert filtered == [True, False, True, False]

    run(main())


def test_no_more_than_their_share_are_filtered() -> None:
    async def main() -> None:
        async with running_world(filtering(FilterRule.CUT, share=0.25)) as world:
            await learn_relay_decodes_pace(world)
            filtered = 0
            for number in range(24):
                outcome = await ask(world, make_request(number, max_tokens=10))
                filtered += outcome.report.filtered
                assert filtered <= 0.25 * (number + 2)
            assert filtered == 6

    run(main())


def test_a_long_answer_is_not_singular() -> None:
    async def main() -> None:
        async with running_world(filtering(FilterRule.BACKGROUND)) as world:
            await learn_relay_decodes_pace(world)
            outcome = await ask(world, make_request(0, max_tokens=600))
            assert (outcome.report.filtered, outcome.roles) == (False, [P, RLD, MD])
            await finish(world)

    run(main())


def test_a_long_budget_of_which_little_is_ever_used_is() -> None:
    async def main() -> None:
        async with running_world(filtering(FilterRule.BACKGROUND, share=0.25)) as world:
            for number in range(40):
                _ = await ask(world, make_request(number, prompt_tokens=15, max_tokens=20))
            await learn_relay_decodes_pace(world)
            outcome = await ask(world, make_request(50, max_tokens=600))
            assert outcome.report.filtered
            await finish(world)

    run(main())


def unfiltered() -> WorldSpec:
    return with_policy(SLOW_LINE, PolicyTable(filter=FilterRule.OFF))


def test_what_an_answer_that_is_over_still_sends_gives_way_to_whoever_waits() -> None:
    async def main() -> None:
        async with running_world(unfiltered()) as world:
            _ = await ask(world, make_request(0, max_tokens=10))
            assert world.driver.num_transfers == 1
            waiting = await ask(world, make_request(1, max_tokens=5, steering=Steering(route=Route.DIRECT)))
            assert waiting.report.ttst_s == pytest.approx(6 / 0.5, rel=0.2), "as if it were alone"
            await finish(world)

    run(main())


def test_on_an_idle_line_it_arrives_however_long_that_takes() -> None:
    async def main() -> None:
        async with running_world(replace(unfiltered(), blocks_per_s=0.05)) as world:
            _ = await ask(world, make_request(0, max_tokens=10))
            await finish(world)
            assert (await world.nodes[MD].stats()).held_blocks == 6

    run(main())


def test_many_in_the_background_share_a_slow_line_and_none_is_cut() -> None:
    """A block takes 20 s, so each of them gets one a minute: longer than a line may deliver nothing at all."""

    async def main() -> None:
        async with running_world(replace(unfiltered(), blocks_per_s=0.05)) as world:
            for number in range(3):
                _ = await ask(world, make_request(number, max_tokens=10))
            await finish(world)
            assert (await world.nodes[MD].stats()).held_blocks == 3 * 6

    run(main())


def test_a_dead_line_ends_what_is_in_the_background_long_before_its_own_patience() -> None:
    async def main() -> None:
        async with running_world(unfiltered()) as world:
            _ = await ask(world, make_request(0, max_tokens=10))
            world.network.stall(world.line)
            stalled_at = asyncio.get_running_loop().time()
            await finish(world)
            assert asyncio.get_running_loop().time() - stalled_at < 60.0

    run(main())


def test_who_needs_room_at_main_decode_takes_that_of_what_nobody_waits_for() -> None:
    async def main() -> None:
        async with running_world(replace(unfiltered(), blocks_per_s=0.5, main_capacity=12)) as world:
            _ = await ask(world, make_request(0, max_tokens=10))
            assert world.driver.num_transfers == 1
            waiting = await ask(world, make_request(1, max_tokens=90, steering=Steering(route=Route.DIRECT)))
            assert waiting.report.ttft_s is not None
            assert waiting.report.ttft_s < 1.0
            await finish(world)

    run(main())


def test_a_node_that_is_short_of_room_keeps_nothing_for_what_nobody_waits_for() -> None:
    async def main() -> None:
        async with running_world(replace(unfiltered(), blocks_per_s=0.1, main_capacity=9)) as world:
            _ = await ask(world, make_request(0, max_tokens=20))
            await asyncio.sleep(5.0)  # the router has heard that 7 of 9 blocks are promised
            _ = await ask(world, make_request(1, prompt_tokens=16, max_tokens=10))
            await asyncio.sleep(1.0)
            assert [transfer.spec.name[:2] for transfer in world.driver._desk._running] == ["r1"]
            await finish(world)

    run(main())


def test_it_does_not_give_way_on_two_turns_in_a_row() -> None:
    async def main() -> None:
        async with running_world(unfiltered()) as world:
            first = await ask(world, make_request(0, max_tokens=10))
            prompt = (*make_request(0).prompt, *first.tokens, *range(96))
            _ = await ask(world, make_request(1, prompt=prompt, max_tokens=10))
            demoted = [transfer.delivery.demoted for transfer in world.driver._desk._running]
            assert demoted == [True, False]
            await finish(world)

    run(main())


# The rivals of the route ----------------------------------------------------------------------------------------------


def test_by_the_collapsing_rule_relays_end_where_they_began_and_main_decode_gets_nothing() -> None:
    async def main() -> None:
        async with running_world(with_policy(SLOW_LINE, PolicyTable(route=RouteRule.RELAY_ONLY))) as world:
            outcome = await ask(world, make_request(0, max_tokens=600))
            assert (outcome.report.route, outcome.report.filtered) == (Route.RELAY_ONLY, False)
            assert outcome.roles == [P, RLD]
            assert targets(world, "r0") == [RLD]
            assert (await world.nodes[MD].stats()).held_blocks == 0
            await finish(world)

    run(main())


def test_by_the_collapsing_rule_too_whoever_would_not_relay_goes_to_main_decode() -> None:
    async def main() -> None:
        spec = with_policy(WorldSpec(blocks_per_s=1000.0), PolicyTable(route=RouteRule.RELAY_ONLY))
        async with running_world(spec) as world:
            outcome = await ask(world, make_request(0))
            assert (outcome.report.route, outcome.roles) == (Route.DIRECT, [P, MD])
            await finish(world)

    run(main())


def test_by_the_hit_rate_prefills_cache_decides_whatever_main_decode_lacks() -> None:
    async def main() -> None:
        async with running_world(with_policy(SLOW_LINE, PolicyTable(route=RouteRule.HIT_RATE))) as world:
            cold = await ask(world, make_request(0, max_tokens=10))
            warm = await ask(world, make_request(1, prompt=make_request(0).prompt, max_tokens=10))
            assert (cold.report.route, warm.report.route) == (Route.RELAY, Route.DIRECT)
            assert warm.report.ttst_s is not None
            assert warm.report.ttst_s > 5.0, "a hit at prefill is none at main decode"
            await finish(world)

    run(main())


def test_by_the_rule_direct_everybody_waits() -> None:
    async def main() -> None:
        async with running_world(with_policy(SLOW_LINE, PolicyTable(route=RouteRule.DIRECT))) as world:
            outcome = await ask(world, make_request(0, max_tokens=10))
            assert (outcome.report.route, outcome.roles) == (Route.DIRECT, [P, MD])
            assert targets(world, "r0") == [MD]
            await finish(world)

    run(main())


# Relay decode's room --------------------------------------------------------------------------------------------------


async def hold_relay_decode(world: World, clients: asyncio.TaskGroup, *numbers: int) -> list[asyncio.Task[Outcome]]:
    """Long answers that are at relay decode when this returns."""
    steering = Steering(route=Route.RELAY)
    requests = [make_request(n, prompt_tokens=400, max_tokens=3000, steering=steering) for n in numbers]
    asked = [clients.create_task(ask(world, request)) for request in requests]
    await asyncio.sleep(1.0)
    return asked


def test_who_hits_at_main_decode_takes_no_room_at_relay_decode() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            first = await ask(world, make_request(0, max_tokens=10))
            assert targets(world, "r0") == [MD, RLD]
            await world.settle()
            prompt = (*make_request(0).prompt, *first.tokens)
            second = await ask(world, make_request(1, prompt=prompt, max_tokens=10))
            assert (second.report.route, targets(world, "r1")) == (Route.DIRECT, [MD])
            await finish(world)

    run(main())


def test_a_full_relay_decode_takes_nobody_else() -> None:
    async def main() -> None:
        async with (
            running_world(replace(SLOW_LINE, blocks_per_s=2.0, relay_batch=1)) as world,
            asyncio.TaskGroup() as clients,
        ):
            _ = await hold_relay_decode(world, clients, 0)
            outcome = await ask(world, make_request(1, max_tokens=10))
            assert outcome.report.route_reason == "relay decode is full"
            assert outcome.roles == [P, MD]
            assert targets(world, "r1") == [MD]

    run(main())


def test_a_full_relay_decode_takes_not_even_those_that_pin_it() -> None:
    async def main() -> None:
        spec = replace(SLOW_LINE, blocks_per_s=2.0, relay_batch=2)
        async with running_world(spec) as world, asyncio.TaskGroup() as clients:
            pinned = Steering(route=Route.RELAY, handoff_after_tokens=150)
            requests = [make_request(number, max_tokens=200, steering=pinned) for number in range(6)]
            asked = [clients.create_task(ask(world, request)) for request in requests]
            await asyncio.sleep(1.0)
            assert world.driver.pool.workers.role_view(RLD).load == 1.0
            assert [targets(world, f"r{number}") for number in range(6)] == [[MD, RLD]] * 2 + [[MD]] * 4
            while not all(task.done() for task in asked):
                assert world.driver.pool.workers.role_view(RLD).load <= 1.0
                await asyncio.sleep(0.1)
            firsts = [next(e for e in task.result().report.events if e.name == "route_chosen") for task in asked]
            assert [e.fields["route"] for e in firsts] == [Route.RELAY] * 2 + [Route.DIRECT] * 4
            assert {e.fields["reason"] for e in firsts[2:]} == {
                "the request asked for a relay, but relay decode is full"
            }
            await finish(world)

    run(main())


def test_a_half_full_relay_decode_is_dearer() -> None:
    async def main() -> None:
        spec = replace(SLOW_LINE, blocks_per_s=3.0, relay_batch=2)
        async with running_world(spec) as world, asyncio.TaskGroup() as clients:
            alone = await ask(world, make_request(1, prompt_tokens=160, max_tokens=10))
            await world.settle()
            _ = await hold_relay_decode(world, clients, 0)
            beside = await ask(world, make_request(2, prompt_tokens=80, max_tokens=10))
            first = next(e for e in beside.report.events if e.name == "route_chosen")
            assert "> 0.50 s" in alone.report.route_reason
            assert " 1.00 s " in str(first.fields["reason"])

    run(main())


def test_a_relay_that_has_handed_over_leaves_its_place() -> None:
    async def main() -> None:
        async with running_world(replace(SLOW_LINE, blocks_per_s=2.0)) as world:
            async with world.driver.open(make_request(0, max_tokens=400)) as answer:
                loads: dict[Role, float] = {}
                async for span in answer:
                    loads.setdefault(span.role, world.driver.pool.workers.role_view(RLD).load)
            assert loads[RLD] > 0
            await asyncio.sleep(0)
            assert loads[MD] == 0
            await finish(world)

    run(main())


def test_a_busy_relay_decode_is_given_back_early_and_at_once() -> None:
    async def main() -> None:
        policy = PolicyTable(one_shot_load=0.4, filter=FilterRule.OFF)
        spec = with_policy(replace(SLOW_LINE, blocks_per_s=2.0, relay_batch=4), policy)
        async with running_world(spec) as world:
            await learn_relay_decodes_pace(world)
            async with asyncio.TaskGroup() as clients:
                _ = await hold_relay_decode(world, clients, 0, 1)
                outcome = await ask(world, make_request(2, prompt_tokens=300, max_tokens=3000))
            starts = commands_of(world, relay.StartDecode, "r2")
            budgets = [c.max_tokens for c in starts if isinstance(c, relay.StartDecode) and c.role is RLD]
            assert budgets
            assert budgets[0] < 2999
            chosen = [e.fields["mode"] for e in outcome.report.events if e.name == "handoff_chosen"]
            assert chosen in ([HandoffMode.ONE_SHOT], [])
            await finish(world)

    run(main())


# Transfers that can't succeed -----------------------------------------------------------------------------------------


class Amnesiac(MemoryNode):
    """It has lost every block that it is asked to send."""

    async def replicate(self, order: ReplicationOrder) -> AsyncGenerator[ReplicationProgress]:
        raise BlocksLost(f"none of {len(order.hashes)} blocks is here any more")
        yield


def test_blocks_that_prefills_node_lost_are_not_waited_for() -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world:
            world.nodes[P].__class__ = Amnesiac
            outcome = await ask(world, make_request(0, max_tokens=20, steering=Steering(route=Route.DIRECT)))
            assert outcome.event_names.count("transfer_failed") == 1
            assert outcome.report.ttst_s is not None
            assert outcome.report.ttst_s < 0.5
            await finish(world)

    run(main())


@pytest.mark.parametrize("at", [0.03, 0.2])
def test_a_source_that_hangs_is_left_after_a_few_seconds(at: float) -> None:
    async def main() -> None:
        async with running_world(SLOW_LINE) as world, asyncio.TaskGroup() as clients:
            client = clients.create_task(
                ask(world, make_request(0, max_tokens=20, steering=Steering(route=Route.DIRECT)))
            )
            await asyncio.sleep(at)
            world.nodes[P].hang()
            outcome = await client
            assert outcome.report.max_itl_s is not None
            assert outcome.report.max_itl_s < 6.0

    run(main())


def test_what_one_main_decodes_node_can_not_take_goes_to_another() -> None:
    async def main() -> None:
        spec = replace(SLOW_LINE, blocks_per_s=2.0, workers_per_role=2, second_main_node=True)
        async with running_world(spec) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(0, max_tokens=1000)))
                await asyncio.sleep(1.0)
                world.nodes[MD].kill()
            outcome = client.result()
            assert {span.worker for span in outcome.spans if span.role is MD} == {"main_decode-1"}
            assert targets(world, "r0").count(MD) == 2, "at once, and once"
            assert outcome.report.max_itl_s is not None
            assert outcome.report.max_itl_s < 0.5
            await finish(world)

    run(main())


def test_main_decode_is_sent_from_relay_decodes_node_what_prefills_lost() -> None:
    async def main() -> None:
        async with running_world(replace(SLOW_LINE, blocks_per_s=2.0)) as world:
            async with asyncio.TaskGroup() as clients:
                client = clients.create_task(ask(world, make_request(0, max_tokens=1000)))
                await asyncio.sleep(1.0)
                world.nodes[P].kill()
                world.nodes[P].restart()
            assert client.result().roles == [P, RLD, MD]
            received = (await world.nodes[MD].stats()).received_bytes
            assert received["node-rld"] >= 3 * BLOCK_BYTES
            await finish(world)

    run(main())
