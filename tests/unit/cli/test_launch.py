"""What a command changes about the topology that it launches for itself, and how long it waits for it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from pdd.cli.deploy.launch import on_any_port, ready_within, unshaped
from pdd.cli.topology.file import load_topology
from pdd.core.errors import Unavailable
from pdd.core.units import Seconds
from pdd.sim.loop import run


def test_a_deployment_of_its_own_never_asks_for_the_topology_s_port():
    topology = load_topology("scripted")
    assert topology.router.port == 8000
    assert on_any_port(topology).router.port == 0
    assert on_any_port(topology).nodes == topology.nodes


def test_a_deployment_without_its_lines_keeps_everything_else():
    topology = load_topology("scripted")
    assert unshaped(topology).links == ()
    assert unshaped(topology).engines == topology.engines


@asynccontextmanager
async def deployed(start: float, stop: float, stopped: list[float]) -> AsyncGenerator[str]:
    """Takes ``start`` seconds to begin, and ``stop`` to end."""
    try:
        await asyncio.sleep(start)
        yield "deployment"
    finally:
        await asyncio.sleep(stop)
        stopped.append(asyncio.get_running_loop().time())


def test_a_start_that_takes_too_long_is_given_up_and_stopped():
    async def main() -> list[float]:
        stopped = []
        with pytest.raises(Unavailable, match="not every role was ready within 10 s; look there"):
            async with ready_within(Seconds(10.0), deployed(11.0, 3.0, stopped), "look there"):
                pytest.fail("it was not ready")
        return stopped

    assert run(main()) == [13.0]


def test_only_the_start_is_limited_and_a_command_that_times_out_is_no_failed_start():
    stopped: list[float] = []

    async def command() -> None:
        async with ready_within(Seconds(10.0), deployed(9.0, 3.0, stopped), ""):
            await asyncio.sleep(1000.0)
            raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        run(command())
    assert stopped == [9.0 + 1000.0 + 3.0]


def test_a_start_that_was_given_up_but_is_ready_after_all_is_used():
    @asynccontextmanager
    async def unmoved() -> AsyncGenerator[str]:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(11.0)
        yield "deployment"

    async def main() -> None:
        async with ready_within(Seconds(10.0), unmoved(), "") as deployment:
            assert deployment == "deployment"
            await asyncio.sleep(1000.0)

    run(main())
