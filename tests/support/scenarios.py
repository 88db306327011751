"""Random scenes for a world: who asks what when, how it reads, and what breaks. Strategies for Hypothesis."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from enum import StrEnum

from hypothesis import strategies as st

from pdd.core.errors import PddError
from pdd.core.request import GREEDY, HandoffMode, Role, Route, Sampling, Steering
from pdd.core.units import Seconds
from pdd.router.base import EmittedSpan
from tests.support.worlds import (
    MAIN_SCRIPT,
    PREFILL_SCRIPT,
    RELAY_SCRIPT,
    SETTINGS,
    Outcome,
    World,
    WorldSpec,
    check_spans,
    check_whole,
    make_request,
    running_world,
)

BOUND_S = 3600.0
"""Virtual time in which any scene must be over."""


class Fault(StrEnum):
    """What breaks, and later is whole again."""

    ENGINE = "engine"
    NODE = "node"
    LINE = "line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """``downtime`` None: it stays broken."""

    at: float
    fault: Fault
    role: Role
    worker: int = 0
    downtime: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One client. It leaves at ``leave_after`` seconds, or says "complete" after ``complete_after`` tokens."""

    at: float
    prompt_tokens: int
    max_tokens: int
    steering: Steering
    seed: int | None
    same_prompt_as_first: bool
    has_stop_token: bool
    read_interval: float
    leave_after: float | None
    complete_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One deployment and what happens in it."""

    spec: WorldSpec
    calls: tuple[Call, ...]
    breaks: tuple[Break, ...] = ()


def bursts(interval: float) -> st.SearchStrategy[dict[str, object]]:
    return st.sampled_from([1, 1, 3, 8]).map(lambda burst: {"burst_tokens": burst, "token_interval": Seconds(interval)})


@st.composite
def specs(draw: st.DrawFn) -> WorldSpec:
    ahead = draw(st.sampled_from([2, 256]))
    return WorldSpec(
        blocks_per_s=draw(st.sampled_from([0.7, 3.0, 20.0, 1000.0])),
        line_delay=draw(st.sampled_from([0.0, 0.015, 0.2])),
        workers_per_role=draw(st.sampled_from([1, 1, 2])),
        prefill=replace(PREFILL_SCRIPT, prefill_tokens_per_s=draw(st.sampled_from([300.0, 2000.0]))),
        relay_decode=replace(RELAY_SCRIPT, **draw(bursts(0.031))),
        main_decode=replace(
            MAIN_SCRIPT, **draw(bursts(0.017)), prefill_tokens_per_s=draw(st.sampled_from([400.0, 2000.0]))
        ),
        main_capacity=draw(st.sampled_from([None, None, 24])),
        relay_capacity=draw(st.sampled_from([None, None, 16])),
        settings=replace(SETTINGS, max_spans_ahead=ahead),
    )


@st.composite
def steerings(draw: st.DrawFn) -> Steering:
    if draw(st.booleans()):
        return Steering()
    return Steering(
        route=draw(st.sampled_from([None, Route.DIRECT, Route.RELAY, Route.RELAY])),
        handoff=draw(st.sampled_from([None, *HandoffMode])),
        handoff_after_tokens=draw(st.sampled_from([None, None, 1, 2, 15, 16, 17, 100])),
    )


@st.composite
def calls(draw: st.DrawFn, *, may_leave: bool) -> Call:
    leaves = may_leave and draw(st.booleans())
    return Call(
        at=draw(st.sampled_from([0.0, 0.0, 0.05, 0.4, 3.0])),
        prompt_tokens=draw(st.sampled_from([1, 15, 16, 17, 40, 100, 200])),
        max_tokens=draw(st.sampled_from([1, 2, 3, 20, 60, 150])),
        steering=draw(steerings()),
        seed=draw(st.sampled_from([None, 7])),
        same_prompt_as_first=draw(st.booleans()),
        has_stop_token=draw(st.booleans()),
        read_interval=draw(st.sampled_from([0.0, 0.0, 0.1])),
        leave_after=draw(st.floats(0.0, 6.0)) if leaves else None,
        complete_after=draw(st.sampled_from([None, None, 1, 2, 9])) if may_leave else None,
    )


@st.composite
def breaks(draw: st.DrawFn, *, repaired: bool) -> Break:
    return Break(
        at=draw(st.floats(0.0, 5.0)),
        fault=draw(st.sampled_from(Fault)),
        role=draw(st.sampled_from(Role)),
        worker=draw(st.integers(0, 1)),
        downtime=draw(st.floats(0.01, 8.0)) if repaired or draw(st.booleans()) else None,
    )


@st.composite
def scenes(draw: st.DrawFn, *, may_leave: bool = False, max_breaks: int = 0, repaired: bool = True) -> Scene:
    return Scene(
        spec=draw(specs()),
        calls=tuple(draw(st.lists(calls(may_leave=may_leave), min_size=1, max_size=4))),
        breaks=tuple(draw(st.lists(breaks(repaired=repaired), min_size=min(1, max_breaks), max_size=max_breaks))),
    )


async def play(scene: Scene) -> list[Outcome]:
    """Plays a scene; returns what each client got, in order of calls, and checks that nothing is held afterwards."""
    outcomes: dict[int, Outcome] = {}
    async with asyncio.timeout(BOUND_S), running_world(scene.spec) as world:
        async with asyncio.TaskGroup() as tasks:
            for index, call in enumerate(scene.calls):
                tasks.create_task(_play_call(world, scene, index, call, outcomes), name=f"client {index}")
            for happening in scene.breaks:
                tasks.create_task(_play_break(world, happening), name=f"{happening}")
        await world.settle()
        await world.check_idle()
    return [outcomes[index] for index in range(len(scene.calls))]


async def _play_call(world: World, scene: Scene, index: int, call: Call, outcomes: dict[int, Outcome]) -> None:
    await asyncio.sleep(call.at)
    first = scene.calls[0].prompt_tokens
    request = make_request(
        index,
        prompt=make_request(0, prompt_tokens=first).prompt if call.same_prompt_as_first else None,
        prompt_tokens=call.prompt_tokens,
        max_tokens=call.max_tokens,
        steering=call.steering,
        stop_token_ids=frozenset(range(0, 1000, 40)) if call.has_stop_token else frozenset(),
        sampling=GREEDY if call.seed is None else Sampling(temperature=1.0, top_k=None, top_p=1.0, seed=call.seed),
    )
    spans: list[EmittedSpan] = []
    failure: PddError | None = None
    left = completed = False
    async with world.driver.open(request) as answer:
        try:
            async with asyncio.timeout(call.leave_after):
                async for span in answer:
                    spans.append(span)
                    if call.complete_after is not None and sum(len(s.tokens) for s in spans) >= call.complete_after:
                        completed = True
                        answer.complete()
                    await asyncio.sleep(call.read_interval)
        except TimeoutError:
            left = True
        except PddError as error:
            failure = error
    outcomes[index] = Outcome(spans, answer.report, failure)
    if failure is not None or left or completed:
        check_spans(request, spans)
    else:
        check_whole(request, outcomes[index])


async def _play_break(world: World, happening: Break) -> None:
    await asyncio.sleep(happening.at)
    engines = world.engines[happening.role]
    engine = engines[happening.worker % len(engines)]
    node = world.nodes[happening.role]
    match happening.fault:
        case Fault.ENGINE:
            engine.die()
        case Fault.NODE:
            node.kill()
        case Fault.LINE:
            world.network.cut(world.line)
    if happening.downtime is None:
        return
    await asyncio.sleep(happening.downtime)
    match happening.fault:
        case Fault.ENGINE:
            engine.revive()
        case Fault.NODE:
            node.restart()
        case Fault.LINE:
            world.network.restore(world.line)
