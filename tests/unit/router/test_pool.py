from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from pdd.core.errors import Unavailable
from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Generation, Role, TokenSpan
from pdd.core.units import Seconds
from pdd.engine.base import EngineInfo
from pdd.kvnode.memory_network import MemoryNetwork
from pdd.router.clock import LoopClock
from pdd.router.driver.pool import Pool, Worker
from pdd.router.driver.settings import DriverSettings
from pdd.sim.loop import run
from tests.support.worlds import KV_FORMAT


class SwitchedEngine:
    """Answers health checks as it is told."""

    def __init__(self, name: str) -> None:
        self.worker = WorkerId(name)
        self.up = True
        self.hangs = False
        self.life = 1
        self.checks = 0

    async def info(self) -> EngineInfo:
        self.checks += 1
        if self.hangs:
            await asyncio.Event().wait()
        if not self.up:
            raise Unavailable("switched off", retry_after_s=Seconds(1.0))
        return EngineInfo(model="m", max_model_tokens=100, block_tokens=16, instance=f"{self.worker}-{self.life}")

    async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        raise AssertionError(f"nobody asked for {generation}")
        yield


class Deployment:
    def __init__(self, *names: str, role: Role = Role.MAIN_DECODE) -> None:
        self.node = MemoryNetwork(KV_FORMAT).add(NodeId("node"), capacity=4)
        self.engines = {name: SwitchedEngine(name) for name in names}
        workers = [Worker(engine=e, node=self.node, role=role, cluster="A") for e in self.engines.values()]
        self.pool = Pool(workers, DriverSettings(), LoopClock())

    def play(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await self.pool.check_all()
            async with asyncio.TaskGroup() as tasks:
                self.pool.start(tasks)
                await scene()
                self.pool.stop()

        run(main())

    def take(self, role: Role = Role.MAIN_DECODE, avoid: frozenset[WorkerId] = frozenset()) -> str | None:
        seat = self.pool.pick(role, avoid=avoid)
        return None if seat is None else seat.worker.name


def test_picks_go_to_the_fewest_seats_and_then_to_the_lowest_name() -> None:
    deployment = Deployment("c", "a", "b")

    async def scene() -> None:
        assert [deployment.take() for _ in range(4)] == ["a", "b", "c", "a"]

    deployment.play(scene)


def test_a_seat_given_back_counts_no_more_however_often_it_is_given_back() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        seat = deployment.pool.pick(Role.MAIN_DECODE)
        assert seat is not None
        deployment.take()
        deployment.take()
        deployment.pool.release(seat)
        deployment.pool.release(seat)
        assert [status.running for status in deployment.pool.status()] == [1, 1]

    deployment.play(scene)


def test_one_to_avoid_is_picked_only_if_there_is_no_other() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        avoid = frozenset({WorkerId("a")})
        assert [deployment.take(avoid=avoid) for _ in range(2)] == ["b", "b"]
        deployment.engines["b"].up = False
        await asyncio.sleep(1.5)
        assert deployment.take(avoid=avoid) == "a"

    deployment.play(scene)


def test_a_role_that_nobody_has_is_not_up() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        assert not deployment.pool.has(Role.RELAY_DECODE)
        assert deployment.take(Role.RELAY_DECODE) is None

    deployment.play(scene)


def test_a_worker_that_goes_down_is_noticed_and_comes_back_by_itself() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        deployment.engines["a"].up = False
        await asyncio.sleep(1.5)
        assert deployment.take() is None
        deployment.engines["a"].up = True
        await asyncio.sleep(1.5)
        assert deployment.take() == "a"

    deployment.play(scene)


def test_a_worker_that_does_not_answer_is_down() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        deployment.engines["a"].hangs = True
        await asyncio.sleep(3.5)
        assert deployment.take() == "b"

    deployment.play(scene)


def test_a_suspect_is_down_at_once_and_up_with_its_next_answer() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        seat = deployment.pool.pick(Role.MAIN_DECODE)
        assert seat is not None
        deployment.pool.suspect(seat)
        assert deployment.take() is None
        assert not deployment.pool.holds(seat)
        await asyncio.sleep(0.01)
        assert deployment.take() == "a"
        assert deployment.pool.holds(seat)

    deployment.play(scene)


def test_an_answer_that_was_on_its_way_when_the_worker_failed_does_not_clear_it() -> None:
    deployment = Deployment("a")
    engine = deployment.engines["a"]

    async def scene() -> None:
        seat = deployment.pool.pick(Role.MAIN_DECODE)
        assert seat is not None
        engine.up = False
        answer = engine.info

        async def slow_info() -> EngineInfo:
            await asyncio.sleep(0.5)
            return EngineInfo(model="m", max_model_tokens=100, block_tokens=16, instance="a-1")

        engine.info = slow_info  # type: ignore[method-assign]
        await asyncio.sleep(1.2)  # a check is on its way now
        engine.info = answer  # type: ignore[method-assign]
        engine.hangs = True
        deployment.pool.suspect(seat)
        await asyncio.sleep(0.5)
        assert deployment.take() is None

    deployment.play(scene)


def test_a_restarted_worker_is_another_one() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        seat = deployment.pool.pick(Role.MAIN_DECODE)
        assert seat is not None
        deployment.engines["a"].life = 2
        await asyncio.sleep(1.5)
        assert not deployment.pool.holds(seat)
        deployment.pool.suspect(seat)
        assert deployment.take() == "a", "what its predecessor did is not its fault"
        assert [status.restarts for status in deployment.pool.status()] == [1]

    deployment.play(scene)


def test_nodes_are_known_by_their_last_answer() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        before = deployment.pool.node_instance(NodeId("node"))
        deployment.node.kill()
        await asyncio.sleep(1.5)
        assert deployment.pool.node_instance(NodeId("node")) is None
        deployment.node.restart()
        await asyncio.sleep(1.5)
        after = deployment.pool.node_instance(NodeId("node"))
        assert None not in (before, after)
        assert before != after

    deployment.play(scene)
