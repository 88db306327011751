"""One relayed request as a sans-IO state machine: events in, commands out. It never waits and knows no clock.

Call ``start()`` once, then ``receive(event)`` for whatever happens; carry out the returned commands in order. Commands
that ask (``AskRoute``, ``AskHandoff``) want ``RouteChosen`` or ``HandoffChosen`` back, at once.

Rules that hold whatever arrives, in whatever order:

1. Each output position is emitted once, in order, and the first emission wins.
2. At most one decoder runs at a time, and it was started from exactly the tokens emitted before it. Relay decode
   stops *before* the final batch goes to main decode: two overlapping decoders would neither converge nor agree in bf16.
3. Every start ends in done, lost or ``Stop``; every transfer in ready, failed or ``CancelReplication``, except the one
   to main decode when an answer ends: it goes on, so that the next turn hits there.
4. Whoever else decodes, main decode is sought: a transfer to it that failed is made again, one that was lost with main
   decode goes to another, a bounded number of times. Only ``Route.RELAY_ONLY`` gives main decode up.
5. Nothing follows ``Finish`` or ``Fail``.

Each start and each transfer has its own attempt number. An event of an attempt that is no longer live is late or foreign
and is ignored; one that contradicts what a live attempt was asked makes that attempt lost.

Life of a request::

    prefill ──first token──► route? ──DIRECT──► wait for main's KV ─────────────────► main decode ──► finish
      │  ▲                     │  ▲                 │ asked again by timer                 ▲
      └──┘ held: no room       │  └─────────────────┘                                      │
                               └────RELAY─► wait for relay's KV ─► relay decode ─ main's KV ready: hand-off?
                                                                        │   ├─ ONE_SHOT: stop relay ──┘
                                                                        │   └─ CATCH_UP: extend at main, ask again
                                                                        └─ finishes first ──► finish
    any decoder lost ──► another role that is not yet tried goes on from prompt + emitted tokens
    main decode lost ──► the same, and a new transfer to main decode, a new hand-off
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import assert_never

from pdd.core.errors import LocalProtocolError
from pdd.core.ids import TokenId
from pdd.core.request import FinishReason, HandoffMode, Role, Route, SendClass
from pdd.core.units import Seconds
from pdd.protocol.relay_messages import (
    AnswerComplete,
    AskHandoff,
    AskRoute,
    CancelReplication,
    ClientLeft,
    Command,
    Demote,
    Emit,
    Event,
    Extended,
    Fail,
    Finish,
    HandoffChosen,
    PrefillHeld,
    PrefillResumed,
    Replicate,
    RouteChosen,
    SetTimer,
    StartDecode,
    StartExtend,
    Stop,
    Timer,
    TimerFired,
    TokensDecoded,
    TransferFailed,
    TransferReady,
    WorkerLost,
    WorkerUnavailable,
)

# State ---------------------------------------------------------------------------------------------------------------


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


class _Pause(Enum):
    """Why no prefill runs though there is no token yet."""

    NOBODY_UP = auto()
    HELD = auto()
    """Others go first."""


class _Awaited(Enum):
    """What a recovery waits for."""

    RELAY_KV = auto()
    ANYBODY = auto()


@dataclass(slots=True)
class _Recovery:
    """Who was tried since the last token, and how often everybody was."""

    tried: set[Role] = field(default_factory=set[Role])
    rounds: int = 0
    awaited: _Awaited | None = None
    relay_kv_awaited: bool = False
    """Relay decode's KV has had its chance to come."""


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
        self._prefill_losses = 0
        self._prefill_waits = 0
        self._pause: _Pause | None = None
        self._decoder: _Decoder | None = None
        self._extend: _Extend | None = None
        self._transfers: dict[Role, _Transfer] = {}
        self._relay_cap = plan.relay_cap
        self._num_eager = 0
        self._num_extended = 0
        self._previous_gap: int | None = None
        self._rounds = 0
        self._main_losses = 0
        self._detours = 0
        self._resends = 0
        self._resend_awaited = False
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
                return self._on_transfer(event.attempt, _Progress.FAILED, elsewhere=event.elsewhere)
            case WorkerLost():
                return self._on_lost(event.attempt, unavailable=False)
            case WorkerUnavailable():
                return self._on_lost(event.attempt, unavailable=True)
            case PrefillHeld() | PrefillResumed():
                return self._on_prefill_turn(event)
            case RouteChosen():
                return self._on_route(event)
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
            return commands + self._end_answer(event, FinishReason.STOP)
        if event.finish_reason is FinishReason.STOP and event.end_position == self.num_emitted:
            return commands + self._end_answer(event, FinishReason.STOP)
        if self.num_emitted == self._plan.max_tokens:
            return commands + self._end_answer(event, FinishReason.LENGTH)
        if self.num_emitted == decoder.end:
            return commands + self._end_part(event, decoder)
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

    def _end_answer(self, event: TokensDecoded, reason: FinishReason) -> list[Command]:
        return [*self._end_decoder(event), *self._finish(reason)]

    def _end_part(self, event: TokensDecoded, decoder: _Decoder) -> list[Command]:
        """Prefill has given its token, or relay decode all that it may: its room is wanted by others."""
        release = self._release_relay() if decoder.role is Role.RELAY_DECODE else []
        return [*self._end_decoder(event), *release, *self._advance()]

    def _end_decoder(self, event: TokensDecoded) -> list[Command]:
        self._decoder = None
        self._handoff_asked = False
        return [Stop(attempt=event.attempt)] if event.finish_reason is None else []

    def _on_extended(self, attempt: int) -> list[Command]:
        extend = self._extend
        if extend is None or attempt != extend.attempt:
            return []
        self._extend = None
        self._num_extended = extend.num_known
        # Main decode now holds the prompt too, whatever became of the transfer.
        self._transfers[Role.MAIN_DECODE].progress = _Progress.READY
        return self._advance()

    def _on_transfer(self, attempt: int, progress: _Progress, *, elsewhere: bool = False) -> list[Command]:
        for target, transfer in self._transfers.items():
            if transfer.attempt == attempt and not transfer.settled:
                transfer.progress = progress
                if elsewhere and self._detours < self._plan.max_detours:
                    self._detours += 1
                    return [self._replicate(target)]
                return self._on_relay_settled(progress) if target is Role.RELAY_DECODE else self._advance()
        return []

    def _on_relay_settled(self, progress: _Progress) -> list[Command]:
        """A relay that never got its KV is asked for its route again: relay decode may have had no room."""
        recovery = self._recovery
        if recovery is not None and recovery.awaited is _Awaited.RELAY_KV:
            recovery.awaited = None
        waits = self._decoder is None and recovery is None and not self._route_asked
        if progress is _Progress.FAILED and waits and self._route is Route.RELAY:
            return self._ask_route()
        return self._advance()

    def _on_lost(self, attempt: int, *, unavailable: bool) -> list[Command]:
        if self._extend is not None and attempt == self._extend.attempt:
            self._extend = None
            return [*self._lose_main(), *self._advance()]
        decoder = self._decoder
        if decoder is None or attempt != decoder.attempt:
            return []
        if self._route is None and unavailable:
            self._decoder = None
            return self._await_prefill()
        return self._lose_decoder(decoder)

    def _on_prefill_turn(self, event: PrefillHeld | PrefillResumed) -> list[Command]:
        """What a held prefill has computed stays cached. The transfers go on: one of them waits for room."""
        decoder = self._decoder
        if isinstance(event, PrefillResumed):
            return [self._begin_prefill()] if self._pause is _Pause.HELD else []
        if self._emitted or decoder is None:
            return []
        self._decoder, self._pause = None, _Pause.HELD
        return [Stop(attempt=decoder.attempt)]

    def _lose_decoder(self, decoder: _Decoder) -> list[Command]:
        self._decoder = None
        if not self._emitted:
            return self._restart_prefill()
        self._handoff_asked = False
        self._recovery = self._recovery or _Recovery()
        self._recovery.tried.add(decoder.role)
        orders = self._lose_main() if decoder.role is Role.MAIN_DECODE else []
        return [*orders, *self._advance()]

    def _lose_main(self) -> list[Command]:
        """What main decode held went with it. The prompt is sent again: to another, if there is one."""
        self._main_losses += 1
        self._num_extended, self._previous_gap, self._rounds = 0, None, 0
        old = self._transfers.pop(Role.MAIN_DECODE, None)
        commands: list[Command] = [] if old is None else [CancelReplication(attempt=old.attempt)]
        if self._main_losses <= self._plan.max_main_losses:
            commands.append(self._replicate(Role.MAIN_DECODE))
        return commands

    def _on_route(self, choice: RouteChosen) -> list[Command]:
        if not self._route_asked:
            raise LocalProtocolError("a route was chosen that nobody asked for")
        self._route_asked = False
        self._route = choice.route
        if self._plan.relay_cap is None and choice.relay_cap is not None:
            self._relay_cap = max(choice.relay_cap, self._plan.relay_floor, 1)
        commands = [*self._orders_for(choice.route), *self._advance()]
        if self._may_reroute():
            commands.append(SetTimer(timer=Timer.REROUTE, delay=self._plan.reroute_interval))
        return commands

    def _orders_for(self, route: Route) -> list[Command]:
        commands: list[Command] = []
        if route is not Route.DIRECT and Role.RELAY_DECODE not in self._transfers:
            commands.append(self._replicate(Role.RELAY_DECODE))
        main = self._transfers.get(Role.MAIN_DECODE)
        if route is not Route.RELAY_ONLY and main is None:
            commands.append(self._replicate(Role.MAIN_DECODE))
        if route is Route.RELAY_ONLY and main is not None and not main.settled:
            commands.append(Demote(attempt=main.attempt))
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
                return self._on_recovery_due()
            case Timer.RESEND:
                return self._on_resend_due()
            case _:
                assert_never(timer)

    def _on_resend_due(self) -> list[Command]:
        if not self._resend_awaited:
            return []
        self._resend_awaited = False
        return self._resend() if self._may_resend() else self._advance()

    def _on_recovery_due(self) -> list[Command]:
        if self._pause is _Pause.NOBODY_UP:
            return self._start_prefill()
        recovery = self._recovery
        if recovery is None or recovery.awaited is None:
            return []
        if recovery.awaited is _Awaited.ANYBODY:
            recovery.tried.clear()
        recovery.awaited = None
        return self._advance()

    # What to do next --------------------------------------------------------------------------------------------------

    def _advance(self) -> list[Command]:
        """Starts whatever the present state calls for; nothing if something awaited is still under way."""
        if not self._emitted or self._route_asked or self._handoff_asked:
            return []
        if self._route is None:
            return self._ask_route()
        if self._decoder is not None:
            return self._consider_handoff(self._decoder)
        if self._recovery is None and self._nobody_comes():
            self._recovery = _Recovery()
        if self._recovery is not None:
            return self._recover(self._recovery)
        if self._main_is_ready() or self._main_must_compute():
            return self._take_over()
        if self._route is not Route.DIRECT and self._relay_may_start():
            return [self._start_decode(Role.RELAY_DECODE)]
        return self._seek_main()

    def _consider_handoff(self, decoder: _Decoder) -> list[Command]:
        if decoder.role is Role.MAIN_DECODE or self._extend is not None:
            return []
        if not self._main_is_ready() and not self._main_is_given_up():
            return self._seek_main()
        self._handoff_asked = True
        return [AskHandoff(gap=self._gap(), previous_gap=self._previous_gap, rounds=self._rounds)]

    def _main_is_ready(self) -> bool:
        main = self._transfers.get(Role.MAIN_DECODE)
        return main is not None and main.progress is _Progress.READY and self._floor_is_reached()

    def _main_has_failed(self) -> bool:
        main = self._transfers.get(Role.MAIN_DECODE)
        return main is not None and main.progress is _Progress.FAILED and self._route is not Route.RELAY_ONLY

    def _main_must_compute(self) -> bool:
        """Nothing comes of the transfer, and nobody decodes or is about to: the client waits for main decode alone."""
        if not self._main_has_failed() or not self._floor_is_reached():
            return False
        relay = self._transfers.get(Role.RELAY_DECODE)
        return self._route is Route.DIRECT or relay is None or relay.progress is _Progress.FAILED

    def _main_is_given_up(self) -> bool:
        """Its KV was sent often enough: it has to compute the prompt, while another goes on or at once."""
        return self._main_has_failed() and self._floor_is_reached() and self._resends >= self._plan.max_resends

    def _may_resend(self) -> bool:
        """Another decodes, or will, and main decode's transfer has failed."""
        main_decodes = self._decoder is not None and self._decoder.role is Role.MAIN_DECODE
        return self._main_has_failed() and not main_decodes and self._resends < self._plan.max_resends

    def _seek_main(self) -> list[Command]:
        if self._resend_awaited or not self._may_resend():
            return []
        self._resend_awaited = True
        return [SetTimer(timer=Timer.RESEND, delay=self._plan.resend_delay)]

    def _resend(self) -> list[Command]:
        self._resends += 1
        return [self._replicate(Role.MAIN_DECODE)]

    def _floor_is_reached(self) -> bool:
        return self._route is Route.DIRECT or self._num_eager >= self._plan.relay_floor

    def _cap(self) -> int | None:
        """Only a relay that main decode takes over from is cut short."""
        return None if self._route is Route.RELAY_ONLY or self._recovery is not None else self._relay_cap

    def _nobody_comes(self) -> bool:
        """Main decode was lost too often, and relay decode has given what it might."""
        return Role.MAIN_DECODE not in self._transfers and Role.RELAY_DECODE not in self._transfers

    def _relay_may_start(self) -> bool:
        relay = self._transfers.get(Role.RELAY_DECODE)
        return relay is not None and relay.settled

    def _may_reroute(self) -> bool:
        """The client still waits for main decode's KV on route P-MD, and nobody is being asked already."""
        if self._route is not Route.DIRECT or not self._plan.may_reroute or self._route_asked:
            return False
        return self._decoder is None and self._recovery is None

    def _take_over(self) -> list[Command]:
        """Main decode starts with nobody decoding before it; an extend still under way has lost its purpose."""
        return [*self._stop_extend(), self._start_decode(Role.MAIN_DECODE)]

    def _recover(self, recovery: _Recovery) -> list[Command]:
        if self._decode_attempts >= self._plan.max_decode_attempts:
            return self._fail("too many decoders were lost")
        if self._main_is_ready() or self._extend is not None:
            return self._take_over()
        if recovery.awaited is not None:
            return self._seek_main()
        for role in RECOVERY_LADDER:
            if role not in recovery.tried:
                return self._try(role, recovery)
        if recovery.rounds >= self._plan.max_recovery_rounds:
            return self._fail("no worker is left that could go on")
        recovery.rounds += 1
        recovery.awaited = _Awaited.ANYBODY
        return [SetTimer(timer=Timer.RECOVER, delay=self._plan.recovery_delay), *self._seek_main()]

    def _try(self, role: Role, recovery: _Recovery) -> list[Command]:
        """Relay decode is given a moment to get the prompt: to send it is quicker than to compute it."""
        relay = self._transfers.get(Role.RELAY_DECODE)
        has_kv = relay is not None and relay.settled
        if role is not Role.RELAY_DECODE or has_kv or recovery.relay_kv_awaited:
            return [self._start_decode(role)]
        recovery.relay_kv_awaited, recovery.awaited = True, _Awaited.RELAY_KV
        order = [self._replicate(Role.RELAY_DECODE)] if relay is None else []
        return [*order, SetTimer(timer=Timer.RECOVER, delay=self._plan.recovery_delay)]

    def _gap(self) -> int:
        """Tokens whose KV main decode would have to compute before its next token, the prompt's tail aside."""
        missing_prompt = self._plan.num_prompt_tokens if self._main_has_failed() else 0
        return missing_prompt + self.num_emitted - self._num_extended

    # Commands that change state ---------------------------------------------------------------------------------------

    def _next_attempt(self) -> int:
        self._last_attempt += 1
        return self._last_attempt

    def _start_prefill(self) -> list[Command]:
        """Standing orders go out before prefill begins, so that blocks leave as they appear."""
        plan = self._plan
        wanted = ((Role.MAIN_DECODE, plan.prepare_main), (Role.RELAY_DECODE, plan.prepare_relay))
        orders: list[Command] = [self._replicate(target) for target, is_wanted in wanted if is_wanted]
        return [*orders, self._begin_prefill()]

    def _begin_prefill(self) -> StartDecode:
        self._pause = None
        self._decoder = _Decoder(self._next_attempt(), Role.PREFILL, end=1)
        return StartDecode(attempt=self._decoder.attempt, role=Role.PREFILL, num_known=0, max_tokens=1)

    def _restart_prefill(self) -> list[Command]:
        self._prefill_losses += 1
        if self._prefill_losses >= self._plan.max_prefill_attempts:
            return self._fail("prefill was lost too often")
        return [*self._release_transfers(), *self._start_prefill()]

    def _await_prefill(self) -> list[Command]:
        """Nobody is up: a process that restarts is back in a moment."""
        if self._prefill_waits >= self._plan.max_prefill_waits:
            return self._fail("no prefill worker is up")
        self._prefill_waits += 1
        self._pause = _Pause.NOBODY_UP
        return [*self._release_transfers(), SetTimer(timer=Timer.RECOVER, delay=self._plan.recovery_delay)]

    def _release_transfers(self) -> list[Command]:
        """The next prefill has a node of its own to send from; even what is ready must be released, or it is held twice."""
        releases: list[Command] = [CancelReplication(attempt=t.attempt) for t in self._transfers.values()]
        self._transfers.clear()
        return releases

    def _replicate(self, target: Role) -> Replicate:
        transfer = _Transfer(self._next_attempt())
        self._transfers[target] = transfer
        # An answer of one token ends at prefill: main decode gets its prompt for the next turn's sake.
        send_class = SendClass.BACKGROUND if self._plan.max_tokens == 1 else SendClass.NORMAL
        return Replicate(attempt=transfer.attempt, target=target, send_class=send_class)

    def _start_decode(self, role: Role) -> StartDecode:
        self._decode_attempts += 1
        cap = self._cap() if role is Role.RELAY_DECODE else None
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
        """What relay decode's node holds for this request is wanted by others."""
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
