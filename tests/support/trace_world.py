"""A fixed, busy scene as a trace of commands, one a line. Run as a module it prints the trace of the virtual loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgspec

from pdd.core.errors import PddError
from pdd.core.request import HandoffMode, Route, Steering
from pdd.core.units import Seconds
from pdd.router.base import TokenRequest
from pdd.sim.loop import run
from tests.support.worlds import (
    MAIN_SCRIPT,
    PREFILL_SCRIPT,
    RELAY_SCRIPT,
    SETTINGS,
    World,
    WorldSpec,
    make_request,
    running_world,
)

SPEC = WorldSpec(
    blocks_per_s=40.0,
    line_delay=0.02,
    prefill=replace(PREFILL_SCRIPT, prefill_tokens_per_s=2000.0),
    relay_decode=replace(RELAY_SCRIPT, token_interval=Seconds(0.04)),
    main_decode=replace(MAIN_SCRIPT, token_interval=Seconds(0.04)),
)


def steer(route: Route | None, handoff: HandoffMode | None = None, tokens: int | None = None) -> Steering:
    return Steering(route=route, handoff=handoff, handoff_after_tokens=tokens)


STEERINGS = (
    steer(Route.DIRECT),
    steer(Route.RELAY, HandoffMode.ONE_SHOT),
    steer(Route.RELAY, HandoffMode.CATCH_UP, 6),
    steer(Route.RELAY, None, 3),
    steer(Route.RELAY, None, 100),
    steer(None),
)


async def record(requests: int, *, with_losses: bool, gap_s: float) -> list[str]:
    """Plays ``requests`` answers, begun ``gap_s`` apart; returns the commands of each, those of one request
    together.
    """
    async with running_world(SPEC) as world:
        async with asyncio.TaskGroup() as clients:
            for number in range(requests):
                steering = STEERINGS[number % len(STEERINGS)]
                request = make_request(number, prompt_tokens=90, max_tokens=20, steering=steering)
                clients.create_task(_read(world, request, leaves=with_losses and number % 7 == 5))
                await asyncio.sleep(gap_s)
            if with_losses:
                for engines in world.engines.values():
                    engines[0].die()
                    await asyncio.sleep(0.3)
                    engines[0].revive()
        await world.settle()
        await world.check_idle()
        return [f"{request} {command!r}" for request, command in world.commands]


STEADY_SPEC = WorldSpec(
    blocks_per_s=5.5,
    line_delay=0.02,
    relay_decode=replace(RELAY_SCRIPT, token_interval=Seconds(0.1)),
    main_decode=replace(MAIN_SCRIPT, token_interval=Seconds(0.05)),
    settings=replace(SETTINGS, policy=msgspec.structs.replace(SETTINGS.policy, relay_threshold_s=Seconds(2.0))),
)
"""Whatever might happen in either order is about 0.1 s apart, so that a real clock's grain can't swap it. Who pins
nothing waits for main decode, and asks again while it does.
"""

STEADY_REQUESTS = (
    make_request(0, prompt_tokens=90, max_tokens=8, steering=steer(Route.DIRECT)),
    make_request(1, prompt_tokens=90, max_tokens=8, steering=steer(None)),
    make_request(2, prompt_tokens=90, max_tokens=8, steering=steer(Route.RELAY, HandoffMode.ONE_SHOT, 3)),
    make_request(3, prompt_tokens=90, max_tokens=5, steering=steer(Route.RELAY, None, 100)),
    make_request(4, prompt_tokens=20, max_tokens=9, steering=steer(Route.RELAY, HandoffMode.CATCH_UP, 4)),
)


async def record_steady() -> list[str]:
    """Plays one answer of each kind, one after the other."""
    async with running_world(STEADY_SPEC) as world:
        for request in STEADY_REQUESTS:
            await _read(world, request, leaves=False)
            await world.settle()
        return [f"{request} {command!r}" for request, command in world.commands]


async def _read(world: World, request: TokenRequest, *, leaves: bool) -> None:
    async with world.driver.open(request) as answer:
        try:
            async for span in answer:
                if leaves and span.first_position > 2:
                    return
        except PddError:
            return


def main(show: Callable[[str], None] = print) -> None:
    for line in run(record(60, with_losses=True, gap_s=0.11)):
        show(line)


if __name__ == "__main__":
    main()
