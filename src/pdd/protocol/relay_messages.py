"""What a relay is told, and what it commands: its plan, its events and its commands.

Each start and each transfer has an attempt number, unique within the request; events say which one they are of.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pdd.core.errors import LocalProtocolError
from pdd.core.ids import TokenId
from pdd.core.request import FinishReason, HandoffMode, Role, Route, SendClass
from pdd.core.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPlan:
    """What is fixed about a request when it starts.

    ``relay_cap``: relay decode emits at most so many tokens, then waits for main decode (None: no cap).
    ``relay_floor``: on route RELAY, main decode takes over only after relay decode emitted so many.
    ``prepare_main``, ``prepare_relay``: send the prompt's KV to that node from the start; otherwise it is sent when the
    route turns out to need it.
    """

    num_prompt_tokens: int
    max_tokens: int
    stop_token_ids: frozenset[TokenId]
    prepare_main: bool = True
    prepare_relay: bool = True
    may_reroute: bool = True
    relay_cap: int | None = None
    relay_floor: int = 0
    reroute_interval: Seconds = Seconds(0.25)
    recovery_delay: Seconds = Seconds(1.0)
    resend_delay: Seconds = Seconds(2.0)
    max_prefill_attempts: int = 3
    max_prefill_waits: int = 5
    max_main_losses: int = 3
    max_resends: int = 15
    max_detours: int = 3
    max_recovery_rounds: int = 15
    max_decode_attempts: int = 64

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise LocalProtocolError(f"max_tokens is {self.max_tokens}; an answer has at least one token")
        if self.relay_cap is not None and self.relay_cap < max(1, self.relay_floor):
            raise LocalProtocolError(f"relay_cap is {self.relay_cap}; it must be at least 1 and relay_floor")


class Timer(StrEnum):
    """What a request ever waits for by the clock."""

    REROUTE = "reroute"
    """A waiting P-MD request is asked again whether it should relay."""
    RECOVER = "recover"
    """Relay decode's KV was awaited, or every role was tried and lost, or no prefill was up: somebody is tried now."""
    RESEND = "resend"
    """The transfer to main decode failed while another decodes; it is made again."""


# Events --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensDecoded:
    """An engine sent output tokens from ``first_position`` on; ``finish_reason`` if it says they were its last."""

    attempt: int
    first_position: int
    tokens: tuple[TokenId, ...]
    finish_reason: FinishReason | None = None

    @property
    def end_position(self) -> int:
        return self.first_position + len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """Main decode holds the KV of all tokens that this extend gave it."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReady:
    """Every full block of the prompt is at the transfer's target, checked and leased."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFailed:
    """The transfer will not complete. The target's engine computes what it lacks, unless it may work ``elsewhere``:
    with another target of the same role.
    """

    attempt: int
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """The engine of this attempt died, hung up, broke its contract, or could not be started."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUnavailable:
    """No engine of the attempt's role is up, so nothing was started."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillHeld:
    """Main decode has no room for this request: others' prompts go first. Without effect after the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillResumed:
    """The prompt may be computed after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChosen:
    """Answers ``AskRoute``. ``relay_cap`` limits relay decode's part of the answer, unless the plan already does."""

    route: Route
    relay_cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffChosen:
    """Answers ``AskHandoff``."""

    mode: HandoffMode


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer set by ``SetTimer`` went off."""

    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComplete:
    """The front door found a stop string: the answer ends as emitted, the transfer to main decode goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLeft:
    """Nobody listens any more: everything is cancelled."""


Event = (
    TokensDecoded
    | Extended
    | TransferReady
    | TransferFailed
    | WorkerLost
    | WorkerUnavailable
    | PrefillHeld
    | PrefillResumed
    | RouteChosen
    | HandoffChosen
    | TimerFired
    | AnswerComplete
    | ClientLeft
)

# Commands ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Order the prompt's blocks from prefill's node to ``target``'s node, and watch them arrive there.

    In the class BACKGROUND nobody waits for them.
    """

    attempt: int
    target: Role
    send_class: SendClass = SendClass.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReplication:
    """End that transfer, and release what it holds at its target."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote:
    """Nobody waits for that transfer any more: it gets what lines have to spare, or is given up."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDecode:
    """Generate at an engine of ``role`` from prompt + ``num_known`` output tokens, at most ``max_tokens`` more.

    Prefill is this with ``role`` PREFILL, nothing known and one token.
    """

    attempt: int
    role: Role
    num_known: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartExtend:
    """Have main decode compute the KV of prompt + ``num_known`` output tokens while another decoder goes on."""

    attempt: int
    num_known: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Abort the generation or extend of this attempt."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """Send these tokens to the client. ``Finish`` follows at once if they were the last."""

    attempt: int
    role: Role
    first_position: int
    tokens: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRoute:
    """Decide the route now; prefill is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskHandoff:
    """Main decode can take over: decide how. ONE_SHOT is final.

    ``gap`` tokens would have to be extended in the final batch if it came now; ``previous_gap`` was the last batch
    (None before the first), ``rounds`` is how many batches were extended so far.
    """

    gap: int
    previous_gap: int | None
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Deliver ``TimerFired(timer)`` after ``delay``; replaces the same timer."""

    timer: Timer
    delay: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The request is over. ``reason`` None: the client left."""

    reason: FinishReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The request is over without a complete answer: no route to the next token is left."""

    why: str


Command = (
    Replicate
    | CancelReplication
    | Demote
    | StartDecode
    | StartExtend
    | Stop
    | Emit
    | AskRoute
    | AskHandoff
    | SetTimer
    | Finish
    | Fail
)
