"""A model of everything around one relay: engines on a pure next-token function, transfers, a client, and bad weather.

``World(relay_module, random, weather).run()`` plays one request to its end and checks every command against what it knows
itself; it raises ``Violation`` when a rule of the relay is broken. It never reads the relay's private state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import ModuleType
from typing import Any

from pdd.core.errors import LocalProtocolError
from pdd.core.request import FinishReason, HandoffMode, Role, Route

VOCABULARY = 997
MAX_STEPS = 4000


class Violation(AssertionError):
    """The relay broke one of its rules."""


def demand(condition: bool, rule: str) -> None:
    if not condition:
        raise Violation(rule)


def next_token(tokens: tuple[int, ...]) -> int:
    """A pure function of all tokens before it, so that any slip in what a decoder was started from shows."""
    state = 2166136261
    for token in tokens:
        state = ((state ^ (token + 1)) * 16777619) & 0xFFFFFFFF
    return (state ^ state >> 13) % VOCABULARY


@dataclass(frozen=True)
class Weather:
    """How bad it gets. ``faults`` bounds what goes wrong by chance, so that patience is always rewarded."""

    faults: int = 0
    hostile: float = 0.0
    leaving: float = 0.0
    completing: float = 0.0
    down: frozenset[Role] = frozenset()
    """Roles that no engine serves after the first token."""
    blackout: int = 0
    """After the first token nobody is up until this many recovery timers have fired."""


@dataclass
class Engine:
    """One started decoder or extend. ``stopped`` ones may still have spans under way to us."""

    attempt: int
    role: Role
    known: int
    budget: int
    is_extend: bool
    sent: int = 0
    alive: bool = True
    """Neither done, lost nor stopped."""
    speaking: bool = True
    """Still able to put late events on the wire."""


@dataclass
class Transfer:
    attempt: int
    target: Role
    state: str = "moving"
    released: bool = False

    @property
    def settled(self) -> bool:
        return self.state != "moving"


@dataclass
class Question:
    kind: str
    decoder: int | None


@dataclass
class World:
    """One request and its surroundings."""

    m: ModuleType
    random: Random
    weather: Weather
    plan: dict[str, Any]
    route: Route
    handoff: HandoffMode | None
    """None: any, by chance."""
    prompt: tuple[int, ...] = (11, 22, 33)
    emitted: list[int] = field(default_factory=list)
    engines: dict[int, Engine] = field(default_factory=dict)
    transfers: dict[int, Transfer] = field(default_factory=dict)
    timers: set[Any] = field(default_factory=set)
    questions: list[Question] = field(default_factory=list)
    past: list[Any] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    over: bool = False
    outcome: Any = None

    def __post_init__(self) -> None:
        self.relay = self.m.Relay(self.m.RelayPlan(num_prompt_tokens=len(self.prompt), **self.plan))
        m = self.m
        self.handlers: dict[type, Callable[[Any], None]] = {
            m.Replicate: self.on_replicate,
            m.CancelReplication: self.on_cancel_replication,
            m.StartDecode: self.on_start_decode,
            m.StartExtend: self.on_start_extend,
            m.Stop: self.on_stop,
            m.Emit: self.on_emit,
            m.AskRoute: self.on_ask_route,
            m.AskHandoff: self.on_ask_handoff,
            m.SetTimer: self.on_set_timer,
            m.Finish: self.on_finish,
            m.Fail: self.on_fail,
        }
        self.max_tokens: int = self.plan["max_tokens"]
        self.stops: frozenset[int] = self.plan["stop_token_ids"]
        self.reference, self.reason = self._reference()
        self.faults_left = self.weather.faults
        self.blackout = self.weather.blackout
        self.chosen_route: Route | None = None
        self.num_eager = 0
        self.num_extended = 0
        self.previous_gap: int | None = None
        self.rounds = 0
        self.prefills = 0
        self.decodes = 0
        self.failed = False
        self.main_lost = False
        self.lost_roles: set[Role] = set()
        self.recovering = False
        self.recovery_rounds = 0
        self.prefill_unavailable = False
        self.left = False
        self.completed = False
        self.route_questions = 0
        self.handing_over = False

    def _reference(self) -> tuple[tuple[int, ...], FinishReason]:
        answer: list[int] = []
        while len(answer) < self.max_tokens:
            answer.append(next_token((*self.prompt, *answer)))
            if answer[-1] in self.stops:
                return tuple(answer), FinishReason.STOP
        return tuple(answer), FinishReason.LENGTH

    # Running ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.carry_out(self.relay.start())
        for _ in range(MAX_STEPS):
            if self.over:
                break
            self.step()
        demand(self.over, "the request ends")
        self.check_end()
        for _ in range(6):
            demand(self.relay.receive(self.hostile_event()) == [], "nothing follows the end")
        demand(self.relay.finished, "it knows that it is over")

    def step(self) -> None:
        weather, random = self.weather, self.random
        if weather.hostile and random.random() < weather.hostile:
            self.hostile()
            if self.over:
                return
        if self.questions and not (weather.hostile and random.random() > 0.7):
            self.answer(self.questions.pop())
            return
        if weather.leaving and random.random() < weather.leaving:
            self.left = True
            self.feed(self.m.ClientLeft())
            return
        if weather.completing and random.random() < weather.completing:
            self.completed = True
            self.feed(self.m.AnswerComplete())
            return
        actors: list[Any] = [e for e in self.engines.values() if e.speaking]
        actors += [t for t in self.transfers.values() if t.state == "moving" and not t.released]
        actors += sorted(self.timers)
        demand(bool(actors or self.questions), "something is always awaited")
        actor = random.choice(actors or [None])
        if isinstance(actor, Engine):
            self.run_engine(actor)
        elif isinstance(actor, Transfer):
            self.run_transfer(actor)
        elif actor is not None:
            self.fire(actor)

    def answer(self, question: Question) -> None:
        if question.kind == "route":
            pinned = self.route if not self.plan["may_reroute"] else self.random.choice([self.route, *Route])
            self.chosen_route = pinned
            self.feed(self.m.RouteChosen(route=pinned))
        else:
            mode = self.handoff or self.random.choice(list(HandoffMode))
            if self.rounds > 6:
                mode = HandoffMode.ONE_SHOT
            self.expect_after_handoff(mode)

    def expect_after_handoff(self, mode: HandoffMode) -> None:
        self.previous_gap = self.gap()
        decoder = self.live_decoder()
        assert decoder is not None
        if mode is HandoffMode.CATCH_UP:
            self.rounds += 1
        self.handing_over = True
        self.feed(self.m.HandoffChosen(mode=mode))
        self.handing_over = False
        demand(decoder.alive == (mode is HandoffMode.CATCH_UP), "only a one-shot hand-off stops relay decode")
        demand((self.live_extend() is not None) == (mode is HandoffMode.CATCH_UP), "catch-up, and it only, extends")

    # Engines, transfers, timers ---------------------------------------------------------------------------------------

    def up(self, role: Role) -> bool:
        return not self.emitted or (role not in self.weather.down and not self.blackout)

    def run_engine(self, engine: Engine) -> None:
        if not engine.alive:
            self.late_engine(engine)
        elif engine.sent == 0 and not self.up(engine.role):
            self.lose(engine, self.m.WorkerUnavailable)
        elif self.faults_left and self.random.random() < 0.15:
            self.faults_left -= 1
            self.break_engine(engine)
        elif engine.is_extend:
            engine.alive = False
            self.num_extended = engine.known
            self.main_transfer().state = "ready"
            self.feed(self.m.Extended(attempt=engine.attempt))
        elif self.weather.completing and self.random.random() < self.weather.completing:
            self.stop_short(engine)
        else:
            self.speak(engine)

    def late_engine(self, engine: Engine) -> None:
        """It was stopped, lost or done; what it still says must change nothing."""
        engine.speaking = self.random.random() > 0.7
        kinds = [self.m.WorkerLost(attempt=engine.attempt), self.m.Extended(attempt=engine.attempt)]
        kinds.append(self.span(engine, 3, None))
        kinds.append(self.span(engine, 1, FinishReason.STOP))
        self.ignored(self.random.choice(kinds))

    def break_engine(self, engine: Engine) -> None:
        """It dies, or contradicts what is already known; either way it must not be believed any longer."""
        kind = self.random.choice(["lost", "unavailable", "gap", "negative", "wrong", "short", "stale end", "nothing"])
        if engine.is_extend or kind == "lost":
            return self.lose(engine, self.m.WorkerLost)
        if kind == "unavailable" and engine.sent == 0:
            return self.lose(engine, self.m.WorkerUnavailable)
        count = len(self.emitted)
        if kind == "gap":
            return self.contradict(engine, first=count + self.random.randint(1, 3), tokens=(1, 2), finish=None)
        if kind == "negative":
            return self.contradict(engine, first=-1, tokens=tuple(self.emitted[-1:]), finish=None)
        if kind == "wrong" and count:
            first = self.random.randrange(count)
            wrong = (*self.emitted[first:-1], self.emitted[-1] + 1, 5)
            return self.contradict(engine, first=first, tokens=wrong, finish=None)
        if kind == "stale end" and count > 1:
            return self.contradict(
                engine, first=0, tokens=tuple(self.emitted[:-1]), finish=self.random.choice(list(FinishReason))
            )
        if kind == "short" and engine.budget - engine.sent > 1:
            return self.fall_short(engine)
        return self.lose(engine, self.m.WorkerLost)

    def contradict(self, engine: Engine, *, first: int, tokens: tuple[int, ...], finish: FinishReason | None) -> None:
        if finish is not None:
            engine.alive = False
        self.note_loss(engine)
        event = self.m.TokensDecoded(attempt=engine.attempt, first_position=first, tokens=tokens, finish_reason=finish)
        before = len(self.emitted)
        self.feed(event)
        demand(len(self.emitted) == before, "nothing of a contradictory span is emitted")
        demand(not engine.alive, "a contradictory attempt is stopped")

    def fall_short(self, engine: Engine) -> None:
        """It says LENGTH before it gave what it was asked for: a lost attempt that still gave something."""
        count = self.random.randint(0, 1)
        if engine.known + engine.sent + count == len(self.reference):
            return self.speak(engine)
        event = self.span(engine, count, FinishReason.LENGTH)
        engine.sent += count
        engine.alive = False
        self.note_loss(engine, with_tokens=count > 0)
        self.feed(event)
        return None

    def lose(self, engine: Engine, kind: Any) -> None:
        engine.alive = False
        if kind is self.m.WorkerUnavailable and not self.emitted:
            self.prefill_unavailable = True
        self.note_loss(engine)
        self.feed(kind(attempt=engine.attempt))
        demand(self.over or not self.prefill_unavailable, "without any prefill it is over")

    def note_loss(self, engine: Engine, *, with_tokens: bool = False) -> None:
        self.failed = True
        self.main_lost |= engine.role is Role.MAIN_DECODE and bool(self.emitted)
        if not self.emitted or engine.is_extend:
            return
        if with_tokens:
            self.lost_after_tokens = engine.role
        else:
            self.lost_roles.add(engine.role)
            self.recovering = True

    lost_after_tokens: Role | None = None

    def span(self, engine: Engine, count: int, finish: FinishReason | None) -> Any:
        """``count`` tokens of the true answer from where the engine is, sometimes with some that it sent before."""
        tokens = list(self.prompt) + list(self.reference[: engine.known + engine.sent])
        fresh: list[int] = []
        for _ in range(count):
            fresh.append(next_token((*tokens, *fresh)))
        first = engine.known + engine.sent
        back = self.random.randint(0, first) if self.random.random() < 0.2 else 0
        return self.m.TokensDecoded(
            attempt=engine.attempt,
            first_position=first - back,
            tokens=(*self.reference[first - back : first], *fresh),
            finish_reason=finish,
        )

    def stop_short(self, engine: Engine) -> None:
        """The engine ends the answer of its own accord, with an empty last span."""
        engine.alive = False
        self.completed = True
        first = len(self.emitted)
        stop = FinishReason.STOP
        self.feed(self.m.TokensDecoded(attempt=engine.attempt, first_position=first, tokens=(), finish_reason=stop))
        demand(self.over, "an engine may end the answer")

    def speak(self, engine: Engine) -> None:
        """A span of one to four tokens; bursts may run past a stop token or past what was asked for."""
        left = min(engine.budget - engine.sent, len(self.reference) - engine.known - engine.sent)
        count = self.random.choice([1, 0, 1, 2, 4]) if self.random.random() < 0.9 else 30
        sloppy = self.random.random() < 0.3
        given = min(count, left)
        ends = given == left
        finish = None
        if ends and self.random.random() < 0.6:
            at_stop = self.reason is FinishReason.STOP and engine.known + engine.sent + given == len(self.reference)
            finish = FinishReason.STOP if at_stop or (sloppy and count > given) else FinishReason.LENGTH
        event = self.span(engine, count if sloppy else given, finish)
        engine.sent += given
        if finish is not None:
            engine.alive = False
        self.feed(event)
        demand(not (ends and engine.alive), "a decoder that gave all it was asked for is stopped")

    def run_transfer(self, transfer: Transfer) -> None:
        failing = self.faults_left and self.random.random() < 0.3
        if failing:
            self.faults_left -= 1
        transfer.state = "failed" if failing else "ready"
        kind = self.m.TransferFailed if failing else self.m.TransferReady
        self.feed(kind(attempt=transfer.attempt))

    def fire(self, timer: Any) -> None:
        self.timers.discard(timer)
        if timer is self.m.Timer.RECOVER:
            self.lost_roles.clear()
            self.blackout = max(0, self.blackout - 1)
        self.feed(self.m.TimerFired(timer=timer))

    # Hostility --------------------------------------------------------------------------------------------------------

    def hostile(self) -> None:
        """Something late, repeated, foreign or unasked; the relay must not even twitch."""
        if self.random.random() < 0.2:
            unasked = [self.m.RouteChosen(route=Route.RELAY), self.m.HandoffChosen(mode=HandoffMode.ONE_SHOT)]
            if self.questions:
                del unasked[0 if self.questions[0].kind == "route" else 1]
            self.refused(self.random.choice(unasked))
        elif self.random.random() < 0.2:
            self.early_timer()
        else:
            event = self.hostile_event()
            if not self.is_live(event):
                self.ignored(event)

    def early_timer(self) -> None:
        timer = self.random.choice(list(self.m.Timer))
        if timer in self.timers:
            self.fire(timer)
        elif timer is self.m.Timer.RECOVER or not self.may_ask_route_again():
            self.ignored(self.m.TimerFired(timer=timer))

    def hostile_event(self) -> Any:
        m, random = self.m, self.random
        if self.past and random.random() < 0.5:
            return random.choice(self.past)
        if random.random() < 0.3:
            return random.choice([m.TransferReady, m.TransferFailed])(attempt=random.choice(list(self.transfers)))
        attempt = random.randint(-1, max(self.used) + 2)
        kinds = [m.WorkerLost, m.WorkerUnavailable, m.Extended, m.TransferReady, m.TransferFailed]
        if random.random() < 0.6:
            return random.choice(kinds)(attempt=attempt)
        return m.TokensDecoded(
            attempt=attempt,
            first_position=random.choice([0, len(self.emitted), len(self.emitted) + 2, -1]),
            tokens=tuple(random.randrange(VOCABULARY) for _ in range(random.randint(0, 3))),
            finish_reason=random.choice([None, *FinishReason]),
        )

    def is_live(self, event: Any) -> bool:
        """Whether the relay rightly reacts to ``event`` now."""
        attempt = getattr(event, "attempt", None)
        if attempt is None:
            return True
        m = self.m
        if isinstance(event, (m.TransferReady, m.TransferFailed)):
            transfer = self.transfers.get(attempt)
            return transfer is not None and not transfer.settled and not transfer.released
        engine = self.engines.get(attempt)
        if engine is None or not engine.alive:
            return False
        if isinstance(event, m.Extended):
            return engine.is_extend
        return not (isinstance(event, m.TokensDecoded) and engine.is_extend)

    def ignored(self, event: Any) -> None:
        demand(self.relay.receive(event) == [], f"late and foreign events are ignored: {event}")

    def refused(self, event: Any) -> None:
        try:
            self.relay.receive(event)
        except LocalProtocolError:
            return
        raise Violation("an answer that nobody asked for is a programming error")

    # Checking commands ------------------------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        self.past.append(event)
        self.carry_out(self.relay.receive(event))

    def carry_out(self, commands: list[Any]) -> None:
        for command in commands:
            demand(not self.over, "nothing follows Finish or Fail")
            self.handlers[type(command)](command)
        self.lost_after_tokens = None
        self.check_rest()

    def on_replicate(self, command: Any) -> None:
        self.new_attempt(command.attempt)
        held = [t for t in self.transfers.values() if t.target is command.target and not t.released]
        demand(not held, "a target never holds the same request twice")
        demand(command.target is not Role.PREFILL, "prefill's node is the source")
        if self.chosen_route is not Route.RELAY and command.target is Role.RELAY_DECODE:
            demand(self.plan["prepare_relay"], "relay decode's node gets nothing that was not wanted")
        self.transfers[command.attempt] = Transfer(command.attempt, command.target)

    def on_cancel_replication(self, command: Any) -> None:
        transfer = self.transfers.get(command.attempt)
        demand(transfer is not None and not transfer.released, "only a transfer under way is cancelled, once")
        assert transfer is not None
        transfer.released = True
        demand(not (transfer.settled and self.left), "what is settled needs no cancelling")
        if transfer.target is Role.MAIN_DECODE:
            demand(not self.emitted or self.left or self.ending_in_failure(), "main's transfer goes on")
        else:
            main_emitted = self.last_role is Role.MAIN_DECODE
            ending = self.left or self.completed or self.answer_is_out() or self.ending_in_failure()
            demand(not self.emitted or main_emitted or ending, "relay decode's KV stays until main has decoded")

    last_role: Role | None = None

    def answer_is_out(self) -> bool:
        return tuple(self.emitted) == self.reference

    def ending_in_failure(self) -> bool:
        return self.live_decoder() is None

    def on_start_decode(self, command: Any) -> None:
        self.new_attempt(command.attempt)
        count = len(self.emitted)
        demand(self.live_decoder() is None, "one decoder at a time")
        demand(command.num_known == count, "a decoder starts from exactly the emitted tokens")
        demand(1 <= command.max_tokens <= self.max_tokens - count, "a budget is never exceeded")
        if count == 0:
            demand(command.role is Role.PREFILL and command.max_tokens == 1, "prefill gives one token")
            self.prefills += 1
            demand(self.prefills <= self.plan["max_prefill_attempts"], "prefill attempts are bounded")
            targets = {t.target for t in self.transfers.values() if not t.released}
            wanted = {Role.MAIN_DECODE} | ({Role.RELAY_DECODE} if self.plan["prepare_relay"] else set())
            demand(targets == wanted, "standing orders go out before prefill begins")
        else:
            self.check_decode_start(command)
        self.engines[command.attempt] = Engine(command.attempt, command.role, count, command.max_tokens, False)

    def check_decode_start(self, command: Any) -> None:
        self.drop_dead_questions()
        demand(not self.questions, "nothing starts while a question is open")
        self.decodes += 1
        in_bounds = self.decodes <= self.plan["max_decode_attempts"]
        demand(in_bounds or self.handing_over or not self.recovering, "replacements of lost decoders are bounded")
        role = command.role
        demand(role not in self.lost_roles, "a role that was lost is not tried again before the others")
        whole = self.max_tokens - len(self.emitted)
        if role is Role.MAIN_DECODE:
            demand(self.live_extend() is None, "main decode does not run beside its own extend")
            others_lost = {Role.PREFILL, Role.RELAY_DECODE} <= self.lost_roles
            demand(self.main_may_start() or others_lost, "main decode starts on readiness, or as the last")
        elif not self.recovering and not self.main_lost:
            # Nothing was lost since the last token.
            demand(role is Role.RELAY_DECODE, "prefill decodes only after a loss")
            demand(self.chosen_route is Route.RELAY, "relay decode is for route RELAY, or after a loss")
            demand(self.relay_settled(), "relay decode starts on readiness")
            demand(not self.main_may_start(), "whoever may start at main does")
            cap = self.plan["relay_cap"]
            whole = whole if cap is None else min(whole, cap - self.num_eager)
        else:
            demand(not self.main_may_start(), "main decode goes first if it may")
            order = [Role.RELAY_DECODE, Role.PREFILL]
            demand(role is next(r for r in order if r not in self.lost_roles), "the nearest goes on")
        demand(command.max_tokens == whole, "a decoder is asked for all that is left, or up to the cap")

    def on_start_extend(self, command: Any) -> None:
        self.new_attempt(command.attempt)
        decoder = self.live_decoder()
        demand(decoder is not None and decoder.role is not Role.MAIN_DECODE, "an extend runs beside another decoder")
        demand(self.live_extend() is None, "one extend at a time")
        demand(command.num_known == len(self.emitted), "an extend covers exactly what was emitted")
        self.engines[command.attempt] = Engine(command.attempt, Role.MAIN_DECODE, command.num_known, 1, True)

    def on_stop(self, command: Any) -> None:
        engine = self.engines.get(command.attempt)
        demand(engine is not None and engine.alive, "only what runs is stopped, once")
        assert engine is not None
        engine.alive = False

    def on_emit(self, command: Any) -> None:
        count = len(self.emitted)
        engine = self.engines.get(command.attempt)
        demand(engine is not None and engine.role is command.role, "tokens are attributed to who computed them")
        demand(bool(command.tokens), "an emission has tokens")
        demand(command.first_position == count, "each position is emitted once, in order")
        demand(command.tokens == self.reference[count : count + len(command.tokens)], "the reference answer comes out")
        if count and command.role is not Role.MAIN_DECODE:
            self.num_eager += len(command.tokens)
        self.emitted.extend(command.tokens)
        demand(self.relay.emitted == tuple(self.emitted), "it remembers what it emitted")
        self.last_role = command.role
        self.lost_roles = set() if self.lost_after_tokens is None else {self.lost_after_tokens}
        self.recovering = self.lost_after_tokens is not None
        self.recovery_rounds = 0

    def on_ask_route(self, _: Any) -> None:
        first = self.chosen_route is None
        self.route_questions += 1
        demand(bool(self.emitted) and not self.questions, "a route is asked after prefill, once at a time")
        demand(self.live_decoder() is None, "nobody decodes while a route is chosen")
        demand(first or self.may_ask_route_again(), "a route is asked again only while the client waits on P-MD")
        self.questions.append(Question("route", None))

    def may_ask_route_again(self) -> bool:
        waits = self.live_decoder() is None and not self.main_settled() and not self.recovering
        return self.chosen_route is Route.DIRECT and self.plan["may_reroute"] and waits and not self.questions

    def on_ask_handoff(self, command: Any) -> None:
        decoder = self.live_decoder()
        demand(decoder is not None and decoder.role is not Role.MAIN_DECODE, "only another decoder hands over")
        assert decoder is not None
        self.drop_dead_questions()
        demand(not self.questions, "one question at a time")
        demand(self.live_extend() is None, "no hand-off during an extend")
        demand(self.main_may_start(), "a hand-off is asked when main decode could take over")
        demand(command.gap == self.gap(), "the gap is what the final batch would be")
        demand(command.previous_gap == self.previous_gap and command.rounds == self.rounds, "history is told as it was")
        self.questions.append(Question("handoff", decoder.attempt))

    def on_set_timer(self, command: Any) -> None:
        if command.timer is self.m.Timer.REROUTE:
            demand(self.may_ask_route_again(), "the reroute timer runs while the client waits on P-MD")
            demand(command.delay == self.plan["reroute_interval"], "the reroute timer has its own interval")
        else:
            demand(self.lost_roles == set(Role), "recovery waits when everybody was tried")
            demand(command.delay == self.plan["recovery_delay"], "the recovery timer has its own delay")
            self.recovery_rounds += 1
            demand(self.recovery_rounds <= self.plan["max_recovery_rounds"], "recovery is bounded")
        self.timers.add(command.timer)

    def on_finish(self, command: Any) -> None:
        self.over, self.outcome = True, command
        if self.left:
            demand(command.reason is None, "a client that left gets no reason")
        elif self.completed:
            demand(command.reason is FinishReason.STOP, "a completed answer stopped")
        else:
            demand(self.answer_is_out(), "an answer is complete when it finishes")
            demand(command.reason is self.reason, "the reason is the reference's")

    def on_fail(self, command: Any) -> None:
        self.over, self.outcome = True, command
        if not self.emitted:
            bounded = self.prefills >= self.plan["max_prefill_attempts"]
            demand(bounded or self.prefill_unavailable, "only lost prefills fail a request before its first token")
            return
        exhausted = self.lost_roles == set(Role) and self.recovery_rounds >= self.plan["max_recovery_rounds"]
        demand(exhausted or self.decodes >= self.plan["max_decode_attempts"], "it fails only when nobody is left")

    def new_attempt(self, attempt: int) -> None:
        demand(attempt not in self.used, "each start has its own attempt number")
        self.used.add(attempt)

    # Checking state ---------------------------------------------------------------------------------------------------

    def live_decoder(self) -> Engine | None:
        return next((e for e in self.engines.values() if e.alive and not e.is_extend), None)

    def live_decoder_attempt(self) -> int | None:
        decoder = self.live_decoder()
        return None if decoder is None else decoder.attempt

    def live_extend(self) -> Engine | None:
        return next((e for e in self.engines.values() if e.alive and e.is_extend), None)

    def main_transfer(self) -> Transfer:
        return next(t for t in reversed(self.transfers.values()) if t.target is Role.MAIN_DECODE)

    def main_settled(self) -> bool:
        return self.main_transfer().settled

    def relay_settled(self) -> bool:
        return any(t.target is Role.RELAY_DECODE and t.settled and not t.released for t in self.transfers.values())

    def floor_reached(self) -> bool:
        return self.chosen_route is not Route.RELAY or self.num_eager >= self.plan["relay_floor"]

    def main_may_start(self) -> bool:
        return self.main_settled() and not self.main_lost and self.floor_reached()

    def gap(self) -> int:
        prompt = len(self.prompt) if self.main_transfer().state == "failed" else 0
        return prompt + len(self.emitted) - self.num_extended

    def drop_dead_questions(self) -> None:
        """How to hand over is no question any more when the decoder it was about is gone."""
        live = self.live_decoder_attempt()
        self.questions = [q for q in self.questions if q.kind == "route" or q.decoder == live]

    def check_rest(self) -> None:
        """Between events: whatever could go on does, and whatever it awaits is really under way."""
        if self.over:
            return
        self.drop_dead_questions()
        relay_held = any(t.target is Role.RELAY_DECODE and not t.released for t in self.transfers.values())
        demand(not relay_held or self.last_role is not Role.MAIN_DECODE, "main's tokens release relay decode's KV")
        if self.questions:
            return
        decoder = self.live_decoder()
        if decoder is not None:
            hands_over = decoder.role is not Role.MAIN_DECODE and self.live_extend() is None and bool(self.emitted)
            demand(not (hands_over and self.main_may_start()), "a hand-off is asked as soon as main decode could start")
            return
        demand(self.live_extend() is None, "an extend never outlives the decoder beside it")
        if self.m.Timer.RECOVER in self.timers and self.lost_roles == set(Role):
            return
        demand(not self.recovering and not self.main_lost, "after a loss somebody goes on")
        demand(not self.main_may_start(), "main decode starts as soon as it may")
        if self.chosen_route is Route.RELAY:
            cap = self.plan["relay_cap"]
            capped = cap is not None and self.num_eager >= cap
            demand(capped or not self.relay_settled(), "relay decode starts as soon as it may")
        elif self.plan["may_reroute"]:
            demand(self.m.Timer.REROUTE in self.timers, "a waiting P-MD request is asked again")

    def check_end(self) -> None:
        m = self.m
        demand(not any(e.alive for e in self.engines.values()), "every start ends in done, lost or Stop")
        answered = isinstance(self.outcome, m.Finish) and self.outcome.reason is not None
        for transfer in self.transfers.values():
            goes_on = answered and transfer.target is Role.MAIN_DECODE and transfer is self.main_transfer()
            if goes_on:
                demand(not transfer.released, "main's transfer goes on after an answer")
            else:
                demand(transfer.settled or transfer.released, "every transfer ends")
        if isinstance(self.outcome, m.Fail) and self.emitted:
            demand(self.tight(), "an answer that began is completed while any role is up")
        relays = [e for e in self.engines.values() if e.role is Role.RELAY_DECODE]
        pinned_direct = self.chosen_route is Route.DIRECT and not self.plan["may_reroute"]
        if pinned_direct and not self.failed:
            demand(not relays, "a pinned P-MD request never relays")
            demand(self.route_questions == 1, "a pinned route is asked once")

    def tight(self) -> bool:
        """Whether this plan's bounds are so small that weather alone can exhaust them."""
        rounds, decodes = self.plan["max_recovery_rounds"], self.plan["max_decode_attempts"]
        return self.weather.blackout > rounds or self.weather.down == set(Role) or decodes < 60


def random_world(m: ModuleType, random: Random, weather: Weather, **pinned: Any) -> World:
    """A request of any shape under ``weather``; ``pinned`` fixes parts of its plan."""
    cap = random.choice([None, None, 1, 3, 8])
    floor = random.choice([0, 0, 1, 3])
    plan = {
        "max_tokens": random.choice([1, 2, 5, 17, 40]),
        "stop_token_ids": frozenset(range(0, VOCABULARY, random.choice([15, 60, 2000]))) - {0},
        "prepare_relay": random.random() < 0.8,
        "may_reroute": random.random() < 0.6,
        "relay_cap": None if cap is None else max(cap, floor),
        "relay_floor": floor,
        "reroute_interval": 0.25,
        "recovery_delay": 1.5,
        "max_prefill_attempts": random.choice([1, 3]),
        "max_recovery_rounds": 15,
        "max_decode_attempts": 64,
    }
    plan.update(pinned)
    handoff = random.choice([None, *HandoffMode])
    return World(m, random, weather, plan, random.choice(list(Route)), handoff)
