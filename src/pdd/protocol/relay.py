"""One relayed request as a sans-IO state machine: events in, commands out. It never waits and knows no clock.

Call ``start()`` once, then ``receive(event)`` for whatever happens; carry out the returned commands in order. Commands
that ask (``AskRoute``, ``AskHandoff``) want ``RouteChosen`` or ``HandoffChosen`` back, at once.

Rules that hold whatever arrives, in whatever order:

1. Each output position is emitted once, in order, and the first emission wins.
2. At most one decoder runs at a time, and it was started from exactly the tokens emitted before it. Relay decode
   stops *before* the final batch goes to main: two overlapping decoders would neither converge nor agree in bf16.
3. Every start ends in done, lost or ``Stop``; every transfer in ready, failed or ``CancelReplication``, except the one
   to main decode when an answer ends: it goes on, so that the next turn hits there.
4. Whoever else decodes, main decode is sought: a transfer to it that failed is made again, one that was lost with main
   decode goes to another, a bounded number of times. Only ``Route.RELAY_ONLY`` gives main decode up.
5. Nothing follows ``Finish`` or ``Fail``.

Each start and each transfer has its own attempt number. An event of an attempt that no longer lives is late or foreign,
and is ignored; one that contradicts what a live attempt was asked makes that attempt lost.

A request is always in one phase of ``protocol.relay_phases``, and what follows is in the order of its life::

    Prefilling ──► AskingRoute ─DIRECT─► AwaitingMain ─────────────────────────────────────────► MainDecoding ──► Over
                     ▲  │                  │ asked again by timer                                  ▲
                     └──│──────────────────┘                                                       │ ONE_SHOT
                        └─RELAY─► AwaitingRelay ─► RelayDecoding ─main's KV ready─► AskingHandoff ─┤
                                                        ▲                                          │ CATCH_UP
                                                        └───────── main has extended ────────── Extending

A decoder that is lost is replaced from prompt + emitted tokens by another role that is not yet tried. With main decode
its KV is lost: there is a new transfer, then a new hand-off. ``docs/phases.md`` has every change of phase.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import assert_never

from pdd.core.errors import LocalProtocolError
from pdd.core.ids import TokenId
from pdd.core.request import FinishReason, HandoffMode, Role, Route, SendClass
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
    RelayPlan,
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
from pdd.protocol.relay_phases import (
    AskingHandoff,
    AskingRoute,
    AwaitingMain,
    AwaitingPrefill,
    AwaitingRelay,
    AwaitingRelayAgain,
    BackingOff,
    Capped,
    Decoder,
    Decoding,
    Extend,
    Extending,
    Held,
    MainDecoding,
    MainStarting,
    New,
    Over,
    Phase,
    Prefilling,
    RelayDecoding,
)

# State ---------------------------------------------------------------------------------------------------------------


class _Progress(Enum):
    """Where a transfer is."""

    MOVING = auto()
    READY = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transfer:
    attempt: int
    progress: _Progress = _Progress.MOVING

    @property
    def settled(self) -> bool:
        """No more KV will come of it: its target can start, ready or not."""
        return self.progress is not _Progress.MOVING


@dataclass(frozen=True, slots=True, kw_only=True)
class _CatchUp:
    """What main decode has extended so far. It is lost with main decode."""

    num_extended: int = 0
    previous_gap: int | None = None
    rounds: int = 0


@dataclass(slots=True, kw_only=True)
class _Tried:
    """Who was tried since the last token, and how often everybody was."""

    roles: set[Role] = field(default_factory=set[Role])
    rounds: int = 0
    relay_kv_awaited: bool = False
    """Relay decode's KV has had its chance to come."""


RECOVERY_LADDER = (Role.RELAY_DECODE, Role.PREFILL, Role.MAIN_DECODE)
"""Who goes on when a decoder is lost: relay decode and prefill hold the prompt's KV nearby, main decode may not."""


class Relay:
    """The state machine. Not thread-safe; one object per request."""

    def __init__(self, plan: RelayPlan) -> None:
        self._plan = plan
        self._phase: Phase = New()
        self._route: Route | None = None
        self._relay_cap = plan.relay_cap
        self._emitted: list[TokenId] = []
        self._num_eager = 0
        self._transfers: dict[Role, _Transfer] = {}
        self._catch_up = _CatchUp()
        self._tried = _Tried()
        self._resend_timer_runs = False  # no phase: it outlives even the transfer it was set for
        self._last_attempt = 0
        self._num_prefill_losses = 0
        self._num_prefill_waits = 0
        self._num_decodes = 0
        self._num_main_losses = 0
        self._num_resends = 0
        self._num_detours = 0

    def __repr__(self) -> str:
        """Where the request is: phase, tokens, route, transfers, and who decodes."""
        route = "no route yet" if self._route is None else f"route {self._route.value}"
        transfers = [f"KV to {to.value} {each.progress.name.lower()}" for to, each in self._transfers.items()]
        parts = [f"{self.num_emitted} of {self._plan.max_tokens} tokens", route, *transfers]
        if isinstance(self._phase, Decoding):
            decoder = self._phase.decoder
            parts.append(f"{decoder.role.value} decodes up to {decoder.end} (attempt {decoder.attempt})")
        return f"<Relay {self.phase}: {', '.join(parts)}>"

    @property
    def phase(self) -> str:
        """The name of the phase: a class of ``protocol.relay_phases``."""
        return type(self._phase).__name__

    @property
    def emitted(self) -> tuple[TokenId, ...]:
        """All output tokens so far."""
        return tuple(self._emitted)

    @property
    def num_emitted(self) -> int:
        return len(self._emitted)

    @property
    def finished(self) -> bool:
        return isinstance(self._phase, Over)

    def known_tokens(self, num_known: int) -> tuple[TokenId, ...]:
        """The first ``num_known`` output tokens: what a start of this machine refers to."""
        return tuple(self._emitted[:num_known])

    def start(self) -> list[Command]:
        """Begins the request. Call once, first."""
        if not isinstance(self._phase, New):
            raise LocalProtocolError("a relay is started once")
        return self._start_prefill()

    def receive(self, event: Event) -> list[Command]:
        """Takes one event; returns what to do, in order.

        Raises:
            LocalProtocolError: before ``start``, or for an answer to a question that was not asked.
        """
        if isinstance(self._phase, New):
            raise LocalProtocolError("a relay must be started before it receives events")
        if isinstance(self._phase, Over):
            return []
        match event:
            case TokensDecoded():
                return self._on_tokens(event)
            case Extended():
                return self._on_extended(event.attempt)
            case TransferReady() | TransferFailed():
                return self._on_transfer(event)
            case WorkerLost() | WorkerUnavailable():
                return self._on_lost(event)
            case PrefillHeld() | PrefillResumed():
                return self._on_prefill_turn(event)
            case RouteChosen():
                return self._on_route(event)
            case HandoffChosen():
                return self._on_handoff(event.mode)
            case TimerFired():
                return self._on_timer(event.timer)
            case AnswerComplete():
                return [*self._stop_engines(), *self._finish(FinishReason.STOP)]
            case ClientLeft():
                return [*self._stop_engines(), *self._end(self._transfers, Finish(reason=None))]
            case _:
                assert_never(event)

    # Events that more than one phase takes ----------------------------------------------------------------------------

    def _on_tokens(self, event: TokensDecoded) -> list[Command]:
        phase = self._phase
        if not isinstance(phase, Decoding) or event.attempt != phase.decoder.attempt:
            return []
        fresh = self._fresh_tokens(event, phase.decoder)
        if fresh is None:
            return [Stop(attempt=event.attempt), *self._lose_decoder(phase)]
        commands = self._emit(phase, fresh) if fresh else []
        if fresh and fresh[-1] in self._plan.stop_token_ids:
            return commands + self._end_answer(event, FinishReason.STOP)
        if event.finish_reason is FinishReason.STOP and event.end_position == self.num_emitted:
            return commands + self._end_answer(event, FinishReason.STOP)
        if self.num_emitted == self._plan.max_tokens:
            return commands + self._end_answer(event, FinishReason.LENGTH)
        if self.num_emitted == phase.decoder.end:
            return commands + self._end_part(event, phase)
        if event.finish_reason is not None:
            return commands + self._lose_decoder(phase)  # it ended short of what it was asked for, or of what is out
        return commands + self._advance()

    def _fresh_tokens(self, event: TokensDecoded, decoder: Decoder) -> tuple[TokenId, ...] | None:
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

    def _emit(self, phase: Decoding, tokens: tuple[TokenId, ...]) -> list[Command]:
        attempt, role = phase.decoder.attempt, phase.decoder.role
        emit = Emit(attempt=attempt, role=role, first_position=self.num_emitted, tokens=tokens)
        self._emitted.extend(tokens)
        self._tried = _Tried()
        match phase:
            case Prefilling():
                return [emit]
            case RelayDecoding() | AskingHandoff() | Extending():
                self._num_eager += len(tokens)
                return [emit]
            case MainStarting(decoder=decoder) | MainDecoding(decoder=decoder):
                self._phase = MainDecoding(decoder=decoder)
                return [emit, *self._release_relay()]
            case _:
                assert_never(phase)

    def _end_part(self, event: TokensDecoded, phase: Decoding) -> list[Command]:
        """Prefill has given its token, or relay decode all that it may."""
        stop = self._stop_decoder(event)
        return stop + (self._ask_route() if isinstance(phase, Prefilling) else self._cap_relay())

    def _on_transfer(self, event: TransferReady | TransferFailed) -> list[Command]:
        moving = {each.attempt: target for target, each in self._transfers.items() if not each.settled}
        target = moving.get(event.attempt)
        if target is None:
            return []
        failed = isinstance(event, TransferFailed)
        if failed and event.elsewhere and self._num_detours < self._plan.max_detours:
            self._num_detours += 1
            return [self._replicate(target)]
        progress = _Progress.FAILED if failed else _Progress.READY
        self._transfers[target] = _Transfer(attempt=event.attempt, progress=progress)
        match self._phase, target:
            case AwaitingRelay(), Role.RELAY_DECODE if failed and self._route is Route.RELAY:
                return self._ask_route()  # relay decode may have had no room
            case AwaitingRelayAgain(), Role.RELAY_DECODE:
                return self._recover()
            case MainStarting(decoder=decoder, awaited=AwaitingRelayAgain()), Role.RELAY_DECODE:
                self._phase = MainDecoding(decoder=decoder)
                return []
            case _:
                return self._advance()

    def _on_lost(self, event: WorkerLost | WorkerUnavailable) -> list[Command]:
        phase = self._phase
        if isinstance(phase, Extending) and event.attempt == phase.extend.attempt:
            self._phase = RelayDecoding(decoder=phase.decoder)
            return self._lose_main()
        if not isinstance(phase, Decoding) or event.attempt != phase.decoder.attempt:
            return []
        if isinstance(phase, Prefilling) and isinstance(event, WorkerUnavailable):
            return self._await_prefill()
        return self._lose_decoder(phase)

    def _on_timer(self, timer: Timer) -> list[Command]:
        match timer:
            case Timer.REROUTE:
                asks = isinstance(self._phase, AwaitingMain) and self._plan.may_reroute
                return self._ask_route() if asks else []
            case Timer.RECOVER:
                return self._on_recovery_due()
            case Timer.RESEND:
                return self._on_resend_due()
            case _:
                assert_never(timer)

    def _advance(self) -> list[Command]:
        """Starts whatever the phase allows by now; nothing if what it awaits is still under way."""
        match self._phase:
            case AwaitingMain() | Capped():
                return self._take_over() if self._transfers[Role.MAIN_DECODE].settled else []
            case AwaitingRelay():
                return self._await_relay()
            case RelayDecoding(decoder=decoder):
                return self._consider_handoff(decoder)
            case AwaitingRelayAgain() | BackingOff() as awaited if self._main_is_ready():
                return [self._decode(MainStarting(decoder=self._new_decoder(Role.MAIN_DECODE), awaited=awaited))]
            case AwaitingRelayAgain() | BackingOff():
                return self._seek_main()
            case New() | Prefilling() | Held() | AwaitingPrefill() | AskingRoute():
                return []
            case AskingHandoff() | Extending() | MainStarting() | MainDecoding() | Over():
                return []
            case _:
                assert_never(self._phase)

    # Prefill: Prefilling, Held, AwaitingPrefill -----------------------------------------------------------------------

    def _start_prefill(self) -> list[Command]:
        """Standing orders go out before prefill begins, so that blocks leave as they appear."""
        plan = self._plan
        wanted = ((Role.MAIN_DECODE, plan.prepare_main), (Role.RELAY_DECODE, plan.prepare_relay))
        orders: list[Command] = [self._replicate(target) for target, is_wanted in wanted if is_wanted]
        return [*orders, self._begin_prefill()]

    def _begin_prefill(self) -> StartDecode:
        return self._decode(Prefilling(decoder=Decoder(attempt=self._next_attempt(), role=Role.PREFILL, end=1)))

    def _on_prefill_turn(self, event: PrefillHeld | PrefillResumed) -> list[Command]:
        """What a held prefill has computed stays cached. The transfers go on: one of them waits for room."""
        match self._phase:
            case Prefilling(decoder=decoder) if isinstance(event, PrefillHeld):
                self._phase = Held()
                return [Stop(attempt=decoder.attempt)]
            case Held() if isinstance(event, PrefillResumed):
                return [self._begin_prefill()]
            case _:
                return []

    def _restart_prefill(self) -> list[Command]:
        self._num_prefill_losses += 1
        if self._num_prefill_losses >= self._plan.max_prefill_attempts:
            return self._fail("prefill was lost too often")
        return [*self._release_transfers(), *self._start_prefill()]

    def _await_prefill(self) -> list[Command]:
        """Nobody is up: a process that restarts is back in a moment."""
        if self._num_prefill_waits >= self._plan.max_prefill_waits:
            return self._fail("no prefill worker is up")
        self._num_prefill_waits += 1
        self._phase = AwaitingPrefill()
        return [*self._release_transfers(), SetTimer(timer=Timer.RECOVER, delay=self._plan.recovery_delay)]

    def _release_transfers(self) -> list[Command]:
        """The next prefill sends from a node of its own; even what is ready must be released, or it is held twice."""
        releases: list[Command] = [CancelReplication(attempt=t.attempt) for t in self._transfers.values()]
        self._transfers.clear()
        return releases

    # The route: AskingRoute, AwaitingMain, AwaitingRelay --------------------------------------------------------------

    def _ask_route(self) -> list[Command]:
        self._phase = AskingRoute()
        return [AskRoute()]

    def _on_route(self, choice: RouteChosen) -> list[Command]:
        if not isinstance(self._phase, AskingRoute):
            raise LocalProtocolError("a route was chosen that nobody asked for")
        self._route = choice.route
        if self._plan.relay_cap is None and choice.relay_cap is not None:
            self._relay_cap = max(choice.relay_cap, self._plan.relay_floor, 1)
        match choice.route:
            case Route.DIRECT:
                return self._await_main()
            case Route.RELAY:
                orders = [*self._order(Role.RELAY_DECODE), *self._order(Role.MAIN_DECODE)]
                return [*orders, *self._await_relay()]
            case Route.RELAY_ONLY:
                orders = [*self._order(Role.RELAY_DECODE), *self._demote_main()]
                return [*orders, *self._await_relay()]
            case _:
                assert_never(choice.route)

    def _await_main(self) -> list[Command]:
        orders = self._order(Role.MAIN_DECODE)
        if self._transfers[Role.MAIN_DECODE].settled:
            return [*orders, *self._take_over()]
        self._phase = AwaitingMain()
        if self._plan.may_reroute:
            orders.append(SetTimer(timer=Timer.REROUTE, delay=self._plan.reroute_interval))
        return orders

    def _await_relay(self) -> list[Command]:
        """Main decode goes first if it can, or if nothing came to either: then it can as well compute the prompt."""
        relay = self._transfers[Role.RELAY_DECODE]
        nothing_came = relay.progress is _Progress.FAILED and self._main_has_failed()
        if self._main_is_ready() or (nothing_came and self._floor_is_reached()):
            return self._take_over()
        if relay.settled:
            cap = None if self._route is Route.RELAY_ONLY else self._relay_cap
            return [self._decode(RelayDecoding(decoder=self._new_decoder(Role.RELAY_DECODE, cap)))]
        self._phase = AwaitingRelay()
        return self._seek_main()

    def _order(self, target: Role) -> list[Command]:
        """What was not sent ahead is sent now that the route needs it."""
        return [] if target in self._transfers else [self._replicate(target)]

    def _demote_main(self) -> list[Command]:
        main = self._transfers.get(Role.MAIN_DECODE)
        return [] if main is None or main.settled else [Demote(attempt=main.attempt)]

    # Relay decode: RelayDecoding, AskingHandoff, Extending, Capped ----------------------------------------------------

    def _consider_handoff(self, decoder: Decoder) -> list[Command]:
        """Also to a main decode that has to compute the prompt, after its KV was sent often enough."""
        given_up = self._main_has_failed() and self._num_resends >= self._plan.max_resends
        if not self._main_is_ready() and not (given_up and self._floor_is_reached()):
            return self._seek_main()
        self._phase = AskingHandoff(decoder=decoder)
        before = self._catch_up
        return [AskHandoff(gap=self._gap(), previous_gap=before.previous_gap, rounds=before.rounds)]

    def _on_handoff(self, mode: HandoffMode) -> list[Command]:
        if not isinstance(self._phase, AskingHandoff):
            raise LocalProtocolError("a hand-off was chosen that nobody asked for")
        decoder = self._phase.decoder
        match mode:
            case HandoffMode.ONE_SHOT:
                return [Stop(attempt=decoder.attempt), *self._take_over()]
            case HandoffMode.CATCH_UP:
                return [self._start_extend(decoder)]
            case _:
                assert_never(mode)

    def _start_extend(self, decoder: Decoder) -> StartExtend:
        self._catch_up = replace(self._catch_up, previous_gap=self._gap(), rounds=self._catch_up.rounds + 1)
        extend = Extend(attempt=self._next_attempt(), num_known=self.num_emitted)
        self._phase = Extending(decoder=decoder, extend=extend)
        return StartExtend(attempt=extend.attempt, num_known=extend.num_known)

    def _on_extended(self, attempt: int) -> list[Command]:
        match self._phase:
            case Extending(decoder=decoder, extend=extend) if attempt == extend.attempt:
                self._phase = RelayDecoding(decoder=decoder)
                self._catch_up = replace(self._catch_up, num_extended=extend.num_known)
                # Main decode now holds the prompt too, whatever became of the transfer.
                main = self._transfers[Role.MAIN_DECODE]
                self._transfers[Role.MAIN_DECODE] = replace(main, progress=_Progress.READY)
                return self._advance()
            case _:
                return []

    def _cap_relay(self) -> list[Command]:
        """Its room is wanted by others. Main decode goes on, or is waited for, unless it was lost too often."""
        release = self._release_relay()
        main = self._transfers.get(Role.MAIN_DECODE)
        if main is None:
            return [*release, *self._recover()]
        if main.settled:
            return [*release, *self._take_over()]
        self._phase = Capped()
        return release

    def _gap(self) -> int:
        """Tokens whose KV main decode would have to compute before its next token, the prompt's tail aside."""
        missing_prompt = self._plan.num_prompt_tokens if self._main_has_failed() else 0
        return missing_prompt + self.num_emitted - self._catch_up.num_extended

    def _floor_is_reached(self) -> bool:
        return self._route is Route.DIRECT or self._num_eager >= self._plan.relay_floor

    def _release_relay(self) -> list[Command]:
        """What relay decode's node holds for this request is wanted by others."""
        transfer = self._transfers.pop(Role.RELAY_DECODE, None)
        return [] if transfer is None else [CancelReplication(attempt=transfer.attempt)]

    # Main decode: MainDecoding, and how it is sought ------------------------------------------------------------------

    def _main_is_ready(self) -> bool:
        main = self._transfers.get(Role.MAIN_DECODE)
        return main is not None and main.progress is _Progress.READY and self._floor_is_reached()

    def _main_has_failed(self) -> bool:
        main = self._transfers.get(Role.MAIN_DECODE)
        return main is not None and main.progress is _Progress.FAILED and self._route is not Route.RELAY_ONLY

    def _take_over(self) -> list[Command]:
        """Main decode starts with nobody decoding before it; an extend still under way has lost its purpose."""
        return [*self._stop_extend(), self._decode(MainDecoding(decoder=self._new_decoder(Role.MAIN_DECODE)))]

    def _lose_main(self) -> list[Command]:
        """What main decode held went with it. The prompt is sent again: to another, if there is one."""
        self._num_main_losses += 1
        self._catch_up = _CatchUp()
        old = self._transfers.pop(Role.MAIN_DECODE, None)
        commands: list[Command] = [] if old is None else [CancelReplication(attempt=old.attempt)]
        if self._num_main_losses <= self._plan.max_main_losses:
            commands.append(self._replicate(Role.MAIN_DECODE))
        return commands

    def _seek_main(self) -> list[Command]:
        if self._resend_timer_runs or not self._may_resend():
            return []
        self._resend_timer_runs = True
        return [SetTimer(timer=Timer.RESEND, delay=self._plan.resend_delay)]

    def _may_resend(self) -> bool:
        """Another decodes, or will, and main decode's transfer has failed: a main that starts has its KV."""
        main_decodes = isinstance(self._phase, MainDecoding)
        return self._main_has_failed() and not main_decodes and self._num_resends < self._plan.max_resends

    def _on_resend_due(self) -> list[Command]:
        if not self._resend_timer_runs:
            return []
        self._resend_timer_runs = False
        if not self._may_resend():
            return self._advance()
        self._num_resends += 1
        return [self._replicate(Role.MAIN_DECODE)]

    # Recovery: AwaitingRelayAgain, BackingOff -------------------------------------------------------------------------

    def _lose_decoder(self, phase: Decoding) -> list[Command]:
        self._tried.roles.add(phase.decoder.role)
        match phase:
            case Prefilling():
                return self._restart_prefill()
            case RelayDecoding() | AskingHandoff() | Extending():
                return self._recover()
            case MainStarting() | MainDecoding():
                return [*self._lose_main(), *self._recover()]
            case _:
                assert_never(phase)

    def _recover(self) -> list[Command]:
        """Called while the phase is still the one in which somebody was lost, or in which a wait has ended."""
        if self._num_decodes >= self._plan.max_decode_attempts:
            return self._fail("too many decoders were lost")
        match self._phase:
            case Extending():  # main decode is at it already
                return self._take_over()
            case MainStarting(awaited=awaited):
                self._phase = awaited
                return []
            case _:
                return self._take_over() if self._main_is_ready() else self._try_next()

    def _try_next(self) -> list[Command]:
        for role in RECOVERY_LADDER:
            if role not in self._tried.roles:
                return self._try(role)
        if self._tried.rounds >= self._plan.max_recovery_rounds:
            return self._fail("no worker is left that could go on")
        self._tried.rounds += 1
        self._phase = BackingOff()
        return [SetTimer(timer=Timer.RECOVER, delay=self._plan.recovery_delay), *self._seek_main()]

    def _try(self, role: Role) -> list[Command]:
        relay = self._transfers.get(Role.RELAY_DECODE)
        has_kv = relay is not None and relay.settled
        if role is Role.RELAY_DECODE and not has_kv and not self._tried.relay_kv_awaited:
            self._tried.relay_kv_awaited = True
            self._phase = AwaitingRelayAgain()
            return [*self._order(role), SetTimer(timer=Timer.RECOVER, delay=self._plan.recovery_delay)]
        decoder = self._new_decoder(role)
        main_decodes = role is Role.MAIN_DECODE
        return [self._decode(MainDecoding(decoder=decoder) if main_decodes else RelayDecoding(decoder=decoder))]

    def _on_recovery_due(self) -> list[Command]:
        match self._phase:
            case AwaitingPrefill():
                return self._start_prefill()
            case AwaitingRelayAgain():
                return self._recover()
            case BackingOff():
                self._tried.roles.clear()
                return self._recover()
            case MainStarting(decoder=decoder, awaited=awaited):
                if isinstance(awaited, BackingOff):
                    self._tried.roles.clear()
                self._phase = MainDecoding(decoder=decoder)
                return []
            case _:
                return []

    # What every phase starts and stops --------------------------------------------------------------------------------

    def _next_attempt(self) -> int:
        self._last_attempt += 1
        return self._last_attempt

    def _replicate(self, target: Role) -> Replicate:
        transfer = _Transfer(attempt=self._next_attempt())
        self._transfers[target] = transfer
        # An answer of one token ends at prefill: main decode gets its prompt for the next turn's sake.
        send_class = SendClass.BACKGROUND if self._plan.max_tokens == 1 else SendClass.NORMAL
        return Replicate(attempt=transfer.attempt, target=target, send_class=send_class)

    def _new_decoder(self, role: Role, cap: int | None = None) -> Decoder:
        """After the first token. Only a relay that main decode takes over from is cut short, by ``cap``."""
        self._num_decodes += 1
        remaining = self._plan.max_tokens - self.num_emitted
        max_tokens = remaining if cap is None else min(remaining, cap)
        return Decoder(attempt=self._next_attempt(), role=role, end=self.num_emitted + max_tokens)

    def _decode(self, phase: Decoding) -> StartDecode:
        """Enters a phase with a new decoder: exactly what was emitted before is what it starts from."""
        self._phase = phase
        known, decoder = self.num_emitted, phase.decoder
        return StartDecode(attempt=decoder.attempt, role=decoder.role, num_known=known, max_tokens=decoder.end - known)

    def _stop_decoder(self, event: TokensDecoded) -> list[Command]:
        """It is done; if it did not say so itself, it is stopped."""
        return [Stop(attempt=event.attempt)] if event.finish_reason is None else []

    def _stop_extend(self) -> list[Command]:
        return [Stop(attempt=self._phase.extend.attempt)] if isinstance(self._phase, Extending) else []

    def _stop_engines(self) -> list[Command]:
        phase = self._phase
        decoder: list[Command] = [Stop(attempt=phase.decoder.attempt)] if isinstance(phase, Decoding) else []
        return decoder + self._stop_extend()

    # The end: Over ----------------------------------------------------------------------------------------------------

    def _end_answer(self, event: TokensDecoded, reason: FinishReason) -> list[Command]:
        return [*self._stop_decoder(event), *self._stop_extend(), *self._finish(reason)]

    def _finish(self, reason: FinishReason) -> list[Command]:
        """The transfer to main decode goes on, so that the next turn's prefix is there."""
        return self._end([Role.RELAY_DECODE], Finish(reason=reason))

    def _fail(self, why: str) -> list[Command]:
        return [*self._stop_extend(), *self._end(self._transfers, Fail(why=why))]

    def _end(self, targets: Iterable[Role], last: Finish | Fail) -> list[Command]:
        """What is still under way to ``targets`` is cancelled."""
        self._phase = Over()
        transfers = [self._transfers[target] for target in targets if target in self._transfers]
        return [*(CancelReplication(attempt=each.attempt) for each in transfers if not each.settled), last]
