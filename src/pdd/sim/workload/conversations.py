"""Generated traffic: conversations of agents, with the hit rates that were asked for.

Each turn draws how much of its prompt prefill shall find cached. If that is much, the turn goes on: its prompt is
prompt and answer of the turn before, and so much new text as the hit rate leaves room for. If it is little, or if the
prompt would grow too long, a new conversation begins: from one of its tenant's *stems* (a system prompt, a repository),
so much of it as the hit rate says, and new text.

Stems are asked about once, one by one, before the traffic begins, so that caches are as warm as in a system that has
run for long. At caches that lose nothing the hit rates of a run are the drawn ones (but for the answer of the turn
before, which only main decode has).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from math import exp
from random import Random

from pdd.core.errors import ConfigError
from pdd.core.ids import RequestId, TenantId, TokenId
from pdd.core.units import Seconds
from pdd.sim.workload.arrivals import Arrivals, arrival_times
from pdd.sim.workload.base import SOLE_TENANT, Run, SimRequest, Workload, num_tokens
from pdd.sim.workload.hits import SKEWED, HitRates, draw_hit_rate

_LEAST_HIT_TO_GO_ON = 0.8
"""A turn that hits less has nothing before it: agents add a little to much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lognormal: ``spread`` is the standard deviation of the logarithm (0: all the same); never beyond ``least``,
    ``most``.
    """

    mean: float
    spread: float = 0.0
    least: int = 1
    most: int

    def draw(self, chance: Random) -> int:
        factor = exp(chance.gauss(-(self.spread**2) / 2, self.spread)) if self.spread else 1.0
        return min(self.most, max(self.least, round(self.mean * factor)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Singular:
    """A ``share`` of requests that read very much anew and say very little. ``max_tokens`` where they promise that."""

    share: float
    hit_rates: HitRates
    answers: Lengths
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A tenant and its share of all conversations."""

    tenant: TenantId
    share: float


SOLE_TRAFFIC = (Traffic(tenant=SOLE_TENANT, share=1.0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSpec:
    """What to generate. ``first_prompts`` are those of conversations that begin; they grow up to its ``most``.

    ``num_conversations`` take turns, so a user's time between two turns is that number over the rate of arrivals, but
    at least ``think_s`` after the answer. Each of ``num_stems`` stems per tenant is asked about once in the
    ``warm_up_s`` before the first turn; those requests' ids begin with ``WARM_UP_PREFIX``.
    """

    name: str
    num_requests: int
    arrivals: Arrivals
    first_prompts: Lengths
    answers: Lengths
    hit_rates: HitRates = SKEWED
    singular: Singular | None = None
    max_tokens: int = 4096
    num_conversations: int = 1000
    num_stems: int = 8
    warm_up_s: Seconds = Seconds(60.0)
    think_s: Seconds = Seconds(1.0)
    traffic: tuple[Traffic, ...] = SOLE_TRAFFIC

    def __post_init__(self) -> None:
        if min(self.num_requests, self.num_conversations, self.num_stems) < 1:
            raise ConfigError(f"workload {self.name!r}: there must be at least one request, conversation and stem")
        self._check_answers(self.answers, self.max_tokens)
        if self.singular is not None:
            self._check_answers(self.singular.answers, self.singular.max_tokens or self.max_tokens)

    def _check_answers(self, answers: Lengths, max_tokens: int) -> None:
        if answers.most > max_tokens:
            raise ConfigError(f"workload {self.name!r}: answers of {answers.most} tokens exceed max_tokens")


WARM_UP_PREFIX = "stem-"


def is_warm_up(request_id: RequestId) -> bool:
    """Asked only so that caches hold what they would."""
    return request_id.startswith(WARM_UP_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """What chance decided about one turn."""

    request_id: RequestId
    arrival: Seconds
    hit_rate: float
    answer_tokens: int
    max_tokens: int


class _Text:
    """New text: runs of a token ID that nothing else has."""

    def __init__(self) -> None:
        self._next = count(1)

    def write(self, length: int) -> tuple[Run, ...]:
        return ((TokenId(next(self._next)), length),) if length else ()


def generate(spec: ConversationSpec, *, seed: int) -> Workload:
    """The same requests for the same ``seed``."""
    return Workload(name=spec.name, requests=tuple(_Generator(spec, seed).requests()))


def keep(runs: tuple[Run, ...], length: int) -> tuple[Run, ...]:
    """The first ``length`` tokens, or all if there are fewer."""
    kept: list[Run] = []
    for token, repeats in runs:
        if length <= 0:
            break
        kept.append((token, min(repeats, length)))
        length -= repeats
    return tuple(kept)


class _Generator:
    """Draws one workload."""

    def __init__(self, spec: ConversationSpec, seed: int) -> None:
        self._spec = spec
        self._chance = Random(seed)  # noqa: S311 (not for secrets)
        self._text = _Text()
        self._stems = {
            traffic.tenant: tuple(self._text.write(spec.first_prompts.most) for _ in range(spec.num_stems))
            for traffic in spec.traffic
        }

    def requests(self) -> Iterator[SimRequest]:
        yield from self._warm_up()
        spec = self._spec
        waiting: deque[SimRequest | None] = deque([None] * spec.num_conversations)
        for number, moment in enumerate(islice(arrival_times(spec.arrivals, self._chance), spec.num_requests)):
            turn = self._draw(RequestId(f"r{number}"), Seconds(spec.warm_up_s + moment))
            previous = waiting.popleft()
            request = None if previous is None else self._go_on(previous, turn)
            request = request or self._begin(turn)
            waiting.append(request)
            yield request

    def _warm_up(self) -> Iterator[SimRequest]:
        asked = [(tenant, stem) for tenant, stems in self._stems.items() for stem in stems]
        for number, (tenant, stem) in enumerate(asked):
            yield SimRequest(
                request_id=RequestId(f"{WARM_UP_PREFIX}{number}"),
                arrival=Seconds(self._spec.warm_up_s / 2 * number / len(asked)),
                prompt=stem,
                answer=self._text.write(max(2, self._spec.answers.least)),
                max_tokens=self._spec.max_tokens,
                tenant=tenant,
            )

    def _draw(self, request_id: RequestId, arrival: Seconds) -> _Turn:
        chance, singular = self._chance, self._spec.singular
        is_singular = singular is not None and chance.random() < singular.share
        kind = singular if is_singular and singular is not None else self._spec
        return _Turn(
            request_id=request_id,
            arrival=arrival,
            hit_rate=draw_hit_rate(kind.hit_rates, chance),
            answer_tokens=kind.answers.draw(chance),
            max_tokens=kind.max_tokens or self._spec.max_tokens,
        )

    def _go_on(self, previous: SimRequest, turn: _Turn) -> SimRequest | None:
        """The turn after ``previous``, or None if a new conversation must begin."""
        if turn.hit_rate < _LEAST_HIT_TO_GO_ON:
            return None
        past = (*previous.prompt, *previous.answer)
        new_tokens = max(1, round(previous.num_prompt_tokens / turn.hit_rate) - num_tokens(past))
        if num_tokens(past) + new_tokens > self._spec.first_prompts.most:
            return None
        return SimRequest(
            request_id=turn.request_id,
            arrival=turn.arrival,
            prompt=(*past, *self._text.write(new_tokens)),
            answer=self._text.write(turn.answer_tokens),
            max_tokens=turn.max_tokens,
            tenant=previous.tenant,
            after=previous.request_id,
            think_s=self._spec.think_s,
        )

    def _begin(self, turn: _Turn) -> SimRequest:
        spec, chance = self._spec, self._chance
        (traffic,) = chance.choices(spec.traffic, weights=[each.share for each in spec.traffic])
        length = spec.first_prompts.draw(chance)
        kept = round(length * turn.hit_rate)
        return SimRequest(
            request_id=turn.request_id,
            arrival=turn.arrival,
            prompt=(*keep(chance.choice(self._stems[traffic.tenant]), kept), *self._text.write(length - kept)),
            answer=self._text.write(turn.answer_tokens),
            max_tokens=turn.max_tokens,
            tenant=traffic.tenant,
        )
