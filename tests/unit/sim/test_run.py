"""Whole simulations: the same seed is the same run, answers are right, and figures are those of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from pdd.core.errors import ConfigError, PddError
from pdd.core.ids import NodeId, RequestId, TenantId, WorkerId
from pdd.core.request import Role, Route
from pdd.core.topology import (
    AdmissionTable,
    EngineKind,
    EngineTable,
    LinkTable,
    NodeTable,
    PolicyTable,
    RouterTable,
    RouteRule,
    Topology,
)
from pdd.core.units import BitsPerSecond, Bytes, Seconds
from pdd.sim.report import summarize
from pdd.sim.result import Outcome
from pdd.sim.run import simulate
from pdd.sim.workload.base import SimRequest, Workload

GIB = 1024**3


def topology(*, rate: float = 1e9, max_open_requests: int = 256, policy: PolicyTable = PolicyTable()) -> Topology:
    """One engine a role, Llama-3.1-70B on eight chips each; a line that takes 2.6 s for a thousand tokens
    at 1 Gbit/s.
    """
    roles = {Role.PREFILL: "A", Role.RELAY_DECODE: "A", Role.MAIN_DECODE: "B"}
    return Topology(
        name="small",
        model="Llama-3.1-70B",
        block_tokens=64,
        max_model_tokens=16_384,
        nodes=tuple(
            NodeTable(name=NodeId(f"node-{role.value}"), cluster=cluster, arena_bytes=Bytes(64 * GIB))
            for role, cluster in roles.items()
        ),
        engines=tuple(
            EngineTable(
                name=WorkerId(role.value),
                role=role,
                cluster=cluster,
                node=NodeId(f"node-{role.value}"),
                kind=EngineKind.MODELLED,
                hardware="H100-SXM",
                num_chips=8,
                cache_tokens=400_000,
                max_batch=32,
                prefill_chunk_tokens=2048,
            )
            for role, cluster in roles.items()
        ),
        links=(
            LinkTable(name="wan", clusters=("A", "B"), rate_bits_per_s=BitsPerSecond(rate), delay_s=Seconds(0.015)),
        ),
        router=RouterTable(
            cluster="A",
            max_open_requests=max_open_requests,
            policy=policy,
            admission=AdmissionTable(max_queued_requests=4, max_queue_s=Seconds(60.0)),
        ),
    )


def workload(count: int = 6, *, every: float = 2.0, prompt: int = 4000, answer: int = 300) -> Workload:
    return Workload(
        name="test",
        requests=tuple(
            SimRequest(
                request_id=RequestId(f"r{index}"),
                arrival=Seconds(every * index),
                prompt=((10 + index, prompt),),
                answer=((1000 + index, answer),),
                max_tokens=1000,
            )
            for index in range(count)
        ),
    )


def test_over_a_slow_line_requests_relay_and_over_a_fast_one_they_do_not():
    slow, fast = simulate(topology(), workload(), seed=1), simulate(topology(rate=100e9), workload(), seed=1)
    assert {sample.outcome for sample in (*slow.samples, *fast.samples)} == {Outcome.COMPLETE}
    assert {sample.route for sample in fast.samples} == {Route.DIRECT}
    relayed = [sample for sample in slow.samples if sample.tokens_by_role.get(Role.RELAY_DECODE)]
    assert relayed
    assert all(sample.num_output_tokens == 300 for sample in slow.samples)
    assert max(sample.ttst_s or 0.0 for sample in relayed) < 1.0


def test_without_relays_the_second_token_waits_for_the_line():
    policy = PolicyTable(route=RouteRule.DIRECT)
    events = []
    result = simulate(topology(policy=policy), workload(1), seed=1, trace=events.append)
    (sample,) = result.samples
    at = {event.name: event.at for event in events}
    transfer = 4000 // 64 * 64 * 327_680 / 125e6
    assert sample.ttst_s is not None
    assert sample.decode_first_token_s == sample.ttst_s
    assert transfer < sample.ttst_s < transfer + 1.0
    assert sample.transfer_s == pytest.approx(at["main_ready"] - at["first_token"])
    assert sample.wan_kv_bytes == result.readings[-1].wan_bytes["wan"] == 4000 // 64 * 64 * 327_680


def test_an_answer_of_one_token_ends_with_prefill():
    result = simulate(topology(), workload(2, answer=1), seed=1)
    assert [sample.outcome for sample in result.samples] == [Outcome.COMPLETE] * 2
    assert all(sample.ttst_s is None and sample.ended_s < 1.0 for sample in result.samples)


def test_intervals_and_their_sum_are_those_of_the_tokens():
    result = simulate(topology(), workload(), seed=1)
    for sample in result.samples:
        assert sum(count for _, count in sample.itl_s) == sample.num_output_tokens - 1
        assert sample.ttft_s is not None
        last = sample.ttft_s + sum(interval * count for interval, count in sample.itl_s)
        assert last <= sample.ended_s


def test_the_next_turn_of_a_conversation_hits_everywhere_and_waits_for_the_one_before():
    first = SimRequest(
        request_id=RequestId("first"), arrival=Seconds(0.0), prompt=((1, 4000),), answer=((2, 200),), max_tokens=300
    )
    second = SimRequest(
        request_id=RequestId("second"),
        arrival=Seconds(1.0),
        prompt=((1, 4000), (2, 200), (3, 100)),
        answer=((4, 50),),
        max_tokens=100,
        after=first.request_id,
        think_s=Seconds(10.0),
    )
    result = simulate(topology(rate=100e9), Workload(name="turns", requests=(first, second)), seed=1)
    one, other = result.samples
    assert other.sent_at == pytest.approx(one.ended_s + 10.0)
    assert other.prefill_hit_tokens is not None
    assert other.prefill_hit_tokens >= 4000 // 64 * 64
    assert other.missing_blocks_at_main is not None
    assert other.missing_blocks_at_main <= 3
    assert other.num_prompt_blocks == 4300 // 64


def test_what_finds_no_place_is_queued_and_what_finds_no_room_in_line_is_shed():
    result = simulate(topology(rate=100e9, max_open_requests=1), workload(8, every=0.01), seed=1)
    outcomes = [sample.outcome for sample in result.samples]
    assert outcomes.count(Outcome.COMPLETE) == 5
    assert outcomes.count(Outcome.REFUSED) == 3
    refused = [sample for sample in result.samples if sample.outcome is Outcome.REFUSED]
    assert all(sample.retry_after_s is not None and sample.retry_after_s > 0 for sample in refused)
    figures = summarize(result, topology().router.sla)
    assert figures["requests"]["queued"] == 4  # type: ignore[index]
    assert figures["requests"]["shed"] == 3  # type: ignore[index]


def test_tenants_do_not_share_blocks():
    requests = tuple(
        SimRequest(
            request_id=RequestId(f"r{index}"),
            arrival=Seconds(30.0 * index),
            prompt=((1, 2000),),
            answer=((2, 20),),
            max_tokens=20,
            tenant=TenantId(tenant),
        )
        for index, tenant in enumerate(("a", "b", "a"))
    )
    result = simulate(topology(), Workload(name="tenants", requests=requests), seed=1)
    assert [sample.prefill_hit_tokens for sample in result.samples] == [0, 0, 1984]


def test_events_are_traced_by_the_clock_of_the_run():
    events = []
    simulate(topology(), workload(2), seed=1, trace=events.append)
    assert {event.request for event in events} >= {"r0", "r1"}
    opened = [event.at for event in events if event.name == "opened"]
    assert opened == pytest.approx([0.0, 2.0], abs=0.1)


def test_progress_is_told():
    told = []
    simulate(topology(), workload(3), seed=1, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, 3)
    assert told == sorted(told)


def test_a_topology_that_is_not_modelled_and_a_workload_of_nothing_are_refused():
    small = topology()
    live = replace(small, engines=tuple(replace(engine, kind=EngineKind.SCRIPTED) for engine in small.engines))
    with pytest.raises(ConfigError, match="a simulation needs kind"):
        simulate(live, workload(), seed=1)
    with pytest.raises(ConfigError, match="has no requests"):
        simulate(small, Workload(name="nothing", requests=()), seed=1)


def test_an_engine_that_its_chips_cannot_hold_is_refused():
    small = topology()
    crowded = replace(small, engines=tuple(replace(engine, num_chips=1) for engine in small.engines))
    with pytest.raises(PddError, match="don't fit 1 x H100-SXM"):
        simulate(crowded, workload(), seed=1)


_PROGRAM = """
import json
from pdd.sim.report import summarize
from pdd.sim.run import simulate
from msgspec.structs import replace
from tests.unit.sim.test_run import topology, workload
small = topology(rate=2e9)
small = replace(small, links=tuple(replace(link, jitter_s=0.01) for link in small.links))
events = []
result = simulate(small, workload(12, every=0.7), seed={seed}, trace=events.append)
print(json.dumps(summarize(result, small.router.sla)))
print(repr(result))
print(repr(events))
"""


def run_program(hash_seed: str, seed: int = 5) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    program = _PROGRAM.format(seed=seed)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_same_seed_is_the_same_run_to_the_byte_under_any_hash_seed():
    first = run_program("0")
    assert json.loads(first.splitlines()[0])["requests"]["complete"] == 12
    assert run_program("4711") == first


def test_another_seed_is_another_run():
    assert run_program("0", seed=6) != run_program("0")
