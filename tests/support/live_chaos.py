"""Faults at random moments in a live deployment, and streams that have to survive them.

``python -m tests.support.live_chaos --seconds 600`` soaks; the integration tests run it for as many streams as they
have. With ``--topology`` real engines are hurt, which answer each question once in peace before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Protocol, assert_never

import msgspec

from pdd.cli.ask.conversation import Question, ReceivedAnswer, ReceivedSpan
from pdd.cli.deploy.state import Phase
from pdd.core.errors import PddError, Unavailable
from pdd.core.ids import NodeId, TokenId, WorkerId
from pdd.core.request import HandoffMode, Route
from pdd.core.topology import EngineKind, Topology
from pdd.core.units import Seconds
from pdd.transport.emulate_control import Change, Cut, CutKind, Restore, Stall
from tests.support.live import (
    QUICK_RESTARTS,
    Live,
    live,
    packaged_topology,
    question_of,
    right_answer,
    token_prompt,
    until,
    with_policy,
)

ANSWER_LIMIT = Seconds(75.0)
"""No stream may take longer, whatever happens meanwhile."""
WORTH_A_NOTE = Seconds(10.0)
"""Between two tokens."""
VLLM_PARTS = ("VLLM::EngineCore", "VLLM::Worker")
"""A vLLM engine's processes beside its API server, as they call themselves."""
_SECOND_CLUSTER = "C"


def doubled(topology: Topology, *, remote: str = _SECOND_CLUSTER) -> Topology:
    """Two of each engine, each with a node of its own; the second main decode stands in a cluster and behind a line of
    its own.
    """
    link = topology.links[0]
    home = topology.router.cluster
    moved = {home: home, **dict.fromkeys((c for c in link.clusters if c != home), remote)}
    return msgspec.structs.replace(
        topology,
        nodes=topology.nodes
        + tuple(
            msgspec.structs.replace(n, name=NodeId(f"{n.name}2"), cluster=moved[n.cluster]) for n in topology.nodes
        ),
        engines=topology.engines
        + tuple(
            msgspec.structs.replace(e, name=WorkerId(f"{e.name}2"), cluster=moved[e.cluster], node=NodeId(f"{e.node}2"))
            for e in topology.engines
        ),
        links=(link, msgspec.structs.replace(link, name=f"{link.name}2", clusters=(home, remote))),
    )


def wide_scripted(*, rate: float = 4_000_000) -> Topology:
    """Two of everything; a prompt's KV takes some tenths of a second to cross, so that every phase lasts long enough to
    be hit.
    """
    topology = packaged_topology(
        "scripted",
        rate=rate,
        P={"prefill_tokens_per_s": 8000.0},
        RLD={"prefill_tokens_per_s": 20_000.0},
        MD={"prefill_tokens_per_s": 4000.0},
    )
    return doubled(with_policy(topology, relay_threshold_s=Seconds(0.2), catch_up_threshold_tokens=24))


# Faults ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """kill -9; its supervisor starts it again."""

    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """SIGSTOP, and SIGCONT later: it keeps its connections and answers nothing."""

    role: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPart:
    """kill -9 of one process of a role's group: the one whose command line has ``part`` in it."""

    role: str
    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HangPart:
    """SIGSTOP of such a process, and SIGCONT later: the role answers, but for it."""

    role: str
    part: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCut:
    link: str
    kind: CutKind
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStall:
    link: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSlow:
    """A tenth of its rate."""

    link: str
    seconds: float


Fault = Kill | Hang | KillPart | HangPart | LineCut | LineStall | LineSlow


def one_of_each_fault(topology: Topology, chance: random.Random) -> list[Fault]:
    """Everyone killed, one of each pair and the router stopped, everything done to each line; order and times left to
    chance.
    """
    pairs = pairs_of(topology)
    once: list[Fault] = [Kill(role=role) for pair in pairs for role in pair]
    once += [_hang_of(chance.choice(pair), chance) for pair in pairs]
    once += [_hang_of("router", chance)]
    once += [fault for link in topology.links for fault in _line_faults(link.name, chance)]
    chance.shuffle(once)
    return once


def one_of_each_kind(topology: Topology, chance: random.Random) -> list[Fault]:
    """Of each pair one is killed and the other stopped; each thing that can be done to a line is done to
    one of them.
    """
    once: list[Fault] = [_hang_of("router", chance)]
    for pair in pairs_of(topology):
        killed, stopped = chance.sample(pair, 2)
        once += [Kill(role=killed), _hang_of(stopped, chance)]
    lines = [_line_faults(link.name, chance) for link in topology.links]
    once += [chance.choice(of_one_kind) for of_one_kind in zip(*lines, strict=True)]
    chance.shuffle(once)
    return once


def pairs_of(topology: Topology) -> list[tuple[str, str]]:
    """The names of those nodes and engines that ``doubled`` made two of."""
    names = [*(n.name for n in topology.nodes), *(e.name for e in topology.engines)]
    return [(name, f"{name}2") for name in names if not name.endswith("2")]


def _hang_of(role: str, chance: random.Random) -> Hang:
    return Hang(role=role, seconds=chance.uniform(0.3, 6.0))


def _line_faults(link: str, chance: random.Random) -> list[Fault]:
    """Always in the same order."""
    return [
        Kill(role=link),
        Hang(role=link, seconds=chance.uniform(0.3, 4.0)),
        *(LineCut(link=link, kind=kind, seconds=chance.uniform(0.2, 5.0)) for kind in CutKind),
        LineStall(link=link, seconds=chance.uniform(0.2, 4.0)),
        LineSlow(link=link, seconds=chance.uniform(1.0, 5.0)),
    ]


def of_every_role(topology: Topology, chance: random.Random) -> list[Fault]:
    """Everyone but the router killed and stopped, the processes of a vLLM engine also one by one; everything done to
    each line.
    """
    names = [*(n.name for n in topology.nodes), *(e.name for e in topology.engines)]
    once: list[Fault] = [Kill(role=name) for name in names]
    once += [_hang_of(name, chance) for name in (*names, "router")]
    for engine in topology.engines:
        if engine.kind is EngineKind.VLLM:
            once += [KillPart(role=engine.name, part=part) for part in VLLM_PARTS]
            once += [HangPart(role=engine.name, part=part, seconds=chance.uniform(0.3, 6.0)) for part in VLLM_PARTS]
    once += [fault for link in topology.links for fault in _line_faults(link.name, chance)]
    chance.shuffle(once)
    return once


def endless(
    round_of: Callable[[Topology, random.Random], list[Fault]], topology: Topology, chance: random.Random
) -> Iterator[Fault]:
    """Round after round."""
    while True:
        yield from round_of(topology, chance)


async def inflict(deployment: Live, fault: Fault) -> None:
    """Does it, and returns when it has been undone. What isn't running just now can't be hurt."""
    match fault:
        case Kill(role=role):
            await _kill(deployment, role)
        case Hang(role=role, seconds=seconds):
            await _hang(deployment.role(role).pid, seconds)
        case KillPart(role=role, part=part):
            await _kill_part(deployment, role, part)
        case HangPart(role=role, part=part, seconds=seconds):
            await _hang(_find_part(deployment, role, part), seconds)
        case LineCut(link=link, kind=kind, seconds=seconds):
            await _change_line(deployment, link, Cut(kind=kind), seconds, Restore())
        case LineStall(link=link, seconds=seconds):
            await _change_line(deployment, link, Stall(seconds=Seconds(seconds)), seconds, Restore())
        case LineSlow(link=link, seconds=seconds):
            rate = deployment.topology.link(link).rate_bits_per_s
            slow = Change(rate_bits_per_s=type(rate)(rate / 10))
            await _change_line(deployment, link, slow, seconds, Change(rate_bits_per_s=rate))
        case _:
            assert_never(fault)


async def _kill(deployment: Live, role: str) -> None:
    before = deployment.role(role)
    if before.phase is not Phase.READY:
        return
    deployment.kill(role)
    await deployment.until_back(role, restarts=before.restarts + 1)


async def _kill_part(deployment: Live, role: str, part: str) -> None:
    before, pid = deployment.role(role), _find_part(deployment, role, part)
    if before.phase is not Phase.READY or pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    await deployment.until_back(role, restarts=before.restarts + 1)


def _find_part(deployment: Live, role: str, part: str) -> int | None:
    group = deployment.role(role).pid
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(command.parent.name)
        with suppress(OSError):
            if part.encode() in command.read_bytes() and os.getpgid(pid) == group:
                return pid
    return None


async def _hang(pid: int | None, seconds: float) -> None:
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


async def _change_line(
    deployment: Live, link: str, change: Change | Cut | Stall, seconds: float, undo: Change | Restore
) -> None:
    with suppress(Unavailable):  # the emulator itself is down or hangs: then its settings are gone as well
        await deployment.link(change, link)
        await asyncio.sleep(seconds)
    for _ in range(40):
        with suppress(Unavailable):
            await deployment.link(undo, link)
            return
        await asyncio.sleep(0.25)


# Streams --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question and the one right answer; a client with ``leaves_after`` hangs up after so many seconds."""

    question: Question
    expected: tuple[TokenId, ...]
    leaves_after: float | None = None


Dialogue = Sequence[Turn]
"""Turns of one conversation: each prompt goes on where the answer before ended."""


def scripted_dialogues(topology: Topology, chance: random.Random) -> Iterator[Dialogue]:
    """Endless: long and short, greedy and sampled, one turn or several, some pinned to a relay, some left by their
    client.
    """
    number = 0
    while True:
        number += 1
        yield tuple(_turns(topology, chance, f"chaos-{number}", num_turns=chance.choice((1, 1, 2, 3))))


def _turns(topology: Topology, chance: random.Random, salt: str, *, num_turns: int) -> Iterator[Turn]:
    prompt = token_prompt(chance.choice((40, 300, 900, 1600)), seed=chance.randrange(1000))
    seed = chance.choice((None, chance.randrange(1, 1000)))
    for _ in range(num_turns):
        route = Route.RELAY if chance.random() < 0.3 else None
        question = question_of(topology, prompt, chance.randrange(20, 140), salt=salt, seed=seed, route=route)
        expected = right_answer(question)
        leaves_after = chance.uniform(0.05, 2.5) if chance.random() < 0.1 else None
        yield Turn(question=question, expected=expected, leaves_after=leaves_after)
        more = token_prompt(chance.randrange(1, 200), seed=chance.randrange(1000)).token_ids
        prompt = type(prompt)(token_ids=(*prompt.token_ids, *expected, *more))


async def in_peace(deployment: Live, questions: Sequence[Question]) -> list[Turn]:
    """Questions with the answers that the undisturbed deployment gives to them."""

    async def ask(question: Question) -> Turn:
        return Turn(question=question, expected=(await deployment.ask(question)).token_ids)

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(question)) for question in questions]
    return [task.result() for task in asking]


def questions_at_borders(topology: Topology, chance: random.Random, num_questions: int) -> list[Question]:
    """Prompts that end at, just before and just behind a block, alone or behind a beginning that others have too."""
    longest = topology.max_model_tokens
    shared = token_prompt(longest // 4 // 32 * 32, seed=77).token_ids
    questions: list[Question] = []
    for number in range(num_questions):
        length = max(1, chance.randrange(1, longest // 64) * 32 + chance.choice((-17, -16, -15, -1, 0, 1)))
        own = token_prompt(min(length, longest // 2), seed=number)
        prompt = replace(own, token_ids=(*shared, *own.token_ids)[: longest - 200]) if number % 3 == 0 else own
        max_tokens = chance.choice((1, 2, 16, 17, 120, 180))
        seed = number if number % 2 else None
        questions.append(question_of(topology, prompt, max_tokens, salt=f"peace-{number}", seed=seed))
    return questions


def asked_again(turns: Sequence[Turn]) -> Iterator[Dialogue]:
    """The same questions, each time in caches of their own."""
    for number, turn in enumerate(cycle(turns)):
        yield (_in_cache(turn, f"again-{number}"),)


def asked_anyhow(turns: Sequence[Turn], chance: random.Random) -> Iterator[Dialogue]:
    """The same questions in any order, on any route, in few caches so that some of it is there already; some clients
    leave.
    """
    while True:
        turn = chance.choice(turns)
        pins = replace(
            turn.question.pins,
            cache_salt=f"again-{chance.randrange(40)}",
            route=chance.choice((None, None, Route.RELAY, Route.RELAY, Route.DIRECT)),
            handoff=chance.choice((None, HandoffMode.ONE_SHOT, HandoffMode.CATCH_UP)),
            handoff_after_tokens=chance.choice((None, 1, 15, 16, 17, 40)),
        )
        leaves_after = chance.uniform(0.05, 2.5) if chance.random() < 0.1 else None
        yield (replace(turn, question=replace(turn.question, pins=pins), leaves_after=leaves_after),)


def _in_cache(turn: Turn, salt: str) -> Turn:
    return replace(turn, question=replace(turn.question, pins=turn.question.pins.with_salt(salt)))


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of it all."""

    answers: int = 0
    refused: int = 0
    """503 before the first byte; each was asked again."""
    left: int = 0
    broke_off: list[str] = field(default_factory=list[str])
    """Ended by a typed error after the first token."""
    wrong: list[str] = field(default_factory=list[str])
    late: list[str] = field(default_factory=list[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    log: list[str] = field(default_factory=list[str])
    tokens_by_role: Counter[str] = field(default_factory=Counter[str])
    handoffs: int = 0
    longest_s: float = 0.0
    longest_gap_s: float = 0.0

    def as_object(self) -> dict[str, object]:
        names = ("answers", "refused", "left", "broke_off", "wrong", "late", "handoffs")
        return {
            **{name: getattr(self, name) for name in names},
            "faults": dict(sorted(self.faults.items())),
            "tokens_by_role": dict(sorted(self.tokens_by_role.items())),
            "longest_s": round(self.longest_s, 2),
            "longest_gap_s": round(self.longest_gap_s, 2),
        }


class System(Protocol):
    """Whatever is asked and hurt."""

    async def ask(self, question: Question, on_span: Callable[[ReceivedSpan], None]) -> ReceivedAnswer: ...

    async def inflict(self, fault: Any) -> None:
        """Does it, and returns when it has been undone."""
        ...

    async def until_well(self) -> None:
        """Waits until a new request would find everybody up."""
        ...


@dataclass(frozen=True, slots=True)
class LiveSystem:
    """A deployment as it is."""

    deployment: Live

    async def ask(self, question: Question, on_span: Callable[[ReceivedSpan], None]) -> ReceivedAnswer:
        return await self.deployment.ask(question, on_span)

    async def inflict(self, fault: Fault) -> None:
        await inflict(self.deployment, fault)

    async def until_well(self) -> None:
        await self.deployment.until_healthy()


class Chaos:
    """Clients beside faults. ``num_at_once`` faults overlap; with one, everything is well again before the next."""

    def __init__(self, system: System, *, num_clients: int, num_at_once: int, chance: random.Random) -> None:
        self.tally = Tally()
        self._system = system
        self._num_clients = num_clients
        self._num_at_once = num_at_once
        self._chance = chance
        self._began = time.monotonic()

    async def run(self, dialogues: Iterator[Dialogue], faults: Iterator[object], *, seconds: float) -> None:
        """Until the faults are all done, or ``seconds`` have passed, and those dialogues that had begun have ended."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            troubles = [group.create_task(self._trouble(faults, end)) for _ in range(self._num_at_once)]
            for _ in range(self._num_clients):
                group.create_task(self._client(dialogues, troubles))

    async def _trouble(self, faults: Iterator[object], end: float) -> None:
        for fault in faults:
            await asyncio.sleep(self._chance.uniform(0.1, 0.8))
            self._note(str(fault))
            await self._system.inflict(fault)
            self.tally.faults[type(fault).__name__] += 1
            if self._num_at_once == 1:
                await self._system.until_well()
            self._note(f"undone: {fault}")
            if time.monotonic() > end:
                return

    async def _client(self, dialogues: Iterator[Dialogue], troubles: Sequence[asyncio.Task[None]]) -> None:
        while not all(trouble.done() for trouble in troubles):
            for turn in next(dialogues):
                await self._ask(turn)

    def _note(self, what: str) -> None:
        self.tally.log.append(f"{time.monotonic() - self._began:7.2f} {what}")

    async def _ask(self, turn: Turn) -> None:
        began = time.monotonic()
        salt = turn.question.pins.cache_salt
        try:
            async with asyncio.timeout(turn.leaves_after or ANSWER_LIMIT):
                await self._ask_until_taken(turn)
        except TimeoutError:
            if turn.leaves_after is not None:
                self.tally.left += 1
                return
            self._note(f"LATE {salt}")
            self.tally.late.append(f"{salt}: nothing after {ANSWER_LIMIT:g} s")
        self.tally.longest_s = max(self.tally.longest_s, time.monotonic() - began)

    async def _ask_until_taken(self, turn: Turn) -> None:
        """A refusal before the first token is the documented error: the client asks again."""
        spans: list[ReceivedSpan] = []
        salt = turn.question.pins.cache_salt
        while True:
            try:
                answer = await self._system.ask(turn.question, spans.append)
            except Unavailable as refusal:
                assert not spans, "refused after it had begun"
                self.tally.refused += 1
                self._note(f"refused {salt}: {refusal}")
                await asyncio.sleep(min(refusal.retry_after_s, 0.5))
            except PddError as error:
                self._check(turn, spans, whole=False)
                self._note(f"BROKE OFF {salt} after {sum(len(s.token_ids) for s in spans)} tokens: {error}")
                self.tally.broke_off.append(f"{salt}: {error}")
                return
            else:
                self.tally.answers += 1
                self._check(turn, spans, whole=True)
                report = answer.report
                self.tally.tokens_by_role.update({role.value: n for role, n in report.tokens_by_role.items()})
                self.tally.handoffs += len(report.tokens_by_role) == 3
                return

    def _check(self, turn: Turn, spans: Sequence[ReceivedSpan], *, whole: bool) -> None:
        received = tuple(token for span in spans for token in span.token_ids)
        due = turn.expected if whole else turn.expected[: len(received)]
        if received != due:
            salt = turn.question.pins.cache_salt
            self._note(f"WRONG {salt}")
            self.tally.wrong.append(f"{salt}: {len(received)} tokens, not the {len(due)} that were due")
        times = [span.at for span in spans]
        gaps = [later - before for before, later in pairwise(times)]
        self.tally.longest_gap_s = max([self.tally.longest_gap_s, *gaps])
        for span, gap in zip(spans, gaps, strict=False):
            if gap > WORTH_A_NOTE:
                self._note(
                    f"gap of {gap:.1f} s after position {span.first_position} ({span.role}) of {turn.question.pins}"
                )


async def until_at_peace(deployment: Live) -> None:
    """Everybody is up again and nothing is held for anyone."""
    await until(lambda: all(r.phase is Phase.READY for r in deployment.deployment.roles), "every role", seconds=60)
    await deployment.until_healthy()
    await deployment.until_clean(seconds=30)


# By hand --------------------------------------------------------------------------------------------------------------


async def _soak(arguments: argparse.Namespace) -> int:
    chance = random.Random(arguments.seed)
    topology = _topology_of(arguments)
    async with live(topology, timing=QUICK_RESTARTS) as deployment:
        await deployment.until_healthy()
        chaos = Chaos(
            LiveSystem(deployment), num_clients=arguments.clients, num_at_once=arguments.at_once, chance=chance
        )
        if arguments.topology is None:
            dialogues, round_of = scripted_dialogues(topology, chance), one_of_each_fault
        else:
            turns = await in_peace(deployment, questions_at_borders(topology, chance, 24))
            dialogues, round_of = asked_anyhow(turns, chance), of_every_role
        try:
            await chaos.run(dialogues, endless(round_of, topology, chance), seconds=arguments.seconds)
            await until_at_peace(deployment)
        finally:
            if arguments.logs:
                _show_logs(deployment, chaos)
        restarts = {role.name: role.restarts for role in deployment.deployment.roles if role.restarts}
    print(json.dumps({**chaos.tally.as_object(), "restarts": restarts}, indent=2))
    return 1 if chaos.tally.wrong or chaos.tally.late else 0


def _topology_of(arguments: argparse.Namespace) -> Topology:
    if arguments.topology is None:
        return wide_scripted()
    topology = with_policy(packaged_topology(arguments.topology, rate=arguments.rate), relay_threshold_s=Seconds(0.1))
    router = msgspec.structs.replace(topology.router, trace_file=arguments.trace)
    topology = msgspec.structs.replace(topology, router=router)
    return doubled(topology) if arguments.double else topology


def _show_logs(deployment: Live, chaos: Chaos) -> None:
    print("\n".join(chaos.tally.log), file=sys.stderr)
    for name in deployment.names:
        print(f"--- {name}\n{deployment.log(name)}", file=sys.stderr)


def _main() -> int:
    parser = argparse.ArgumentParser(description="Soak a live deployment, scripted or real, under random faults.")
    parser.add_argument(
        "--topology", metavar="NAME", help="a packaged one or a file (default: two of everything, scripted)"
    )
    parser.add_argument("--double", action="store_true", help="two of each engine of that topology")
    parser.add_argument("--rate", type=float, help="of its line, in bit/s (default: its own)")
    parser.add_argument("--trace", metavar="FILE", help="the router's, with --topology")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=1, help="faults that overlap")
    parser.add_argument("--logs", action="store_true", help="show what happened, and every role's log")
    return asyncio.run(_soak(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(_main())
