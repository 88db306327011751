"""Plays one scene on virtual time and says what went wrong in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pdd.core.errors import PddError, Unavailable
from pdd.core.ids import NodeId, RequestId, Salt, TokenId, WorkerId
from pdd.core.request import GREEDY, Role, Sampling
from pdd.core.topology import EngineTable
from pdd.core.units import Seconds
from pdd.engine.scripted.engine import ScriptedEngine, scripted_answer
from pdd.kvnode.base import NodeClient
from pdd.protocol.relay import Command
from pdd.router.base import TokenRequest
from pdd.router.driver.bounds.settings import driver_settings
from pdd.sim.chaos.breakage import Breakable, Breakage, CommandWatch, History
from pdd.sim.chaos.compose import STOP_TOKENS, VOCAB_SIZE, compose, kv_format
from pdd.sim.chaos.scene import Scene, Talk, Turn
from pdd.sim.chaos.upstream import FaultyEngine, FaultyNode
from pdd.sim.chaos.verdict import Attempt, Finding, Wrong, judge
from pdd.sim.loop import Deadlock, run
from pdd.sim.memory.node import MemoryNode
from pdd.sim.world import World, build_world, running

BOUND_S = 1200.0
"""Virtual time in which any scene is over."""
_LAST_BLOCK = 10.0
"""Within so many seconds what the slowest line carries has landed."""
_LAST_TRIES = 4
_LAST_PAUSE = 20.0
"""Long enough for a circuit breaker to try again."""
_TRIES = 3
"""A client that is refused comes back when it was told to, so often in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of one scene. ``commands`` counts what the router ordered, by kind and role."""

    seed: int
    num_requests: int
    num_faults: int
    num_whole: int
    num_refused: int
    num_broken: int
    num_left: int
    commands: Mapping[str, int]
    virtual_s: float
    findings: tuple[Finding, ...]


def play_seed(seed: int, on_event: Callable[[float, str], None] | None = None) -> Played:
    """Plays the scene of ``seed``; ``on_event`` hears of everything that happens in it, and when."""
    scene = compose(seed)
    stage = _Stage(scene, on_event)
    with _errors_logged() as errors:
        try:
            run(stage.play())
        except (TimeoutError, Deadlock) as error:
            stage.find(Wrong.HUNG, f"{type(error).__name__} {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this seed
            stage.find(Wrong.CRASHED, repr(error))
    for error in errors:
        stage.find(Wrong.CRASHED, error)
    return stage.result()


class _Stage:
    """One scene being played."""

    def __init__(self, scene: Scene, on_event: Callable[[float, str], None] | None) -> None:
        self._scene = scene
        self._on_event = on_event
        self._findings: list[Finding] = []
        self._attempts: list[Attempt] = []
        self._commands = CommandWatch()
        self._history = History()
        self._num_faults = 0
        self._ended_at = 0.0

    def find(self, wrong: Wrong, what: str) -> None:
        self._findings.append(Finding(wrong=wrong, what=what))

    def result(self) -> Played:
        attempts = self._attempts
        return Played(
            seed=self._scene.seed,
            num_requests=len(attempts),
            num_faults=self._num_faults,
            num_whole=sum(attempt.is_whole for attempt in attempts),
            num_refused=sum(attempt.error is not None and not attempt.spans for attempt in attempts),
            num_broken=sum(attempt.error is not None and bool(attempt.spans) for attempt in attempts),
            num_left=sum(attempt.left and not attempt.is_whole for attempt in attempts),
            commands=dict(self._commands.counts),
            virtual_s=self._ended_at,
            findings=tuple(self._findings),
        )

    async def play(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_crash)
        async with asyncio.timeout(BOUND_S):
            engines, nodes, world = self._build()
            async with running(world):
                await self._act(world, engines, nodes)
                await self._ask_once_more(world)
                await self._check_idle(world, engines)
        left = sorted(task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task())
        if left:
            self.find(Wrong.LEAKED, f"tasks are left: {', '.join(left)}")
        self._ended_at = _now()

    def _build(self) -> tuple[Mapping[WorkerId, FaultyEngine], Mapping[NodeId, FaultyNode], World]:
        engines: dict[WorkerId, FaultyEngine] = {}
        nodes: dict[NodeId, FaultyNode] = {}

        def make_engine(table: EngineTable, node: MemoryNode) -> FaultyEngine:
            engines[table.name] = FaultyEngine(self._scripted_engine(table, node))
            return engines[table.name]

        def make_client(node: MemoryNode) -> NodeClient:
            nodes[node.node] = FaultyNode(node)
            return nodes[node.node]

        world = build_world(
            self._scene.topology,
            kv_format(),
            make_engine,
            make_client=make_client,
            settings=replace(driver_settings(self._scene.topology.router), max_spans_ahead=self._scene.max_spans_ahead),
            on_command=self._on_command,
        )
        return engines, nodes, world

    def _scripted_engine(self, table: EngineTable, node: MemoryNode) -> ScriptedEngine:
        return ScriptedEngine(
            table.name,
            kv_format=kv_format(),
            script=self._scene.scripts[table.name],
            cache_tokens=table.cache_tokens,
            connect_store=lambda: node.open_store(table.name),
        )

    def _on_crash(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:  # noqa: ARG002
        """A callback, or a task that nobody awaited, failed."""
        self.find(Wrong.CRASHED, f"{context.get('message')}: {context.get('exception')!r}")

    def _on_command(self, request: RequestId, command: Command) -> None:
        self._commands.saw(command)
        if self._on_event is not None:
            self._note(f"{request} {command!r}")

    def _note(self, what: str) -> None:
        if self._on_event is not None:
            self._on_event(_now(), what)

    # What happens -----------------------------------------------------------------------------------------------------

    async def _act(
        self, world: World, engines: Mapping[WorkerId, FaultyEngine], nodes: Mapping[NodeId, FaultyNode]
    ) -> None:
        breakable = Breakable(
            scene=self._scene,
            world=world,
            engines=engines,
            nodes=nodes,
            history=self._history,
            commands=self._commands,
        )
        breakage = Breakage(breakable, self._note)
        async with asyncio.TaskGroup() as faults:
            breakage.start(faults)
            async with asyncio.TaskGroup() as clients:
                for number, talk in enumerate(self._scene.talks):
                    clients.create_task(self._converse(world, number, talk), name=f"client {number}")
            breakage.end()
        self._num_faults = breakage.num_faults

    async def _converse(self, world: World, number: int, talk: Talk) -> None:
        said: tuple[TokenId, ...] = ()
        for index, turn in enumerate(talk.turns):
            await asyncio.sleep(turn.think)
            said += turn.text
            said += await self._take_turn(world, f"{number}.{index}", talk, turn, said)

    async def _take_turn(
        self, world: World, name: str, talk: Talk, turn: Turn, said: tuple[TokenId, ...]
    ) -> tuple[TokenId, ...]:
        """The answer, as far as it came. Who is refused comes back when told to, but not for ever."""
        for number in range(_TRIES):
            attempt = await self._ask(world, _request(f"{name}.{number}", talk, turn, said), turn)
            if attempt.error is None or attempt.spans:
                return attempt.tokens
            await asyncio.sleep(attempt.error.retry_after_s if isinstance(attempt.error, Unavailable) else 0.0)
        return ()

    async def _ask(self, world: World, request: TokenRequest, turn: Turn) -> Attempt:
        attempt = Attempt(request=request, opened_at=_now(), expected=_right_answer(request))
        self._attempts.append(attempt)
        self._note(f"{request.request_id} asked: {len(request.prompt)} tokens, at most {request.max_tokens}")
        async with world.driver.open(request) as answer:
            try:
                async with asyncio.timeout(turn.leave_after):
                    async for span in answer:
                        attempt.take(span, _now())
                        if turn.complete_after is not None and len(attempt.tokens) >= turn.complete_after:
                            attempt.completed = True
                            answer.complete()
                        await asyncio.sleep(turn.read_interval)
            except TimeoutError:
                attempt.left = True
            except PddError as error:
                attempt.error = error
            attempt.end(_now())
        self._note(f"{request.request_id} ended: {len(attempt.tokens)} tokens, {attempt.error or 'no error'}")
        self._findings += judge(attempt, self._scene, self._history)
        return attempt

    # What is left -----------------------------------------------------------------------------------------------------

    async def _ask_once_more(self, world: World) -> None:
        """Whatever broke, once it is whole again it serves again, without a restart of anything else."""
        turn = Turn(think=Seconds(0.0), text=tuple(range(20)), max_tokens=5)
        for number in range(_LAST_TRIES):
            request = _request(f"last.{number}", self._scene.talks[0], turn, turn.text)
            async with world.driver.open(request) as answer:
                try:
                    tokens = tuple([token async for span in answer for token in span.tokens])
                except PddError as error:
                    self._note(f"{request.request_id} refused: {error}")
                else:
                    if tokens != _right_answer(request):
                        self.find(Wrong.WRONG, "the last request of all got a wrong answer")
                    return
            await asyncio.sleep(_LAST_PAUSE)
        alive = self._roles_alive()
        if Role.PREFILL in alive and len(alive) > 1:
            self.find(Wrong.TURNED_AWAY, "all is whole again, and nobody is served")

    def _roles_alive(self) -> set[Role]:
        now = _now()
        engines = self._scene.topology.engines
        return {table.role for table in engines if self._history.was_whole(table.name, now, now)}

    async def _check_idle(self, world: World, engines: Mapping[WorkerId, FaultyEngine]) -> None:
        """Nothing runs, is leased, reserved, ordered or pinned any more."""
        driver = world.driver
        while driver.num_transfers:  # noqa: ASYNC110 - on virtual time asking again costs nothing
            await asyncio.sleep(0.5)
        await asyncio.sleep(self._scene.topology.router.policy.conversation_ttl_s + 1.0)
        num_live = driver.beliefs.conversations.num_live(driver.now)
        self._expect_none(f"{num_live} conversations live", num_live)
        await asyncio.sleep(
            _LAST_BLOCK
        )  # whatever a slow line carries lands, and nodes hear that nothing is pinned any more
        self._expect_none(f"the driver has {driver.num_open} open requests", driver.num_open)
        room = driver.room
        self._expect_none(f"{room.num_running} places are taken", room.num_running)
        self._expect_none(f"{room.num_waiting} wait for a place", room.num_waiting)
        for status in driver.beliefs.workers.status(driver.now):
            self._expect_none(f"{status.running} seats at {status.worker} are taken", status.running)
        for name, engine in engines.items():
            self._expect_none(f"engine {name} runs {engine.engine.num_open}", engine.engine.num_open)
        for node in world.nodes.values():
            if node.life.alive:
                await self._check_books(node)

    async def _check_books(self, node: MemoryNode) -> None:
        stats = await node.stats()
        books = ("leased_blocks", "reserved_blocks", "writing_blocks", "orders", "watches", "pinned_blocks")
        for name in books:
            count = getattr(stats, name)
            self._expect_none(f"node {stats.node} has {count} {name.replace('_', ' ')}", count)
        node.life.index.check_integrity()

    def _expect_none(self, what: str, count: int) -> None:
        if count:
            self.find(Wrong.LEAKED, what)


def _request(name: str, talk: Talk, turn: Turn, prompt: tuple[TokenId, ...]) -> TokenRequest:
    sampling = GREEDY if turn.seed is None else Sampling(temperature=1.0, top_k=None, top_p=1.0, seed=turn.seed)
    return TokenRequest(
        request_id=RequestId(name),
        tenant=talk.tenant,
        prompt=prompt,
        max_tokens=turn.max_tokens,
        stop_token_ids=STOP_TOKENS if turn.has_stop_tokens else frozenset(),
        sampling=sampling,
        salt=Salt(talk.tenant),
        steering=turn.steering,
    )


def _right_answer(request: TokenRequest) -> tuple[TokenId, ...]:
    return scripted_answer(
        request.prompt, request.max_tokens, request.sampling, request.stop_token_ids, vocab_size=VOCAB_SIZE
    )


@contextmanager
def _errors_logged() -> Generator[list[str]]:
    """What the package logs as errors meanwhile: nobody foresaw it."""
    collector = _Collector()
    logger = logging.getLogger("pdd")
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(collector)
    try:
        yield collector.messages
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagates


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = "" if record.exc_info is None else f": {record.exc_info[1]!r}"
        self.messages.append(record.getMessage() + cause)


def _now() -> float:
    return asyncio.get_running_loop().time()
