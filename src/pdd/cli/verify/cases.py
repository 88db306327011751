"""What ``pdd verify`` tries, and when a trial counts as proof: pure values and comparisons.

A relay proves something only if it was one: relay decode emitted exactly as many tokens as it was told to (one-shot) or
main decode extended at least one batch while relay decode went on (catch-up), and main decode finished. Each trial has
a cache salt of its own; with a used one main decode would hold the eager tokens' KV already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pdd.cli.ask.conversation import Draw, Pins, ReceivedAnswer
from pdd.cli.ask.measure import count_extends, count_tokens
from pdd.core.ids import TokenId
from pdd.core.request import HandoffMode, Role, Route

if TYPE_CHECKING:  # numpy comes with it, and the command line shall be quick
    from pdd.cli.verify.near_ties import Rivals

ONE_SHOT_AFTER = (1, 2, 7, 15, 16, 17, 32, 33, 64, 100)
"""Around the lengths of blocks: 16 tokens on the wire, 32 in a cache of vLLM's."""
CATCH_UP_AFTER = 48
_TOKENS_OF_MAIN = 24
"""What main decode adds after a hand-off: enough to show a wrong KV cache."""
_CATCH_UP_TOKENS = 160
REFERENCE_TOKENS = _CATCH_UP_TOKENS
_PREFILL_TOKENS = 1


class Drawing(StrEnum):
    """How a trial's tokens are drawn."""

    GREEDY = "greedy"
    SEEDED = "seeded"


def draw_of(drawing: Drawing, *, seed: int) -> Draw:
    """The sampling parameters of a trial."""
    match drawing:
        case Drawing.GREEDY:
            return Draw()
        case Drawing.SEEDED:
            return Draw(temperature=0.8, top_k=50, top_p=0.95, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way of serving a prompt."""

    name: str
    pins: Pins
    max_tokens: int

    @property
    def is_relay(self) -> bool:
        return self.pins.route is Route.RELAY

    @property
    def is_race(self) -> bool:
        """Relay decode goes on while main decode catches up, and on a busy machine may be done first."""
        return self.pins.handoff is HandoffMode.CATCH_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One request whose answer is compared with the unbroken one."""

    prompt: int
    case: Case
    drawing: Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a trial ended. ``problem`` None: really served as asked, and exact or, if it differs, only from a near tie
    on.

    ``gap`` is how far apart the reference's two best tokens are at ``first_difference``, where that was asked.
    """

    trial: Trial
    relayed: bool
    problem: str | None = None
    first_difference: int | None = None
    gap: float | None = None

    @property
    def exact(self) -> bool:
        return self.problem is None and self.first_difference is None

    @property
    def near_tie(self) -> bool:
        return self.problem is None and self.first_difference is not None


def direct_case() -> Case:
    """P-MD."""
    return Case(name="direct", pins=Pins(route=Route.DIRECT), max_tokens=64)


def one_shot_case(after: int) -> Case:
    """P-RLD-MD: all eager tokens at once, after ``after`` of them."""
    pins = Pins(route=Route.RELAY, handoff=HandoffMode.ONE_SHOT, handoff_after_tokens=after)
    return Case(name=f"one_shot_{after}", pins=pins, max_tokens=_PREFILL_TOKENS + after + _TOKENS_OF_MAIN)


def catch_up_case() -> Case:
    """P-RLD-MD: in batches, while relay decode goes on."""
    pins = Pins(route=Route.RELAY, handoff=HandoffMode.CATCH_UP, handoff_after_tokens=CATCH_UP_AFTER)
    return Case(name="catch_up", pins=pins, max_tokens=_CATCH_UP_TOKENS)


def trials_of(prompt: int) -> Iterable[Trial]:
    """A prompt's trials: every case, greedy and seeded."""
    cases = (direct_case(), catch_up_case(), *map(one_shot_case, ONE_SHOT_AFTER))
    return (Trial(prompt=prompt, case=case, drawing=drawing) for drawing in Drawing for case in cases)


def count_requests(num_prompts: int) -> int:
    """How many requests the trials of ``num_prompts`` take, the unbroken engine's answers included."""
    return num_prompts * (len(Drawing) + len(list(trials_of(0))))


def judge(trial: Trial, answer: ReceivedAnswer, reference: Sequence[TokenId], rivals: Rivals | None = None) -> Outcome:
    """Compares token for token, and checks that the answer took the way that it was to prove.

    ``rivals`` are the reference's best tokens at the first difference. Without them any difference is a problem.
    """
    expected = reference[: trial.case.max_tokens]
    difference = first_difference(answer.token_ids, expected)
    why_not = why_not_served_as_asked(trial.case, answer)
    different = None if difference is None else _why_different(answer.token_ids, expected, difference, rivals)
    return Outcome(
        trial=trial,
        relayed=trial.case.is_relay and why_not is None,
        problem=different or why_not,
        first_difference=difference,
        gap=rivals.gap if rivals else None,
    )


def _why_different(
    tokens: Sequence[TokenId], expected: Sequence[TokenId], position: int, rivals: Rivals | None
) -> str | None:
    """None for a near tie; what comes after it can't be compared, but has to come."""
    if len(tokens) != len(expected):
        return f"differs from position {position} on, and has {len(tokens)} tokens instead of {len(expected)}"
    if rivals is None:
        return f"differs from position {position} on"
    why_not = rivals.why_no_near_tie(tokens[position], expected[position])
    return None if why_not is None else f"differs from position {position} on: {why_not}"


def first_difference(tokens: Sequence[TokenId], reference: Sequence[TokenId]) -> int | None:
    """The first position at which two sequences differ, an early end included; None if they are equal."""
    for position, (one, other) in enumerate(zip(tokens, reference, strict=False)):
        if one != other:
            return position
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def why_not_served_as_asked(case: Case, answer: ReceivedAnswer) -> str | None:
    """Why the answer proves nothing of ``case``, right though it may be; None if it does."""
    eager, main = count_tokens(answer, Role.RELAY_DECODE), count_tokens(answer, Role.MAIN_DECODE)
    if main == 0:
        return "main decode computed none of it"
    if not case.is_relay:
        return None if eager == 0 else f"relay decode computed {eager} tokens of a direct answer"
    after = case.pins.handoff_after_tokens or 0
    if case.pins.handoff is HandoffMode.CATCH_UP:
        return _why_no_catch_up(eager, after, count_extends(answer.report.events))
    return None if eager == after else f"not relayed as asked: relay decode computed {eager} tokens instead of {after}"


def _why_no_catch_up(eager: int, after: int, num_extends: int) -> str | None:
    if eager < after:
        return f"not relayed as asked: relay decode computed {eager} tokens, fewer than {after}"
    return None if num_extends else "not relayed as asked: nothing was extended while relay decode went on"
