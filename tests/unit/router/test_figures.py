"""What a router shows of itself: the same registry, fed by a driver on virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pdd.core.request import Role, Route, SendClass, Steering
from pdd.core.topology import AdmissionTable
from pdd.router.driver.figures import read_router
from pdd.sim.loop import run
from pdd.telemetry.events import Event
from pdd.telemetry.metrics import Outcome, RouterMetrics
from tests.support.worlds import SETTINGS, WorldSpec, ask, build_world, make_request, running_world
from tests.unit.telemetry.test_metrics import value

RELAYED = Steering(route=Route.RELAY)


def test_a_simulated_router_feeds_the_same_metrics_as_a_live_one() -> None:
    async def main() -> None:
        async with running_world(WorldSpec(blocks_per_s=100.0)) as world:
            metrics = RouterMetrics(lambda: read_router(world.driver))
            for number in range(3):
                metrics.request_started()
                outcome = await ask(world, make_request(number, steering=RELAYED))
                metrics.request_ended(Outcome.COMPLETED, outcome.report)
            await world.settle()
        assert value(metrics, "pdd_requests_total", route="relay", outcome="completed") == 3
        assert value(metrics, "pdd_handoff_gap_seconds_count", route="relay") == 3
        assert value(metrics, "pdd_output_tokens_total", role="main_decode") > 0
        assert value(metrics, "pdd_prompt_blocks_total", role="main_decode", found="miss") == 18
        assert value(metrics, "pdd_prompt_blocks_total", role="prefill", found="miss") == 18
        assert value(metrics, "pdd_wan_kv_bytes_total") == world.driver.wan_kv_bytes > 0
        assert value(metrics, "pdd_conversations") == 3
        assert value(metrics, "pdd_worker_breaker", worker="prefill-0", role="prefill", state="closed") == 1
        assert value(metrics, "pdd_link_rate_bytes_per_second", source="A", target="B") == world.spec.rate

    run(main())


def test_the_second_time_a_prompt_hits_at_prefill_and_at_main_decode() -> None:
    async def main() -> None:
        async with running_world(WorldSpec(blocks_per_s=100.0)) as world:
            first = await ask(world, make_request(0))
            await world.settle()
            again = replace(make_request(1), prompt=make_request(0).prompt)
            second = await ask(world, again)
        assert first.report.num_prompt_blocks == second.report.num_prompt_blocks == 6
        assert (first.report.missing_blocks_at_prefill, first.report.missing_blocks_at_main) == (6, 6)
        assert (second.report.missing_blocks_at_prefill, second.report.missing_blocks_at_main) == (0, 0)

    run(main())


def test_a_reading_counts_who_is_served_who_waits_and_what_the_line_owes() -> None:
    limits = replace(SETTINGS, max_open_requests=2, admission=AdmissionTable(max_queued_requests=1))

    async def main() -> None:
        async with (
            running_world(WorldSpec(blocks_per_s=5.0, settings=limits)) as world,
            world.driver.open(make_request(0)),
            world.driver.open(make_request(1)),
            world.driver.open(make_request(2)),
        ):
            await asyncio.sleep(0.5)
            reading = read_router(world.driver)
            assert (reading.num_served, reading.num_queued) == (2, 1)
            assert {worker.role: worker.up for worker in reading.workers} == dict.fromkeys(Role, True)
            link, back = reading.links
            assert (link.source, link.target, back.source, back.target) == ("A", "B", "B", "A")
            assert link.backlog[SendClass.NORMAL] > 0
            assert link.backlog[SendClass.BACKGROUND] == 0
            assert not any(back.backlog.values()), "each direction is a link of its own"

    run(main())


def test_a_trace_holds_all_requests_and_all_comings_and_goings_on_one_clock() -> None:
    events: list[Event] = []

    async def main() -> None:
        world = build_world(WorldSpec(), sink=events.append)
        async with world.driver.running():
            await asyncio.sleep(5)
            _ = await ask(world, make_request(0))
            (main_decode,) = world.engines[Role.MAIN_DECODE]
            main_decode.die()
            await asyncio.sleep(5)
            main_decode.revive()
            await asyncio.sleep(5)

    run(main())
    names = [event.name for event in events]
    assert names[:4] == ["worker_up", "worker_up", "worker_up", "opened"]
    assert names[-3:] == ["finished", "worker_down", "worker_up"]
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert 5.0 <= events[3].at < 5.1
    assert events[-1].fields == {"worker": "main_decode-0", "role": Role.MAIN_DECODE, "restarts": 1}
    assert {event.request for event in events if event.name == "finished"} == {"r0"}
