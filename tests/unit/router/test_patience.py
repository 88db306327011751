"""Who waits for an engine is told when that is over, whatever else happens in the same instant."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from logging.handlers import BufferingHandler

import pytest

from pdd.belief.health import Lifetime
from pdd.core.errors import WorkerFailed
from pdd.core.request import TokenSpan
from pdd.core.units import Seconds
from pdd.router.driver.bounds.patience import Vigil, expire
from pdd.sim.loop import run

SILENT_FOR = Seconds(30.0)
"""What each vigil bears."""
LETS_GO_IN = 2.0
"""What the engine's stream takes to end once it is cancelled, like a connection that has to be closed."""

SILENT = "sent no token"
GONE = "process is gone"


async def silence(lets_go_in: float) -> AsyncGenerator[TokenSpan]:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(lets_go_in)
    yield TokenSpan(first_position=0, tokens=())


async def keep_vigil(lifetime: Lifetime, *, lets_go_in: float = 0.0, limit: Seconds = SILENT_FOR) -> tuple[float, str]:
    """When it was told that nothing will come, and why."""
    vigil = Vigil(silence(lets_go_in), lifetime, first=limit, later=limit)
    with vigil.kept(), pytest.raises(WorkerFailed) as failure:
        await vigil.next()
    return asyncio.get_running_loop().time(), str(failure.value)


def after_turns(num_turns: int, call: Callable[[], None]) -> None:
    """Calls ``call`` so many turns of the event loop from now, at the same virtual time."""
    if num_turns:
        asyncio.get_running_loop().call_soon(after_turns, num_turns - 1, call)
    else:
        call()


def test_a_worker_that_ends_ends_every_wait_for_it_at_once() -> None:
    async def main() -> None:
        lifetime = Lifetime("one", Seconds(0.0))
        asyncio.get_running_loop().call_later(7.0, lifetime.end)
        for told_at, why in await asyncio.gather(*(keep_vigil(lifetime) for _ in range(3))):
            assert told_at == 7.0
            assert GONE in why

    run(main())


@pytest.mark.parametrize("num_turns", range(6))
def test_a_worker_that_ends_in_the_instant_in_which_one_wait_has_expired_ends_the_others(num_turns: int) -> None:
    async def main() -> None:
        loop, lifetime = asyncio.get_running_loop(), Lifetime("one", Seconds(0.0))
        loop.call_later(SILENT_FOR, after_turns, num_turns, lifetime.end)
        expired = asyncio.create_task(keep_vigil(lifetime))
        others = [asyncio.create_task(keep_vigil(lifetime, limit=Seconds(300.0))) for _ in range(2)]
        assert (await expired)[0] == SILENT_FOR
        assert [await other for other in others] == [
            (SILENT_FOR, f"the engine's {GONE}, or answers no health checks")
        ] * 2

    run(main())


@pytest.mark.parametrize("ended_after", [0.0, 0.5, LETS_GO_IN])
def test_a_wait_that_expired_and_does_not_let_go_yet_keeps_its_reason_and_disturbs_nobody(ended_after: float) -> None:
    async def main() -> None:
        loop, lifetime = asyncio.get_running_loop(), Lifetime("one", Seconds(0.0))
        loop.call_later(SILENT_FOR + ended_after, after_turns, 3, lifetime.end)
        expired = asyncio.create_task(keep_vigil(lifetime, lets_go_in=LETS_GO_IN))
        other = asyncio.create_task(keep_vigil(lifetime, limit=Seconds(300.0)))
        told_at, why = await expired
        assert told_at == SILENT_FOR + LETS_GO_IN
        assert SILENT in why
        assert (await other)[0] == SILENT_FOR + ended_after

    run(main())


def test_a_wait_that_ends_with_its_worker_is_not_broken_off_again_by_its_own_silence() -> None:
    async def main() -> None:
        loop, lifetime = asyncio.get_running_loop(), Lifetime("one", Seconds(0.0))
        loop.call_later(SILENT_FOR - 1.0, lifetime.end)
        told_at, why = await keep_vigil(lifetime, lets_go_in=LETS_GO_IN)
        assert told_at == SILENT_FOR - 1.0 + LETS_GO_IN
        assert GONE in why

    run(main())


def test_a_scope_expires_once_however_often_it_is_told_to() -> None:
    async def wait_in_vain(scope: asyncio.Timeout) -> None:
        async with scope:
            asyncio.get_running_loop().call_later(1.0, expire, scope)
            asyncio.get_running_loop().call_later(1.0, expire, scope)
            try:
                await asyncio.Event().wait()
            finally:
                expire(scope)
                await asyncio.sleep(1.0)
                expire(scope)

    async def main() -> None:
        scope = asyncio.timeout(None)
        with pytest.raises(TimeoutError):
            await wait_in_vain(scope)
        assert asyncio.get_running_loop().time() == 2.0
        assert scope.expired()

    run(main())


# A lifetime's listeners -----------------------------------------------------------------------------------------------


@contextmanager
def errors_logged() -> Generator[list[logging.LogRecord]]:
    handler = BufferingHandler(capacity=100)
    logger = logging.getLogger("pdd")
    logger.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        logger.removeHandler(handler)


def test_every_listener_is_told_of_the_end_whatever_one_of_them_raises() -> None:
    lifetime, told = Lifetime("the fourth", Seconds(0.0)), list[str]()

    def fail() -> None:
        raise RuntimeError("can't be told")

    lifetime.on_end(lambda: told.append("first"))
    lifetime.on_end(fail)
    lifetime.on_end(lambda: told.append("second"))
    lifetime.on_end(fail)
    lifetime.on_end(lambda: told.append("third"))
    assert [str(error) for error in lifetime.end()] == ["can't be told"] * 2
    assert told == ["first", "second", "third"]
    assert lifetime.end() == []
    assert told == ["first", "second", "third"]


def test_a_listener_that_another_one_takes_back_is_not_told() -> None:
    lifetime, told = Lifetime("one", Seconds(0.0)), list[str]()
    lifetime.on_end(lambda: forget_second())
    forget_second = lifetime.on_end(lambda: told.append("second"))
    lifetime.on_end(lambda: told.append("third"))
    lifetime.end()
    assert told == ["third"]


def test_who_begins_to_listen_while_the_end_is_told_is_told_too() -> None:
    lifetime, told = Lifetime("one", Seconds(0.0)), list[str]()

    def tell_and_listen() -> None:
        told.append("first")
        lifetime.on_end(lambda: told.append("late"))

    lifetime.on_end(tell_and_listen)
    lifetime.end()
    assert told == ["first", "late"]
