"""The driver's smaller parts, each alone."""

from __future__ import annotations

import asyncio

import pytest

from pdd.core.errors import Unavailable
from pdd.core.ids import WorkerId
from pdd.core.request import FinishReason, Role
from pdd.core.units import Seconds
from pdd.protocol import relay
from pdd.router.base import EmittedSpan
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.request.mailbox import Inbox, Outbox
from pdd.router.driver.request.seats import RequestSeats
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.worker import Worker
from pdd.sim.loop import run
from tests.support.beliefs import beliefs_around
from tests.support.worlds import WorldSpec, build_world
from tests.unit.router.test_pool import BY_LOAD

now = LoopClock().now


def span(position: int, reason: FinishReason | None = None) -> EmittedSpan:
    return EmittedSpan(
        first_position=position, tokens=(7,), role=Role.PREFILL, worker=WorkerId("p"), finish_reason=reason
    )


def decoded(position: int) -> relay.TokensDecoded:
    return relay.TokensDecoded(attempt=1, first_position=position, tokens=(7,))


def workers() -> list[Worker]:
    world = build_world(WorldSpec(workers_per_role=2))
    return [
        Worker(engine=engine, node=world.nodes[role], role=role, cluster="B" if role is Role.MAIN_DECODE else "A")
        for role, engines in world.engines.items()
        for engine in engines
    ]


# Mailboxes ------------------------------------------------------------------------------------------------------------


def test_spans_wait_for_room_in_the_inbox_and_nothing_else_does() -> None:
    async def main() -> None:
        inbox = Inbox(max_spans=2)
        for position in range(2):
            await inbox.put(decoded(position))
        inbox.post(relay.ClientLeft())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await inbox.put(decoded(2))
        assert await inbox.get() == decoded(0)
        await inbox.put(decoded(3))
        assert [await inbox.get() for _ in range(3)] == [decoded(1), relay.ClientLeft(), decoded(3)]

    run(main())


def test_the_clients_last_word_overtakes_what_waits() -> None:
    async def main() -> None:
        inbox = Inbox(max_spans=2)
        await inbox.put(decoded(0))
        inbox.post_first(relay.ClientLeft())
        assert [await inbox.get() for _ in range(2)] == [relay.ClientLeft(), decoded(0)]

    run(main())


def test_a_reader_gets_all_spans_before_the_error_that_broke_the_answer_off() -> None:
    async def main() -> None:
        outbox = Outbox(max_spans=4)
        outbox.send(span(0))
        outbox.close(Unavailable("gone", retry_after_s=Seconds(1.0)))
        outbox.close(None)
        assert await outbox.receive() == span(0)
        with pytest.raises(Unavailable):
            await outbox.receive()

    run(main())


def test_a_full_outbox_waits_for_its_reader_until_that_is_gone() -> None:
    async def main() -> None:
        outbox = Outbox(max_spans=1)
        outbox.send(span(0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await outbox.room()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(outbox.room())
            await asyncio.sleep(1.0)
            outbox.discard()
        assert waiting.done()
        outbox.send(span(1))
        outbox.close(None)
        assert await outbox.receive() is None

    run(main())


# Seats ----------------------------------------------------------------------------------------------------------------


def test_a_request_stays_at_its_worker_and_goes_elsewhere_after_a_loss() -> None:
    async def main() -> None:
        pool = Pool(workers(), DriverSettings(), LoopClock())
        await pool.check_all()
        seats = RequestSeats(beliefs_around(pool), (), None, num_blocks=0, settings=BY_LOAD, clock=LoopClock())
        first = seats.take(Role.MAIN_DECODE)
        assert first is not None
        assert seats.take(Role.MAIN_DECODE) is first
        seats.lose(first)
        second = seats.take(Role.MAIN_DECODE)
        assert second is not None
        assert (first.worker.name, second.worker.name) == ("main_decode-0", "main_decode-1")
        seats.give_up_all()
        assert all(status.running == 0 for status in pool.workers.status(now()))

    run(main())
