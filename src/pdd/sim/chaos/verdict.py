"""Judges what clients got: against the one right answer, and against what could have served them.

An answer may break off, or not begin, only if nobody could have gone on with it. Who could is known: the simulation
broke them itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pdd.core.errors import CapacityExhausted, PddError, Unavailable
from pdd.core.ids import TokenId, WorkerId
from pdd.core.request import FinishReason, Role, Steering
from pdd.core.units import Seconds
from pdd.router.base import EmittedSpan, TokenRequest
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.sim.chaos.breakage import History
from pdd.sim.chaos.scene import FaultKind, Scene, Weather

STEADY = Seconds(13.0)
"""A broken-off answer tries everybody again for at least so long: whoever was whole throughout could have gone on."""
MEMORY = Seconds(20.0)
"""How long a worker that broke may be shunned after it is whole again, or is not known to be whole."""
PROMPTNESS = Seconds(28.0)
"""Nobody waits longer for a token while each role has a worker that is whole."""
_ROUTER = DriverSettings()
SLOW_PATIENCE = Seconds(_ROUTER.decode_patience + 2.0)
"""But an engine that is slow and full keeps newcomers in its own line until the router's patience with a
decoder ends.
"""
PREFILL_PATIENCE = Seconds(_ROUTER.prefill_patience + 100.0)
"""And an engine that says it is well, and is silent, may have a long prompt to compute."""


class Wrong(StrEnum):
    """What must never be."""

    LOST = "lost"
    """Tokens are missing: skipped, or not sent although somebody could have gone on."""
    DOUBLED = "doubled"
    REORDERED = "reordered"
    WRONG = "wrong"
    """Another token than the right one, or another end."""
    LEAKED = "leaked"
    """Something is still held when all is over."""
    HUNG = "hung"
    """Something never ends."""
    TURNED_AWAY = "turned_away"
    """Not begun although somebody could have served it, or refused without saying when to come back."""
    CRASHED = "crashed"
    """Something was raised or logged as an error that nobody foresaw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that must never be, in words."""

    wrong: Wrong
    what: str


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One request as its client saw it. Times are seconds since the world began."""

    request: TokenRequest
    opened_at: float
    expected: tuple[TokenId, ...]
    spans: list[EmittedSpan] = field(default_factory=list[EmittedSpan])
    last_at: float | None = None
    longest_wait: tuple[float, float] = (0.0, 0.0)
    """For a token: from when to when."""
    ended_at: float = 0.0
    error: PddError | None = None
    left: bool = False
    completed: bool = False

    @property
    def tokens(self) -> tuple[TokenId, ...]:
        return tuple(token for span in self.spans for token in span.tokens)

    def take(self, span: EmittedSpan, now: float) -> None:
        """A span has come."""
        self.spans.append(span)
        self._waited_until(now)
        self.last_at = now

    def end(self, now: float) -> None:
        """Nothing comes any more."""
        self._waited_until(now)
        self.ended_at = now

    def _waited_until(self, now: float) -> None:
        since = self.opened_at if self.last_at is None else self.last_at
        begin, end = self.longest_wait
        if now - since > end - begin:
            self.longest_wait = (since, now)

    @property
    def is_whole(self) -> bool:
        return bool(self.spans) and self.spans[-1].finish_reason is not None


def judge(attempt: Attempt, scene: Scene, history: History) -> list[Finding]:
    """Everything about an answer that must not be."""
    name = attempt.request.request_id
    findings = _judge_tokens(attempt)
    if attempt.error is not None:
        findings += _judge_failure(attempt, scene, history)
    elif not attempt.left:
        findings += _judge_end(attempt)
    findings += _judge_promptness(attempt, scene, history)
    return [Finding(wrong=finding.wrong, what=f"request {name}: {finding.what}") for finding in findings]


def _judge_tokens(attempt: Attempt) -> list[Finding]:
    """Every position once, in order, with the right token."""
    findings: list[Finding] = []
    seen: set[int] = set()
    due = 0
    for span in attempt.spans:
        for position, token in enumerate(span.tokens, start=span.first_position):
            if position in seen:
                findings.append(Finding(wrong=Wrong.DOUBLED, what=f"token {position} came twice"))
            elif position < due:
                findings.append(Finding(wrong=Wrong.REORDERED, what=f"token {position} came after {due - 1}"))
            elif position > due:
                findings.append(Finding(wrong=Wrong.LOST, what=f"token {due} is missing before {position}"))
            if position >= len(attempt.expected) or token != attempt.expected[position]:
                findings.append(Finding(wrong=Wrong.WRONG, what=f"token {position} of {span.role} is a wrong one"))
            seen.add(position)
            due = max(due, position + 1)
    return findings


def _judge_end(attempt: Attempt) -> list[Finding]:
    num_tokens, num_due = len(attempt.tokens), len(attempt.expected)
    if not attempt.is_whole:
        return [Finding(wrong=Wrong.LOST, what=f"it ended without a finish reason after {num_tokens} tokens")]
    if any(span.finish_reason is not None for span in attempt.spans[:-1]):
        return [Finding(wrong=Wrong.WRONG, what="it ended twice")]
    if attempt.completed:
        return []
    if num_tokens < num_due:
        return [Finding(wrong=Wrong.LOST, what=f"it ended after {num_tokens} of {num_due} tokens")]
    stopped = attempt.expected[-1] in attempt.request.stop_token_ids
    due = FinishReason.STOP if stopped else FinishReason.LENGTH
    if attempt.spans[-1].finish_reason is not due:
        return [Finding(wrong=Wrong.WRONG, what=f"its end is not {due}")]
    return []


def _judge_failure(attempt: Attempt, scene: Scene, history: History) -> list[Finding]:
    error = attempt.error
    if not isinstance(error, Unavailable):
        return [Finding(wrong=Wrong.CRASHED, what=f"{type(error).__name__}: {error}")]
    if error.retry_after_s <= 0:
        return [Finding(wrong=Wrong.TURNED_AWAY, what=f"no time to come back was named: {error}")]
    if attempt.spans:
        server = _could_go_on(attempt, scene, history)
        if server is None:
            return []
        what = f"it broke off after {len(attempt.tokens)} of {len(attempt.expected)} tokens although {server} was whole"
        return [Finding(wrong=Wrong.LOST, what=f"{what}: {error}")]
    if _may_be_refused(attempt, scene, history, error):
        return []
    return [Finding(wrong=Wrong.TURNED_AWAY, what=f"it was refused without need: {error}")]


def _judge_promptness(attempt: Attempt, scene: Scene, history: History) -> list[Finding]:
    """Who pins a route waits for it, however slow the line is; who reads slowly waits for itself."""
    since, until = attempt.longest_wait
    if scene.is_tight or attempt.request.steering != Steering():
        return []
    if until - since <= _longest_wait_allowed(scene):
        return []
    if not _whole_roles(scene, history, since, until).issuperset(Role):
        return []
    what = f"it waited for a token from {since:.1f} to {until:.1f} s although all could have been served"
    return [Finding(wrong=Wrong.HUNG, what=what)]


def _longest_wait_allowed(scene: Scene) -> Seconds:
    kinds = {fault.kind for fault in scene.faults}
    if FaultKind.ENGINE_HANGS_AT in kinds:
        return PREFILL_PATIENCE
    return SLOW_PATIENCE if FaultKind.ENGINE_SLOW in kinds else PROMPTNESS


def _could_go_on(attempt: Attempt, scene: Scene, history: History) -> WorkerId | None:
    """Who could have computed the next token, whatever its role."""
    until = attempt.ended_at
    since = min(attempt.last_at or until, until - STEADY) - MEMORY
    whole = (table.name for table in scene.topology.engines if history.was_whole(table.name, since, until))
    return next(whole, None)


def _may_be_refused(attempt: Attempt, scene: Scene, history: History, error: Unavailable) -> bool:
    """Where room is scarce, or prefill or main decode was broken lately: without it cluster A serves some, not all."""
    if scene.is_tight and isinstance(error, CapacityExhausted):
        return True
    if scene.weather is Weather.CALM:
        return False
    whole = _whole_roles(scene, history, attempt.opened_at, attempt.ended_at)
    return not {Role.PREFILL, Role.MAIN_DECODE} <= whole


def _whole_roles(scene: Scene, history: History, since: float, until: float) -> set[Role]:
    """Of which roles there was somebody to rely on all the time."""
    since -= MEMORY
    return {table.role for table in scene.topology.engines if history.was_whole(table.name, since, until)}
