"""Finds the workload that is meant: a generated one by its name, or a trace file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pdd.core.errors import ConfigError
from pdd.core.ids import TenantId
from pdd.core.units import Seconds
from pdd.sim.workload.arrivals import Arrivals, Surge
from pdd.sim.workload.base import Workload, check_length
from pdd.sim.workload.conversations import ConversationSpec, Lengths, Singular, Traffic, generate
from pdd.sim.workload.hits import NARROW, UNCACHED, HitBand
from pdd.sim.workload.traces import cut_at, read_trace, speed_up

GENERATED = "generated"
"""The default one, under the name that says nothing about it."""

_AGENTS = ConversationSpec(
    name="agents",
    num_requests=2000,
    arrivals=Arrivals(requests_per_s=20.0, swing=0.25),
    first_prompts=Lengths(mean=55_000, spread=0.53, least=4096, most=131_072 - 4096),
    answers=Lengths(mean=512, spread=1.0, least=8, most=4096),
)
_CHAT = replace(
    _AGENTS,
    name="chat",
    first_prompts=Lengths(mean=10_000, spread=1.0, least=512, most=65_536),
    answers=Lengths(mean=350, spread=0.8, least=8, most=4096),
    hit_rates=(HitBand(low=0.0, high=0.2, share=0.43), HitBand(low=0.2, high=0.99, share=0.57)),
)
_SINGULAR = Singular(share=0.035, hit_rates=UNCACHED, answers=Lengths(mean=60, spread=0.8, least=4, most=500))


def _specs() -> Mapping[str, ConversationSpec]:
    surge = Surge(start=Seconds(30.0), duration=Seconds(60.0), factor=10.0)
    tenants = (Traffic(tenant=TenantId("large"), share=0.9), Traffic(tenant=TenantId("small"), share=0.1))
    specs = (
        _AGENTS,
        replace(_AGENTS, name="agents-narrow", hit_rates=NARROW),
        replace(_AGENTS, name="agents-singular", singular=_SINGULAR),
        replace(_AGENTS, name="agents-surge", arrivals=replace(_AGENTS.arrivals, surges=(surge,)), traffic=tenants),
        _CHAT,
    )
    return {spec.name: spec for spec in specs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the caller wants otherwise; None leaves it as it is. ``speed`` and ``trace_block_tokens`` are for traces."""

    requests_per_s: float | None = None
    num_requests: int | None = None
    speed: float = 1.0
    until_s: Seconds | None = None
    trace_block_tokens: int | None = None


UNCHANGED = Changes()


def generated_workloads() -> tuple[str, ...]:
    """The names of those that need no file."""
    return tuple(_specs())


def find_spec(name: str) -> ConversationSpec | None:
    """The generated workload of this name."""
    return _specs().get(_AGENTS.name if name == GENERATED else name)


def load_workload(name_or_path: str, *, seed: int, changes: Changes = UNCHANGED) -> Workload:
    """A generated workload or a trace.

    Raises:
        ConfigError: there is neither, or something in it is wrong.
    """
    spec = find_spec(name_or_path)
    workload = _from_trace(name_or_path, changes) if spec is None else generate(_changed(spec, changes), seed=seed)
    return workload if changes.until_s is None else cut_at(workload, changes.until_s)


def _from_trace(path: str, changes: Changes) -> Workload:
    if not Path(path).exists():
        known = ", ".join((GENERATED, *_specs()))
        raise ConfigError(f"{path!r} is no file and no generated workload; generated ones: {known}")
    workload = speed_up(read_trace(Path(path), block_tokens=changes.trace_block_tokens), changes.speed)
    if changes.num_requests is None:
        return workload
    return replace(workload, requests=workload.requests[: changes.num_requests])


def _changed(spec: ConversationSpec, changes: Changes) -> ConversationSpec:
    rate = changes.requests_per_s or spec.arrivals.requests_per_s
    num_requests = changes.num_requests or spec.num_requests
    if changes.until_s is None:
        check_length(spec.name, Seconds(num_requests / rate))  # before it is drawn, wave by wave
    return replace(spec, arrivals=replace(spec.arrivals, requests_per_s=rate), num_requests=num_requests)
