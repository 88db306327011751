"""One generation request and the spans of tokens that answer it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pdd.core.ids import RequestId, Salt, TokenId


class Role(StrEnum):
    """What an engine does for a request. Any engine can do any of them; the topology says which it is meant for."""

    PREFILL = "prefill"
    RELAY_DECODE = "relay_decode"
    MAIN_DECODE = "main_decode"


class Route(StrEnum):
    """Which way a request takes after prefill."""

    DIRECT = "direct"
    """P-MD: the client waits for main decode."""
    RELAY = "relay"
    """P-RLD-MD: relay decode streams while the KV cache crosses the WAN."""
    RELAY_ONLY = "relay_only"
    """P-RLD: relay decode finishes the answer. Only for singular traffic, and while no main decode can be reached."""


class HandoffMode(StrEnum):
    """How eager tokens reach main decode."""

    ONE_SHOT = "one_shot"
    """Relay decode stops; main decode extends all of them at once."""
    CATCH_UP = "catch_up"
    """Main decode extends batch after batch while relay decode goes on; the last, small batch is a one-shot."""


class SendClass(StrEnum):
    """How urgent a transfer between KV nodes is."""

    NORMAL = "normal"
    BACKGROUND = "background"
    """Sent only while no normal block waits at the same sender."""


class FinishReason(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 is greedy; ``top_k`` None and ``top_p`` 1 keep the whole vocabulary.

    Noise is keyed by (``seed``, ``choice``, output position) and by nothing else, so that every engine draws the same
    at the same position (``engine.noise``). ``seed`` is in [0, 2**63).
    """

    temperature: float
    top_k: int | None
    top_p: float
    seed: int
    choice: int = 0


GREEDY = Sampling(temperature=0.0, top_k=None, top_p=1.0, seed=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """What the ``pdd`` field of a request pins, for tests and experts. None leaves the choice to the policies.

    ``route`` DIRECT never turns into a relay. ``handoff_after_tokens`` makes relay decode emit exactly that many tokens
    before a one-shot hand-off (at least that many before a catch-up one), even if main decode must be waited for.
    """

    route: Route | None = None
    handoff: HandoffMode | None = None
    handoff_after_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an engine is asked: go on after ``known_tokens`` (the prompt and the output so far) by at most
    ``max_tokens``.

    Output position 0 is the first token after the prompt, so this engine's first token has position
    ``len(known_tokens) - num_prompt_tokens``. ``attempt`` is unique within the request; it marks which start an event
    answers. An engine stops after emitting one of ``stop_token_ids`` (the token itself is emitted).
    """

    request_id: RequestId
    attempt: int
    known_tokens: tuple[TokenId, ...]
    num_prompt_tokens: int
    max_tokens: int
    stop_token_ids: frozenset[TokenId]
    sampling: Sampling
    salt: Salt

    @property
    def first_position(self) -> int:
        return len(self.known_tokens) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Consecutive output tokens from ``first_position`` on; ``finish_reason`` is set on the engine's last span only."""

    first_position: int
    tokens: tuple[TokenId, ...]
    finish_reason: FinishReason | None = None

    @property
    def end_position(self) -> int:
        return self.first_position + len(self.tokens)
