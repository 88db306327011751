from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from pdd.belief.beliefs import PlacementQuestion
from pdd.belief.health import BreakerState
from pdd.belief.worker_state import Seat
from pdd.core.errors import Incompatible, NodeFailed, PddError, Unavailable
from pdd.core.ids import NodeId, WorkerId
from pdd.core.replication import NodeStats
from pdd.core.request import Generation, Role, TokenSpan
from pdd.core.topology import HealthTable, PlacementRule, PolicyTable
from pdd.core.units import Seconds
from pdd.engine.base import EngineInfo
from pdd.engine.noise import SAMPLING_VERSION
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.request.seats import take_best
from pdd.router.driver.workers.agreement import Agreement
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.worker import Worker
from pdd.sim.loop import run
from pdd.sim.memory.network import MemoryNetwork
from tests.support.beliefs import beliefs_around
from tests.support.worlds import KV_FORMAT

now = LoopClock().now
BY_LOAD = PolicyTable(placement=PlacementRule.LEAST_LOADED)

INFO = EngineInfo(
    model="m",
    max_model_tokens=64,
    kv_format=KV_FORMAT.description,
    sampling_version=SAMPLING_VERSION,
    node=NodeId("node"),
    instance="a-1",
)
AGREEMENT = Agreement(model="m", max_model_tokens=64, kv_format=KV_FORMAT)


class SwitchedEngine:
    """Answers health checks as it is told."""

    def __init__(self, name: str) -> None:
        self.worker = WorkerId(name)
        self.up = True
        self.hangs = False
        self.says = INFO
        self.life = 1
        self.checks = 0

    async def info(self) -> EngineInfo:
        self.checks += 1
        if self.hangs:
            await asyncio.Event().wait()
        if not self.up:
            raise Unavailable("switched off", retry_after_s=Seconds(1.0))
        return replace(self.says, instance=f"{self.worker}-{self.life}")

    async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        raise AssertionError(f"nobody asked for {generation}")
        yield


class Deployment:
    def __init__(
        self,
        *names: str,
        role: Role = Role.MAIN_DECODE,
        agreement: Agreement | None = None,
        health: HealthTable | None = None,
    ) -> None:
        self.node = MemoryNetwork(KV_FORMAT).add(NodeId("node"), capacity=4)
        self.engines = {name: SwitchedEngine(name) for name in names}
        workers = [Worker(engine=e, node=self.node, role=role, cluster="A") for e in self.engines.values()]
        self.pool = Pool(workers, DriverSettings(health=health or HealthTable()), LoopClock(), agreement=agreement)
        self.beliefs = beliefs_around(self.pool)

    def play(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await self.pool.check_all()
            async with asyncio.TaskGroup() as tasks:
                self.pool.start(tasks)
                await scene()
                self.pool.stop()

        run(main())

    def take(self, role: Role = Role.MAIN_DECODE, avoid: frozenset[WorkerId] = frozenset()) -> str | None:
        seat = self._seat(role, avoid)
        return None if seat is None else seat.worker.name

    def sit(self) -> Seat[Worker]:
        seat = self._seat(Role.MAIN_DECODE)
        assert seat is not None
        return seat

    def _seat(self, role: Role, avoid: frozenset[WorkerId] = frozenset()) -> Seat[Worker] | None:
        question = PlacementQuestion(role=role, hashes=(), num_blocks=0, lost_at=avoid)
        return take_best(self.beliefs, question, BY_LOAD, now())


def test_picks_go_to_the_fewest_seats_and_then_to_the_lowest_name() -> None:
    deployment = Deployment("c", "a", "b")

    async def scene() -> None:
        assert [deployment.take() for _ in range(4)] == ["a", "b", "c", "a"]

    deployment.play(scene)


def test_a_seat_given_back_counts_no_more_however_often_it_is_given_back() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        seat = deployment.sit()
        deployment.take()
        deployment.take()
        deployment.pool.workers.release(seat)
        deployment.pool.workers.release(seat)
        assert [status.running for status in deployment.pool.workers.status(now())] == [1, 1]

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
        assert not deployment.pool.workers.role_view(Role.RELAY_DECODE).up
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


def test_a_worker_is_down_once_it_has_left_so_many_checks_in_a_row_unanswered() -> None:
    """One each second, two seconds for each, the next one at once: after at most five seconds two are lost."""
    deployment = Deployment("a", "b")

    async def scene() -> None:
        seat = deployment.sit()
        deployment.engines["a"].hangs = True
        await asyncio.sleep(3.5)
        assert deployment.pool.workers.holds(seat), "one late answer says little"
        await asyncio.sleep(2.0)
        assert not deployment.pool.workers.holds(seat)
        assert seat.down
        assert [deployment.take() for _ in range(2)] == ["b", "b"]

    deployment.play(scene)


def test_a_late_answer_between_two_others_changes_nothing() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        seat = deployment.sit()
        for _ in range(3):
            deployment.engines["a"].hangs = True
            await asyncio.sleep(1.5)
            deployment.engines["a"].hangs = False
            await asyncio.sleep(4.0)
        assert deployment.pool.workers.holds(seat)

    deployment.play(scene)


def test_a_worker_of_whom_something_was_heard_during_a_check_lives_however_late_its_answer_is() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        seat = deployment.sit()
        deployment.engines["a"].hangs = True
        for _ in range(30):
            await asyncio.sleep(1.0)
            seat.lifetime.heard = True
        assert deployment.pool.workers.holds(seat)
        await asyncio.sleep(8.0)
        assert seat.down

    deployment.play(scene)


def test_a_worker_may_have_to_answer_more_than_once_to_be_up_again_but_not_at_first() -> None:
    deployment = Deployment("a", health=HealthTable(checks_to_up=3))

    async def scene() -> None:
        assert deployment.take() == "a"
        deployment.engines["a"].up = False
        await asyncio.sleep(1.5)
        deployment.engines["a"].up = True
        await asyncio.sleep(2.1)
        assert deployment.take() is None
        await asyncio.sleep(1.0)
        assert deployment.take() == "a"

    deployment.play(scene)


def test_a_hung_process_that_goes_on_is_up_again_but_what_it_was_asked_before_is_lost() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        seat = deployment.sit()
        deployment.engines["a"].hangs = True
        await asyncio.sleep(6.0)
        deployment.engines["a"].hangs = False
        await asyncio.sleep(3.0)
        assert deployment.take() == "a"
        assert not deployment.pool.workers.holds(seat)
        assert [status.restarts for status in deployment.pool.workers.status(now())] == [0]

    deployment.play(scene)


def test_whoever_waits_at_a_worker_is_told_at_once_and_once_when_it_is_down() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        seat, told = deployment.sit(), list[float]()
        forget = seat.lifetime.on_end(lambda: told.append(-1.0))
        seat.lifetime.on_end(lambda: told.append(asyncio.get_running_loop().time()))
        forget()
        deployment.engines["a"].up = False
        await asyncio.sleep(10.0)
        assert told == [1.0], "with the first check"
        seat.lifetime.on_end(lambda: told.append(0.0))
        assert told == [1.0, 0.0], "who comes too late is told, too"

    deployment.play(scene)


def why_down(deployment: Deployment) -> str | None:
    (status,) = deployment.pool.workers.status(now())
    return status.why_down


def test_a_worker_that_disagrees_with_the_deployment_is_down_and_says_why() -> None:
    deployment = Deployment("a", agreement=replace(AGREEMENT, model="n"))

    async def scene() -> None:
        assert deployment.take() is None
        assert why_down(deployment) == "serves model 'm', this deployment 'n'"

    deployment.play(scene)


def test_one_that_agreed_and_comes_back_as_another_is_down_until_it_agrees_again() -> None:
    deployment = Deployment("a", agreement=AGREEMENT)
    engine = deployment.engines["a"]

    async def scene() -> None:
        seat = deployment.sit()
        engine.life, engine.says = 2, replace(INFO, sampling_version=SAMPLING_VERSION + 1)
        await asyncio.sleep(1.5)
        assert seat.down
        assert deployment.take() is None
        engine.life, engine.says = 3, INFO
        await asyncio.sleep(1.5)
        assert deployment.take() == "a"

    deployment.play(scene)


def test_the_workers_of_a_node_that_disagrees_are_down_until_it_agrees_or_is_away() -> None:
    deployment = Deployment("a", agreement=AGREEMENT)
    books = deployment.node.stats
    stats: list[NodeStats | PddError] = []

    async def told() -> NodeStats:
        if isinstance(stats[-1], PddError):
            raise stats[-1]
        return stats[-1]

    async def scene() -> None:
        right = await books()
        deployment.node.stats = told  # type: ignore[method-assign]
        for says, why in (
            (Incompatible("KV formats differ"), "KV formats differ"),
            (right, None),
            (replace(right, capacity_blocks=3), "node node holds 3 blocks, a request of this deployment may need 4"),
            (NodeFailed("away"), None),
        ):
            stats.append(says)
            await asyncio.sleep(1.5)
            for _ in range(20):  # through two more checks of both
                await asyncio.sleep(0.1)
                assert why_down(deployment) == why
                assert (deployment.take() == "a") is (why is None)

    deployment.play(scene)


def test_why_a_worker_is_not_up_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    deployment = Deployment("a", agreement=replace(AGREEMENT, model="other"))

    async def scene() -> None:
        await asyncio.sleep(10.0)

    deployment.play(scene)
    logged = [record.getMessage() for record in caplog.records if "worker_not_up" in record.getMessage()]
    assert logged == ["worker_not_up worker=a role=main_decode reason=serves model 'm', this deployment 'other'"]


def test_load_is_counted_over_those_that_are_up() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        for _ in range(8):
            deployment.take()
        assert deployment.pool.workers.role_view(Role.MAIN_DECODE).load == 8 / 32
        assert len(deployment.pool.workers.candidates(Role.MAIN_DECODE)) == 2
        deployment.engines["a"].up = False
        await asyncio.sleep(1.5)
        assert deployment.pool.workers.role_view(Role.MAIN_DECODE).load == 4 / 16
        assert len(deployment.pool.workers.candidates(Role.MAIN_DECODE)) == 1
        assert deployment.pool.workers.role_view(Role.PREFILL).load == 1.0, "nobody has room if nobody is there"

    deployment.play(scene)


# The breaker ----------------------------------------------------------------------------------------------------------


async def break_off(deployment: Deployment, times: int) -> None:
    """Generations at ``a`` break off, one after another; each time it answers its next check."""
    for _ in range(times):
        (candidate,) = [s for s in deployment.pool.workers.candidates(Role.MAIN_DECODE) if s.worker.name == "a"]
        seat = deployment.pool.workers.take(candidate.worker.name, now())
        deployment.pool.suspect(seat)
        deployment.pool.workers.release(seat)
        await asyncio.sleep(0.01)


def test_a_worker_whose_generations_break_off_is_passed_over_though_it_answers_its_checks() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        await break_off(deployment, 2)
        assert deployment.take() == "a"
        await break_off(deployment, 1)
        assert [deployment.take() for _ in range(5)] == ["b"] * 5
        assert [status.breaker for status in deployment.pool.workers.status(now())] == [
            BreakerState.OPEN,
            BreakerState.CLOSED,
        ]

    deployment.play(scene)


def test_after_a_while_one_request_tries_it_again_and_its_success_closes_the_breaker() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        await break_off(deployment, 3)
        await asyncio.sleep(5.0)
        trial = deployment.sit()
        assert trial.worker.name == "a"
        assert deployment.take() == "b", "one tries, the others wait for how it ends"
        assert deployment.take() == "b"
        deployment.pool.workers.vouch(trial, now())
        deployment.pool.workers.release(trial)
        assert [deployment.take() for _ in range(2)] == ["a", "a"]

    deployment.play(scene)


def test_a_trial_that_told_nothing_is_followed_by_another() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        await break_off(deployment, 3)
        await asyncio.sleep(5.0)
        for _ in range(2):
            trial = deployment.sit()
            assert trial.worker.name == "a"
            deployment.pool.workers.release(trial)

    deployment.play(scene)


def test_a_trial_that_fails_opens_the_breaker_for_twice_as_long() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        await break_off(deployment, 3)
        await asyncio.sleep(5.0)
        await break_off(deployment, 1)
        await asyncio.sleep(9.9)
        assert deployment.take() == "b"
        await asyncio.sleep(0.1)
        assert deployment.take() == "a"

    deployment.play(scene)


def test_the_last_worker_is_never_taken_away_by_its_breaker() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        await break_off(deployment, 3)
        assert deployment.take() == "a", "it may fail; a refusal surely does"
        assert deployment.pool.workers.role_view(Role.MAIN_DECODE).up

    deployment.play(scene)


def test_the_end_of_one_process_counts_as_one_failure_however_much_ran_there() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        seats = [deployment.sit() for _ in range(10)]
        for seat in seats:
            deployment.pool.suspect(seat)
        await asyncio.sleep(0.01)
        assert [status.breaker for status in deployment.pool.workers.status(now())] == [BreakerState.CLOSED]

    deployment.play(scene)


def test_pools_that_were_empty_fill_again_by_themselves() -> None:
    deployment = Deployment("a", "b")

    async def scene() -> None:
        for engine in deployment.engines.values():
            engine.up = False
        await asyncio.sleep(600.0)
        assert not deployment.pool.workers.role_view(Role.MAIN_DECODE).up
        deployment.engines["b"].up = True
        await asyncio.sleep(1.5)
        assert deployment.take() == "b"

    deployment.play(scene)


def test_a_suspect_is_down_at_once_and_up_with_its_next_answer() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        seat = deployment.sit()
        deployment.pool.suspect(seat)
        assert deployment.take() is None
        assert not deployment.pool.workers.holds(seat)
        await asyncio.sleep(0.01)
        assert deployment.take() == "a"
        assert deployment.pool.workers.holds(seat)

    deployment.play(scene)


def test_an_answer_that_was_on_its_way_when_the_worker_failed_does_not_clear_it() -> None:
    deployment = Deployment("a")
    engine = deployment.engines["a"]

    async def scene() -> None:
        seat = deployment.sit()
        engine.up = False
        answer = engine.info

        async def slow_info() -> EngineInfo:
            await asyncio.sleep(0.5)
            return INFO

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
        seat = deployment.sit()
        deployment.engines["a"].life = 2
        await asyncio.sleep(1.5)
        assert not deployment.pool.workers.holds(seat)
        deployment.pool.suspect(seat)
        assert deployment.take() == "a", "what its predecessor did is not its fault"
        assert [status.restarts for status in deployment.pool.workers.status(now())] == [1]

    deployment.play(scene)


def test_what_broke_off_at_a_process_that_is_gone_is_no_reason_to_ask() -> None:
    deployment = Deployment("a")
    engine = deployment.engines["a"]

    async def scene() -> None:
        seat = deployment.sit()
        engine.life = 2
        await asyncio.sleep(1.5)
        before = engine.checks
        deployment.pool.suspect(seat)
        await asyncio.sleep(0.1)
        assert engine.checks == before

    deployment.play(scene)


def test_nodes_are_known_by_their_last_answer() -> None:
    deployment = Deployment("a")

    async def scene() -> None:
        before = deployment.pool.workers.node_instance(NodeId("node"))
        deployment.node.kill()
        await asyncio.sleep(1.5)
        assert deployment.pool.workers.node_instance(NodeId("node")) is None
        deployment.node.restart()
        await asyncio.sleep(1.5)
        after = deployment.pool.workers.node_instance(NodeId("node"))
        assert deployment.pool.workers.node_returns(NodeId("node")) == 2
        assert None not in (before, after)
        assert before != after

    deployment.play(scene)


def test_a_listener_that_raises_is_logged_with_the_process_and_its_worker_is_asked_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deployment = Deployment("a", "b")

    def fail() -> None:
        raise RuntimeError("can't be told")

    async def scene() -> None:
        seat = deployment.sit()
        seat.lifetime.on_end(fail)
        deployment.engines[seat.worker.name].up = False
        await asyncio.sleep(1.5)
        assert seat.down
        assert any(seat.lifetime.instance in record.getMessage() for record in caplog.records if record.exc_info)
        deployment.engines[seat.worker.name].up = True
        await asyncio.sleep(1.5)
        assert sorted(filter(None, (deployment.take(), deployment.take()))) == ["a", "b"]

    deployment.play(scene)
