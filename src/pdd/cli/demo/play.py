"""The three conversations of the demo, and what they must show.

Asks a router; prints through the given callbacks only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Protocol

from pdd.cli.ask.conversation import ChatMessage, Conversation, Pins, Question, ReceivedAnswer, SpanListener
from pdd.cli.ask.measure import (
    MAX_GAP_RATIO,
    MAX_SECOND_TURN_RATIO,
    HandoffBound,
    bound_handoff,
    measure,
    quick_gap,
    record_of,
)
from pdd.core.request import Route
from pdd.core.units import Bytes, Seconds

FEWEST_ANSWER_TOKENS = 318
MOST_ANSWER_TOKENS = 1200
_LEAD = 1.4
"""How much longer than the line's own time for the KV cache relay decode must have something to say,"""
_TOKENS_OF_MAIN = 64
"""and how much is left for main decode at least."""
_WARM_UP_TOKENS = 24
SECOND_ANSWER_TOKENS = 64
_SALT, _OTHER_SALT, _WARM_UP_SALT = "demo", "demo-without-relay", "demo-warm-up"


class Asker(Protocol):
    """What of the client the demo needs."""

    async def ask(self, question: Question, on_span: SpanListener | None = None) -> ReceivedAnswer: ...


class Stage(Protocol):
    """Who shows the runs as they happen."""

    def begin(self, name: str) -> SpanListener:
        """A run begins; returns who is told of its tokens."""
        ...

    def end(self, name: str, answer: ReceivedAnswer) -> None:
        """It is over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is said. ``second_message`` continues the conversation after the first answer."""

    first_message: str
    second_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The three answers."""

    relay: ReceivedAnswer
    direct: ReceivedAnswer
    second_turn: ReceivedAnswer

    @property
    def exact(self) -> bool:
        """The relay changed nothing: the same text, token for token."""
        same_text = self.relay.text == self.direct.text
        return same_text and self.relay.token_ids == self.direct.token_ids

    def __iter__(self) -> Iterator[tuple[str, ReceivedAnswer]]:
        yield from (("relay", self.relay), ("direct", self.direct), ("second_turn", self.second_turn))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise: what was measured, its bound, and whether it was kept. None: there was nothing to measure."""

    name: str
    value: float | None
    bound: float
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Everything the demo has to show."""

    relayed: Check
    second_token: Check
    second_turn: Check
    handoff: Check
    handoff_bound: HandoffBound | None
    exact: Check

    def __iter__(self) -> Iterator[Check]:
        yield from (self.relayed, self.second_token, self.second_turn, self.handoff, self.exact)


def load_script() -> Script:
    """The packaged text: a report, a question about it, and a short second message."""
    text = (files("pdd.cli") / "texts" / "demo.txt").read_text(encoding="utf-8")
    first, second = text.split("\n----\n")
    return Script(first_message=first.strip(), second_message=second.strip())


async def measure_pace(asker: Asker, *, model: str) -> Seconds:
    """The time of one token on this machine, from a short answer; it warms the engines up as well.

    Raises:
        PddError: the answer was refused or broke off.
    """
    hello = Conversation(messages=(ChatMessage(role="user", content="Please count to twenty."),))
    pins = Pins(cache_salt=_WARM_UP_SALT, route=Route.DIRECT)
    question = Question(prompt=hello, model=model, max_tokens=_WARM_UP_TOKENS, pins=pins, ignore_eos=True)
    return quick_gap(await asker.ask(question))


def choose_answer_tokens(*, crossing: Seconds, pace: Seconds) -> int:
    """How long the answers must be so that the KV cache, which crosses in ``crossing``, is there before they end."""
    if pace <= 0.0:
        return MOST_ANSWER_TOKENS
    needed = round(_LEAD * crossing / pace) + _TOKENS_OF_MAIN
    return min(MOST_ANSWER_TOKENS, max(FEWEST_ANSWER_TOKENS, needed))


async def play(asker: Asker, script: Script, *, model: str, answer_tokens: int, stage: Stage) -> Runs:
    """Runs the conversations one after the other. The first one's route is left to the router: it has to see the need.

    Raises:
        PddError: an answer was refused or broke off.
    """
    opening = (ChatMessage(role="user", content=script.first_message),)

    async def ask(name: str, question: Question) -> ReceivedAnswer:
        answer = await asker.ask(question, stage.begin(name))
        stage.end(name, answer)
        return answer

    first = Question(
        prompt=Conversation(messages=opening),
        model=model,
        max_tokens=answer_tokens,
        pins=Pins(cache_salt=_SALT),
        ignore_eos=True,
    )
    relay = await ask("relay", first)
    direct = await ask("direct", replace(first, pins=Pins(cache_salt=_OTHER_SALT, route=Route.DIRECT)))
    continued = (
        *opening,
        ChatMessage(role="assistant", content=relay.text),
        ChatMessage(role="user", content=script.second_message),
    )
    second = Question(
        prompt=Conversation(messages=continued),
        model=model,
        max_tokens=SECOND_ANSWER_TOKENS,
        pins=Pins(cache_salt=_SALT),
    )
    return Runs(relay=relay, direct=direct, second_turn=await ask("second_turn", second))


def judge(runs: Runs, *, round_trip: Seconds, block_tokens: int) -> Verdict:
    """Holds the measurements against their bounds."""
    bound = bound_handoff(runs.relay, round_trip=round_trip, block_tokens=block_tokens)
    gap = measure(runs.relay).handoff_gap
    return Verdict(
        relayed=Check(name="relayed", value=None, bound=0.0, kept=gap is not None),
        second_token=_ratio("second_token_gap_ratio", _second_gap(runs.relay), _second_gap(runs.direct), MAX_GAP_RATIO),
        second_turn=_ratio(
            "second_turn_bytes_ratio",
            runs.second_turn.report.wan_kv_bytes,
            runs.relay.report.wan_kv_bytes,
            MAX_SECOND_TURN_RATIO,
        ),
        handoff=Check(
            name="handoff_gap_s",
            value=gap,
            bound=bound.total if bound else 0.0,
            kept=gap is not None and bound is not None and gap <= bound.total,
        ),
        handoff_bound=bound,
        exact=Check(name="exact", value=None, bound=0.0, kept=runs.exact),
    )


def _second_gap(answer: ReceivedAnswer) -> Seconds | None:
    return measure(answer).second_token_gap


def _ratio(name: str, part: Seconds | Bytes | None, whole: Seconds | Bytes | None, bound: float) -> Check:
    value = part / whole if part is not None and whole else None
    return Check(name=name, value=value, bound=bound, kept=value is not None and value <= bound)


def record(runs: Runs, verdict: Verdict) -> dict[str, object]:
    """The demo as one JSON object. ``exact`` says of all runs whether the relay's text equals the direct one."""
    return {
        "runs": [record_of(name, answer) | {"exact": runs.exact} for name, answer in runs],
        "checks": {check.name: _record_check(check) for check in verdict},
    }


def _record_check(check: Check) -> dict[str, object]:
    record: dict[str, object] = {"ok": check.kept}
    if check.value is not None:
        record |= {"value": check.value, "bound": check.bound}
    return record
