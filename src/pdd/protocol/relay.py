"""One relayed request as a sans-IO state machine: events in, commands out. It never waits and knows no clock.

Call ``start()`` once, then ``receive(event)`` for whatever happens; carry out the returned commands in order. Commands
that ask (``AskRoute``, ``AskHandoff``) want ``RouteChosen`` or ``HandoffChosen`` back, at once.

Rules that hold whatever arrives, in whatever order:

1. Each output position is emitted once, in order, and the first emission wins.
2. At most one decoder runs at a time, and it was started from exactly the tokens emitted before it. Relay decode
   stops *before* the final batch goes to main decode: two overlapping decoders would neither converge nor agree in bf16.
3. Every start ends in done, lost or ``Stop``; every transfer in ready, failed or ``CancelReplication``, except the one
   to main decode when an answer ends: it goes on, so that the next turn hits there.
4. Nothing follows ``Finish`` or ``Fail``.

Each start and each transfer has its own attempt number. An event of an attempt that is no longer live is late or foreign
and is ignored; one that contradicts what a live attempt was asked makes that attempt lost.

Life of a request::

    prefill ──first token──► route? ──DIRECT──► wait for main's KV ─────────────────► main decode ──► finish
                               │  ▲                 │ asked again by timer                 ▲
                               │  └─────────────────┘                                      │
                               └────RELAY─► wait for relay's KV ─► relay decode ─ main's KV ready: hand-off?
                                                                        │   ├─ ONE_SHOT: stop relay ──┘
                                                                        │   └─ CATCH_UP: extend at main, ask again
                                                                        └─ finishes first ──► finish
    any decoder lost ──► another role that is not yet tried goes on from prompt + emitted tokens
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import assert_never

from pdd.core.errors import LocalProtocolError
from pdd.core.ids import TokenId
from pdd.core.request import FinishReason, HandoffMode, Role, Route
from pdd.core.units import Seconds


class Timer(StrEnum):
    """The two things a request ever waits for by the clock."""

    REROUTE = "reroute"
    """A waiting P-MD request is asked again whether it should relay."""
    RECOVER = "recover"
    """Every role was tried and lost; they are tried again."""


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
    """The transfer will not complete. The target's engine computes what it lacks."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """The engine of this attempt died, hung up, broke its contract, or could not be started."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUnavailable:
    """No engine of the attempt's role is up, so nothing was started."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChosen:
    """Answers ``AskRoute``."""

    route: Route


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
    | RouteChosen
    | HandoffChosen
    | TimerFired
    | AnswerComplete
    | ClientLeft
)

# Commands ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Order the prompt's blocks from prefill's node to ``target``'s node, and watch them arrive there."""

    attempt: int
    target: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReplication:
    """End that transfer, and release what it holds at its target."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDecode:
    """Generate at an engine of ``role`` from prompt + the first ``num_known`` output tokens, at most ``max_tokens`` more.

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
    """Send these tokens to the client. ``finish_reason`` is not here: ``Finish`` follows at once if they were the last."""

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

# State ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPlan:
    """What is fixed about a request when it starts.

    ``relay_cap``: relay decode emits at most so many tokens, then waits for main decode (None: no cap).
    ``relay_floor``: on route RELAY, main decode takes over only after relay decode emitted so many.
    ``prepare_relay``: send the prompt's KV to relay decode's node from the start; without it the request can't relay
    except after a failure.
    """

    num_prompt_tokens: int
    max_tokens: int
    stop_token_ids: frozenset[TokenId]
    prepare_relay: bool = True
    may_reroute: bool = True
    relay_cap: int | None = None
    relay_floor: int = 0
    reroute_interval: Seconds = Seconds(0.25)
    recovery_delay: Seconds = Seconds(1.0)
    max_prefill_attempts: int = 3
    max_recovery_rounds: int = 15
    max_decode_attempts: int = 64

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise LocalProtocolError(f"max_tokens is {self.max_tokens}; an answer has at least one token")
        if self.relay_cap is not None and self.relay_cap < max(1, self.relay_floor):
            raise LocalProtocolError(f"relay_cap is {self.relay_cap}; it must be at least 1 and relay_floor")


class _Progress(Enum):
    """Where a transfer is."""

    MOVING = auto()
    READY = auto()
    FAILED = auto()


@dataclass(slots=True)
class _Transfer:
    attempt: int
    progress: _Progress = _Progress.MOVING

    @property
    def settled(self) -> bool:
        """No more KV will come of it: its target can start, ready or not."""
        return self.progress is not _Progress.MOVING


@dataclass(frozen=True, slots=True)
class _Decoder:
    """The one engine whose tokens are emitted. It was asked for tokens up to position ``end``."""

    attempt: int
    role: Role
    end: int


@dataclass(frozen=True, slots=True)
class _Extend:
    attempt: int
    num_known: int


@dataclass(slots=True)
class _Recovery:
    """Who was tried since the last token, and how often everybody was."""

    tried: set[Role] = field(default_factory=set[Role])
    rounds: int = 0
    waiting: bool = False


RECOVERY_LADDER = (Role.RELAY_DECODE, Role.PREFILL, Role.MAIN_DECODE)
"""Who goes on when a decoder is lost: relay decode and prefill hold the prompt's KV nearby, main decode may not."""


class Relay:
    """The state machine. Not thread-safe; one object per request."""

    def __init__(self, plan: RelayPlan) -> None:
        self._plan = plan
        self._emitted: list[TokenId] = []
        self._last_attempt = 0
        self._started = False
        self._finished = False
        self._route: Route | None = None
        self._route_asked = False
        self._handoff_asked = False
        self._prefill_attempts = 0
        self._decoder: _Decoder | None = None
        self._extend: _Extend | None = None
        self._transfers: dict[Role, _Transfer] = {}
        self._num_eager = 0
        self._num_extended = 0
        self._previous_gap: int | None = None
        self._rounds = 0
        self._main_lost = False
        self._decode_attempts = 0
        self._recovery: _Recovery | None = None

    @property
    def emitted(self) -> tuple[TokenId, ...]:
        """All output tokens so far."""
        return tuple(self._emitted)

    @property
    def num_emitted(self) -> int:
        return len(self._emitted)

    @property
    def finished(self) -> bool:
        return self._finished

    def known_tokens(self, num_known: int) -> tuple[TokenId, ...]:
        """The first ``num_known`` output tokens: what a start of this machine refers to."""
        return tuple(self._emitted[:num_known])

    def start(self) -> list[Command]:
        """Begins the request. Call once, first."""
        if self._started:
            raise LocalProtocolError("a relay is started once")
        self._started = True
        return self._start_prefill()

    def receive(self, event: Event) -> list[Command]:
        """Takes one event; returns what to do, in order.

        Raises:
            LocalProtocolError: before ``start``, or for an answer to a question that was not asked.
        """
        if not self._started:
            raise LocalProtocolError("a relay must be started before it receives events")
        if self._finished:
            return []
        match event:
            case TokensDecoded():
                return self._on_tokens(event)
            case Extended():
                return self._on_extended(event.attempt)
            case TransferReady():
                return self._on_transfer(event.attempt, _Progress.READY)
            case TransferFailed():
                return self._on_transfer(event.attempt, _Progress.FAILED)
            case WorkerLost():
                return self._on_lost(event.attempt, unavailable=False)
            case WorkerUnavailable():
                return self._on_lost(event.attempt, unavailable=True)
            case RouteChosen():
                return self._on_route(event.route)
            case HandoffChosen():
                return self._on_handoff(event.mode)
            case TimerFired():
                return self._on_timer(event.timer)
            case AnswerComplete():
                return self._finish(FinishReason.STOP)
            case ClientLeft():
                return self._leave()
            case _:
                assert_never(event)

    # What events do ---------------------------------------------------------------------------------------------------

    def _on_tokens(self, event: TokensDecoded) -> list[Command]:
        decoder = self._decoder
        if decoder is None or event.attempt != decoder.attempt:
            return []
        fresh = self._fresh_tokens(event, decoder)
        if fresh is None:
            return [Stop(attempt=decoder.attempt), *self._lose_decoder(decoder)]
        commands: list[Command] = []
        if fresh:
            commands.append(self._emit(decoder, fresh))
            if decoder.role is Role.MAIN_DECODE:
                commands += self._release_relay()
        if fresh and fresh[-1] in self._plan.stop_token_ids:
            return commands + self._end_decoder(event, FinishReason.STOP)
        if event.finish_reason is FinishReason.STOP and event.end_position == self.num_emitted:
            return commands + self._end_decoder(event, FinishReason.STOP)
        if self.num_emitted == self._plan.max_tokens:
            return commands + self._end_decoder(event, FinishReason.LENGTH)
        if self.num_emitted == decoder.end:
            return commands + self._end_decoder(event, None)
        if event.finish_reason is not None:
            return commands + self._lose_decoder(decoder)  # it ended short of what it was asked for, or of what is out
        return commands + self._advance()

    def _fresh_tokens(self, event: TokensDecoded, decoder: _Decoder) -> tuple[TokenId, ...] | None:
        """The span's tokens that were not emitted yet, cut at a stop token and at what was asked for.

        None if the span leaves a gap or disagrees with what was emitted: then all that follows would be wrong.
        """
        overlap = self.num_emitted - event.first_position
        if overlap < 0 or event.first_position < 0:
            return None
        repeated = tuple(self._emitted[event.first_position : event.first_position + len(event.tokens)])
        if event.tokens[: len(repeated)] != repeated:
            return None
        fresh = event.tokens[overlap : overlap + decoder.end - self.num_emitted]
        for index, token in enumerate(fresh):
            if token in self._plan.stop_token_ids:
                return fresh[: index + 1]
        return fresh

    def _emit(self, decoder: _Decoder, tokens: tuple[TokenId, ...]) -> Emit:
        emit = Emit(attempt=decoder.attempt, role=decoder.role, first_position=self.num_emitted, tokens=tokens)
        if self._route is not None and decoder.role is not Role.MAIN_DECODE:
            self._num_eager += len(tokens)
        self._emitted.extend(tokens)
        self._recovery = None
        return emit

    def _end_decoder(self, event: TokensDecoded, reason: FinishReason | None) -> list[Command]:
        """The decoder has given all that it was asked for; ``reason`` if that completes the answer."""
        stop: list[Command] = [Stop(attempt=event.attempt)] if event.finish_reason is None else []
        self._decoder = None
        self._handoff_asked = False
        return stop + (self._advance() if reason is None else self._finish(reason))

    def _on_extended(self, attempt: int) -> list[Command]:
        extend = self._extend
        if extend is None or attempt != extend.attempt:
            return []
        self._extend = None
        self._num_extended = extend.num_known
        # Main decode now holds the prompt too, whatever became of the transfer.
        self._transfers[Role.MAIN_DECODE].progress = _Progress.READY
        return self._advance()

    def _on_transfer(self, attempt: int, progress: _Progress) -> list[Command]:
        for transfer in self._transfers.values():
            if transfer.attempt == attempt and not transfer.settled:
                transfer.progress = progress
                return self._advance()
        return []

    def _on_lost(self, attempt: int, *, unavailable: bool) -> list[Command]:
        if self._extend is not None and attempt == self._extend.attempt:
            self._extend = None
            self._main_lost = True
            return self._advance()
        decoder = self._decoder
        if decoder is None or attempt != decoder.attempt:
            return []
        if self._route is None and unavailable:
            self._decoder = None
            return self._fail("no prefill worker is up")
        return self._lose_decoder(decoder)

    def _lose_decoder(self, decoder: _Decoder) -> list[Command]:
        self._decoder = None
        if not self._emitted:
            return self._restart_prefill()
        self._handoff_asked = False
        if decoder.role is Role.MAIN_DECODE:
            self._main_lost = True
        self._recovery = self._recovery or _Recovery()
        self._recovery.tried.add(decoder.role)
        return self._advance()

    def _on_route(self, route: Route) -> list[Command]:
        if not self._route_asked:
            raise LocalProtocolError("a route was chosen that nobody asked for")
        self._route_asked = False
        self._route = route
        commands: list[Command] = []
        if route is Route.RELAY and Role.RELAY_DECODE not in self._transfers:
            commands.append(self._replicate(Role.RELAY_DECODE))
        commands += self._advance()
        if self._may_reroute():
            commands.append(SetTimer(timer=Timer.REROUTE, delay=self._plan.reroute_interval))
        return commands

    def _on_handoff(self, mode: HandoffMode) -> list[Command]:
        decoder = self._decoder
        if not self._handoff_asked or decoder is None:
            raise LocalProtocolError("a hand-off was chosen that nobody asked for")
        self._handoff_asked = False
        self._previous_gap = self._gap()
        match mode:
            case HandoffMode.ONE_SHOT:
                return [Stop(attempt=decoder.attempt), self._start_decode(Role.MAIN_DECODE)]
            case HandoffMode.CATCH_UP:
                self._rounds += 1
                self._extend = _Extend(self._next_attempt(), self.num_emitted)
                return [StartExtend(attempt=self._extend.attempt, num_known=self._extend.num_known)]
            case _:
                assert_never(mode)

    def _on_timer(self, timer: Timer) -> list[Command]:
        match timer:
            case Timer.REROUTE:
                return self._ask_route() if self._may_reroute() else []
            case Timer.RECOVER:
                if self._recovery is None or not self._recovery.waiting:
                    return []
                self._recovery.waiting = False
                self._recovery.tried.clear()
                return self._advance()
            case _:
                assert_never(timer)

    # What to do next --------------------------------------------------------------------------------------------------

    def _advance(self) -> list[Command]:
        """Starts whatever the present state calls for; nothing if something awaited is still under way."""
        if not self._emitted or self._route_asked or self._handoff_asked:
            return []
        if self._route is None:
            return self._ask_route()
        if self._decoder is not None:
            return self._consider_handoff(self._decoder)
        if self._main_lost and self._recovery is None:
            self._recovery = _Recovery()
        if self._recovery is not None:
            return self._recover(self._recovery)
        if self._main_may_start():
            return self._take_over()
        if self._route is Route.RELAY and self._relay_may_start():
            return [self._start_decode(Role.RELAY_DECODE)]
        return []

    def _consider_handoff(self, decoder: _Decoder) -> list[Command]:
        if decoder.role is Role.MAIN_DECODE or self._extend is not None or not self._main_may_start():
            return []
        self._handoff_asked = True
        return [AskHandoff(gap=self._gap(), previous_gap=self._previous_gap, rounds=self._rounds)]

    def _main_may_start(self) -> bool:
        main = self._transfers[Role.MAIN_DECODE]
        floor = self._plan.relay_floor if self._route is Route.RELAY else 0
        return main.settled and not self._main_lost and self._num_eager >= floor

    def _relay_may_start(self) -> bool:
        cap = self._plan.relay_cap
        relay = self._transfers.get(Role.RELAY_DECODE)
        return relay is not None and relay.settled and (cap is None or self._num_eager < cap)

    def _may_reroute(self) -> bool:
        """The client still waits for main decode's KV on route P-MD, and nobody is being asked already."""
        if self._route is not Route.DIRECT or not self._plan.may_reroute or self._route_asked:
            return False
        return self._decoder is None and self._recovery is None

    def _take_over(self) -> list[Command]:
        """Main decode starts with nobody decoding before it; an extend still under way has lost its purpose."""
        return [*self._stop_extend(), self._start_decode(Role.MAIN_DECODE)]

    def _recover(self, recovery: _Recovery) -> list[Command]:
        if recovery.waiting:
            return []
        if self._decode_attempts >= self._plan.max_decode_attempts:
            return self._fail("too many decoders were lost")
        if self._main_may_start():
            return self._take_over()
        for role in RECOVERY_LADDER:
            if role not in recovery.tried:
                return [self._start_decode(role)]
        if recovery.rounds >= self._plan.max_recovery_rounds:
            return self._fail("no worker is left that could go on")
        recovery.rounds += 1
        recovery.waiting = True
        return [SetTimer(timer=Timer.RECOVER, delay=self._plan.recovery_delay)]

    def _gap(self) -> int:
        """Tokens whose KV main decode would have to compute before its next token, the prompt's tail aside."""
        main = self._transfers[Role.MAIN_DECODE]
        missing_prompt = self._plan.num_prompt_tokens if main.progress is _Progress.FAILED else 0
        return missing_prompt + self.num_emitted - self._num_extended

    # Commands that change state ---------------------------------------------------------------------------------------

    def _next_attempt(self) -> int:
        self._last_attempt += 1
        return self._last_attempt

    def _start_prefill(self) -> list[Command]:
        """Standing orders go out before prefill begins, so that blocks leave as they appear."""
        self._prefill_attempts += 1
        targets = [Role.RELAY_DECODE] if self._plan.prepare_relay else []
        orders: list[Command] = [self._replicate(target) for target in (Role.MAIN_DECODE, *targets)]
        self._decoder = _Decoder(self._next_attempt(), Role.PREFILL, end=1)
        return [*orders, StartDecode(attempt=self._decoder.attempt, role=Role.PREFILL, num_known=0, max_tokens=1)]

    def _restart_prefill(self) -> list[Command]:
        """The next prefill has a node of its own to send from; even what is ready must be released, or it is held twice."""
        if self._prefill_attempts >= self._plan.max_prefill_attempts:
            return self._fail("prefill was lost too often")
        releases = [CancelReplication(attempt=transfer.attempt) for transfer in self._transfers.values()]
        return [*releases, *self._start_prefill()]

    def _replicate(self, target: Role) -> Replicate:
        transfer = _Transfer(self._next_attempt())
        self._transfers[target] = transfer
        return Replicate(attempt=transfer.attempt, target=target)

    def _start_decode(self, role: Role) -> StartDecode:
        self._decode_attempts += 1
        cap = self._plan.relay_cap if role is Role.RELAY_DECODE and self._recovery is None else None
        remaining = self._plan.max_tokens - self.num_emitted
        max_tokens = remaining if cap is None else min(remaining, cap - self._num_eager)
        self._decoder = _Decoder(self._next_attempt(), role, end=self.num_emitted + max_tokens)
        return StartDecode(attempt=self._decoder.attempt, role=role, num_known=self.num_emitted, max_tokens=max_tokens)

    def _ask_route(self) -> list[Command]:
        self._route_asked = True
        return [AskRoute()]

    def _stop_extend(self) -> list[Command]:
        if self._extend is None:
            return []
        attempt = self._extend.attempt
        self._extend = None
        return [Stop(attempt=attempt)]

    def _stop_engines(self) -> list[Command]:
        decoder, self._decoder = self._decoder, None
        stops: list[Command] = [] if decoder is None else [Stop(attempt=decoder.attempt)]
        return stops + self._stop_extend()

    def _release_relay(self) -> list[Command]:
        """Main decode has taken over: what relay decode's node holds for this request is wanted by others."""
        transfer = self._transfers.pop(Role.RELAY_DECODE, None)
        return [] if transfer is None else [CancelReplication(attempt=transfer.attempt)]

    def _cancel_transfers(self, targets: Iterable[Role]) -> list[Command]:
        return [
            CancelReplication(attempt=self._transfers[target].attempt)
            for target in targets
            if target in self._transfers and not self._transfers[target].settled
        ]

    def _finish(self, reason: FinishReason) -> list[Command]:
        """The transfer to main decode goes on, so that the next turn's prefix is there."""
        self._finished = True
        return [*self._stop_engines(), *self._cancel_transfers([Role.RELAY_DECODE]), Finish(reason=reason)]

    def _leave(self) -> list[Command]:
        self._finished = True
        return [*self._stop_engines(), *self._cancel_transfers(self._transfers), Finish(reason=None)]

    def _fail(self, why: str) -> list[Command]:
        self._finished = True
        return [*self._stop_engines(), *self._cancel_transfers(self._transfers), Fail(why=why)]
