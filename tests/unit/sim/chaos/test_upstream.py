"""The router's connections hang, break off and are refused, while both ends live on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from pdd.core.units import Seconds
from pdd.sim.chaos.upstream import BrokenOff, Refused, Upstream
from pdd.sim.loop import run


async def ticks(closed: list[float] | None = None) -> AsyncGenerator[int]:
    """One number a second, from 1 s on."""
    try:
        for number in range(5):
            await asyncio.sleep(1.0)
            yield number
    finally:
        if closed is not None:
            closed.append(asyncio.get_running_loop().time())


async def read(upstream: Upstream, stream: AsyncGenerator[int], into: list[tuple[float, int]]) -> None:
    async with aclosing(upstream.carry(stream)) as items:
        async for item in items:
            into.append((asyncio.get_running_loop().time(), item))  # noqa: PERF401 - what came before an error counts


async def read_while(upstream: Upstream, **acts: float) -> list[tuple[float, int]]:
    """Reads ``ticks`` while the methods named are called at the times given."""
    got: list[tuple[float, int]] = []
    loop = asyncio.get_running_loop()
    for name, at in acts.items():
        loop.call_later(at, getattr(upstream, name))
    await read(upstream, ticks(), got)
    return got


def test_a_connection_passes_everything_at_once() -> None:
    async def main() -> None:
        assert await read_while(Upstream()) == [(1.0, 0), (2.0, 1), (3.0, 2), (4.0, 3), (5.0, 4)]

    run(main())


def test_what_is_held_comes_later() -> None:
    async def main() -> None:
        assert (await read_while(Upstream(), hold=1.5, let_go=10.0))[:3] == [(1.0, 0), (10.0, 1), (11.0, 2)]

    run(main())


def test_a_slow_peer_takes_so_many_times_as_long() -> None:
    async def main() -> None:
        upstream = Upstream()
        upstream.slowdown = 3.0
        assert (await read_while(upstream))[:2] == [(3.0, 0), (6.0, 1)]

    run(main())


def test_a_broken_connection_closes_the_stream() -> None:
    async def main() -> None:
        upstream, got, closed = Upstream(), [], []
        asyncio.get_running_loop().call_later(1.5, upstream.break_off)
        with pytest.raises(BrokenOff):
            await read(upstream, ticks(closed), got)
        assert got == [(1.0, 0)]
        assert closed == [1.5]

    run(main())


def test_a_connection_that_broke_while_nobody_listened_is_found_broken() -> None:
    async def main() -> None:
        upstream = Upstream()
        async with aclosing(upstream.carry(ticks())) as items:
            assert await anext(items) == 0
            upstream.break_off()
            with pytest.raises(BrokenOff):
                await anext(items)

    run(main())


def test_a_held_connection_breaks_too() -> None:
    async def main() -> None:
        upstream = Upstream()
        upstream.hold()
        asyncio.get_running_loop().call_later(2.0, upstream.break_off)
        with pytest.raises(BrokenOff):
            await upstream.ask(lambda: asyncio.sleep(0.1))
        assert asyncio.get_running_loop().time() == 2.0

    run(main())


@pytest.mark.parametrize("asked_at", [0.0, 1.0, 20.0])
def test_a_silent_connection_is_given_up_by_who_has_patience_for_so_long_only(asked_at: float) -> None:
    async def main() -> None:
        upstream = Upstream(Seconds(5.0))
        asyncio.get_running_loop().call_later(0.5, upstream.hold)
        await asyncio.sleep(asked_at)
        with pytest.raises(BrokenOff):
            await upstream.ask(lambda: asyncio.sleep(600.0))
        assert asyncio.get_running_loop().time() <= asked_at + 5.5

    run(main())


def test_a_short_hold_breaks_nothing() -> None:
    async def main() -> None:
        upstream = Upstream(Seconds(5.0))
        loop = asyncio.get_running_loop()
        for at in (0.0, 4.0):
            loop.call_later(at, upstream.hold)
            loop.call_later(at + 3.0, upstream.let_go)
        await upstream.ask(lambda: asyncio.sleep(20.0))
        assert loop.time() == 20.0

    run(main())


def test_a_refused_connection_asks_nothing() -> None:
    async def main() -> None:
        upstream, asked = Upstream(), []
        upstream.refuse()
        with pytest.raises(Refused):
            await upstream.ask(lambda: asked.append(1) or asyncio.sleep(0))
        assert asked == []
        upstream.accept()
        await upstream.ask(lambda: asyncio.sleep(0))

    run(main())


def test_two_holds_need_two_releases() -> None:
    async def main() -> None:
        upstream = Upstream()
        loop = asyncio.get_running_loop()
        upstream.hold()
        upstream.hold()
        loop.call_later(1.0, upstream.let_go)
        loop.call_later(5.0, upstream.let_go)
        await upstream.ask(lambda: asyncio.sleep(0))
        assert loop.time() == 5.0

    run(main())


def test_a_caller_that_gives_up_is_no_broken_connection() -> None:
    async def main() -> None:
        upstream = Upstream()
        upstream.hold()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await upstream.ask(lambda: asyncio.sleep(0))

    run(main())
