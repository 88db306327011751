"""One simulated request, and the token IDs that it stands for.

Token IDs are kept as runs: what matters of a prompt is which part of it is the same as some other prompt's, so a
stretch of text is one token ID, repeated. A hundred thousand tokens of prompt are a handful of numbers until they are
asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.errors import ConfigError
from pdd.core.ids import RequestId, TenantId, TokenId
from pdd.core.request import Steering
from pdd.core.units import Seconds
from pdd.sim.workload.trace.report import TraceReport

Run = tuple[TokenId, int]
"""A token ID, and how often it is repeated."""

SOLE_TENANT = TenantId("local")

LONGEST = Seconds(366 * 86_400.0)
"""From the beginning to the last arrival: every second of it is simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRequest:
    """A client's request. ``answer`` is what any engine generates for it, whole; ``max_tokens`` is what is asked for.

    It is sent ``arrival`` seconds after the beginning, but never before ``after`` (an earlier request) has ended and
    ``think_s`` more have passed. The next turn of a conversation begins with prompt + answer of the one before.
    """

    request_id: RequestId
    arrival: Seconds
    prompt: tuple[Run, ...]
    answer: tuple[Run, ...]
    max_tokens: int
    tenant: TenantId = SOLE_TENANT
    after: RequestId | None = None
    think_s: Seconds = Seconds(0.0)
    steering: Steering = Steering()

    @property
    def num_prompt_tokens(self) -> int:
        return num_tokens(self.prompt)

    @property
    def num_answer_tokens(self) -> int:
        return num_tokens(self.answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in order of arrival, and where they come from. ``report`` is of a trace, None where it was generated."""

    name: str
    requests: tuple[SimRequest, ...]
    report: TraceReport | None = None

    @property
    def last_arrival(self) -> Seconds:
        return max(request.arrival for request in self.requests)


def num_tokens(runs: Sequence[Run]) -> int:
    """How many token IDs these runs stand for."""
    return sum(count for _, count in runs)


def expand(runs: Sequence[Run]) -> tuple[TokenId, ...]:
    """The token IDs themselves."""
    tokens: list[TokenId] = []
    for token, count in runs:
        tokens += [token] * count
    return tuple(tokens)


def check_length(name: str, duration: Seconds) -> None:
    """Raises ConfigError: a workload that asks for so long can't be simulated."""
    if not duration <= LONGEST:
        raise ConfigError(
            f"workload {name!r} asks for {duration / 86_400:.3g} days: at most {LONGEST / 86_400:g} can be simulated; "
            f"let it ask more often, or cut it"
        )
