"""Recorded traces at rising load: PDD, the same across the line without hiding, and the same in one datacenter.

*Load* is what a trace's prompts lack at caches that lose nothing, as a share of what the line carries: 1 fills it. Three traces of
very different hit rates can so be put beside each other, and none needs a different idea of what is much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.topology import Topology
from pdd.core.units import bytes_per_second
from pdd.sim.compare.equal_chips import relay_bandwidth_share, with_equal_chips
from pdd.sim.compare.jobs import Progress, run_jobs
from pdd.sim.compare.measures import Measures, measure_samples, settled
from pdd.sim.compare.systems import System
from pdd.sim.profile import load_model
from pdd.sim.result import Reading, RunResult
from pdd.sim.run import simulate
from pdd.sim.workload.base import Workload
from pdd.sim.workload.excerpt import Excerpt, excerpt, multiply
from pdd.sim.workload.traces import fitting

FULL_RELAY = 0.9
"""Relay decode is full where, on average, so much of its places is taken: who would gain from a relay does
not get one.
"""
_FITTING_ROUNDS = 2
"""How often the number of users is corrected: an excerpt is short, and lacks a little more or less than the
trace does.
"""
_WARM_UP_LOAD = 0.5
"""The warm-up takes half of the line, so that all of it has crossed when the measured part begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficAtLoad:
    """What is played of a trace: ``users`` times as many as recorded make this ``load``."""

    load: float
    users: float
    played: Excerpt


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One trace at one load on one system."""

    traffic: TrafficAtLoad
    system: System
    topology: Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStanding:
    """``goodput`` is within the topology's SLA. ``users`` times as many as recorded make this ``load``.

    ``offered`` is the load of those requests that were played.
    ``line_use`` and ``relay_use`` (places of relay decode that were taken) are means while requests were sent.
    """

    trace: str
    load: float
    system: System
    users: float
    requests_per_s: float
    offered: float
    line_use: float | None
    relay_use: float | None
    measures: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What PDD is worth on a trace at a load: P90 of the second token without hiding over PDD's, PDD's goodput over
    that.

    The relay is swamped where it can't be what it is meant to be, a short bridge for few requests: because it makes
    more of the tokens than it has of the memory bandwidth that decodes (``fair_share``), so it is the busier decode
    cluster of the two; or because its places are all taken.
    """

    trace: str
    load: float
    offered: float
    ttst_gain: float | None
    goodput_gain: float | None
    ttst_of_same_dc: float | None
    """PDD's P90 over that of one datacenter."""
    rld_token_share: float
    fair_share: float
    relay_use: float | None
    relay_is_swamped: bool


def study_traces(
    topology: Topology,
    traces: Sequence[Workload],
    loads: Sequence[float],
    *,
    max_requests: int,
    num_processes: int,
    progress: Progress,
) -> list[TraceStanding]:
    """Every system at every load on every trace, in that order.

    Raises:
        ConfigError: a trace is too short, or the topology can't be made into every system.
    """
    jobs = [
        TraceJob(traffic=traffic, system=system, topology=topology)
        for trace in traces
        for traffic in traffic_at(topology, trace, loads, max_requests=max_requests)
        for system in System
    ]
    return run_jobs(measure_trace, jobs, num_processes=num_processes, progress=progress)


def measure_trace(job: TraceJob) -> TraceStanding:
    """Simulates one."""
    traffic, topology = job.traffic, with_equal_chips(job.topology, job.system)
    result = simulate(topology, traffic.played.workload, seed=0)
    samples = settled(result.samples)
    readings = _between(result.readings, samples[0].sent_at, samples[-1].sent_at)
    return TraceStanding(
        trace=traffic.played.workload.name,
        load=traffic.load,
        system=job.system,
        users=traffic.users,
        requests_per_s=traffic.played.requests_per_s,
        offered=traffic.played.new_tokens_per_s / line_tokens_per_s(job.topology),
        line_use=_line_use(result, readings),
        relay_use=_relay_use(topology, readings),
        measures=measure_samples(samples, topology.router.sla),
    )


def traffic_at(
    topology: Topology, trace: Workload, loads: Sequence[float], *, max_requests: int
) -> Iterator[TrafficAtLoad]:
    """Of the conversations that fit the model: at most ``max_requests`` at each load.

    Raises:
        ConfigError: it is too short.
    """
    whole, line = fitting(trace, topology.max_model_tokens), line_tokens_per_s(topology)
    if not whole.requests:
        raise ConfigError(f"{trace.name}: no conversation fits a model of {topology.max_model_tokens} tokens")

    def with_users(factor: float) -> Excerpt:
        more = multiply(whole, factor)
        return excerpt(more, max_requests=max_requests, warm_up_tokens_per_s=_WARM_UP_LOAD * line)

    for load in loads:
        users, played = 1.0, with_users(1.0)
        for _ in range(_FITTING_ROUNDS):
            users *= load * line / played.new_tokens_per_s
            played = with_users(users)
        yield TrafficAtLoad(load=load, users=users, played=played)


def verdicts(topology: Topology, standings: Sequence[TraceStanding]) -> Iterator[Verdict]:
    """One for each trace and load."""
    fair_share = relay_bandwidth_share(topology)
    by_key = {(each.trace, each.load, each.system): each for each in standings}
    for trace, load in dict.fromkeys((each.trace, each.load) for each in standings):
        pdd, cross, same = (by_key[trace, load, each] for each in (System.PDD, System.CROSS_DC, System.SAME_DC))
        yield Verdict(
            trace=trace,
            load=load,
            offered=pdd.offered,
            ttst_gain=_ratio(cross.measures.ttst.p90, pdd.measures.ttst.p90),
            goodput_gain=_ratio(pdd.measures.goodput_per_s, cross.measures.goodput_per_s),
            ttst_of_same_dc=_ratio(pdd.measures.ttst.p90, same.measures.ttst.p90),
            rld_token_share=pdd.measures.rld_token_share,
            fair_share=fair_share,
            relay_use=pdd.relay_use,
            relay_is_swamped=pdd.measures.rld_token_share > fair_share or (pdd.relay_use or 0.0) >= FULL_RELAY,
        )


def line_tokens_per_s(topology: Topology) -> float:
    """Prompt tokens whose KV the lines between the datacenters carry."""
    if not topology.links:
        raise ConfigError(f"topology {topology.name!r} has no link: there is no line to load")
    rate = sum(bytes_per_second(link.rate_bits_per_s) for link in topology.links)
    return rate / load_model(topology.model).kv_bytes_per_token


def _between(readings: Sequence[Reading], begin: float, end: float) -> Sequence[Reading]:
    """At least one."""
    first, last = (bisect_left(readings, moment, key=lambda reading: reading.at) for moment in (begin, end))
    return readings[min(first, len(readings) - 1) : last + 1]


def _line_use(result: RunResult, readings: Sequence[Reading]) -> float | None:
    """Both ways together, over what one way could have carried; None if there is no line."""
    first, last = readings[0], readings[-1]
    carried = sum(last.wan_bytes.values()) - sum(first.wan_bytes.values())
    return _ratio(carried, sum(result.link_rates.values()) * (last.at - first.at))


def _relay_use(topology: Topology, readings: Sequence[Reading]) -> float | None:
    """None if there is no relay decode."""
    relays = topology.engines_of(Role.RELAY_DECODE)
    taken = fmean(sum(min(reading.running[each.name], each.max_batch) for each in relays) for reading in readings)
    return _ratio(taken, sum(each.max_batch for each in relays))


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
