"""A model of everything around one relay: engines on a pure next-token function, transfers, a client, and bad weather.

``World(relay_module, random, weather, ...).run()`` plays one request to its end, with the referee watching.
"""

from dataclasses import dataclass
from random import Random
from types import ModuleType
from typing import Any

from pdd.core.errors import LocalProtocolError
from pdd.core.request import FinishReason, HandoffMode, Role, Route
from tests.support.relay_referee import VOCABULARY, Engine, Question, Referee, Transfer, Violation, demand, next_token

MAX_STEPS = 4000


@dataclass(frozen=True)
class Weather:
    """How bad it gets. ``faults`` bounds what goes wrong by chance, so that patience is always rewarded."""

    faults: int = 0
    hostile: float = 0.0
    leaving: float = 0.0
    completing: float = 0.0
    holding: float = 0.0
    """How often main decode's room comes and goes while prefill runs."""
    down: frozenset[Role] = frozenset()
    """Roles that no engine serves after the first token."""
    blackout: int = 0
    """After the first token nobody is up until this many recovery timers have fired."""


class World(Referee):
    """One request and its surroundings. ``handoff`` None: any, by chance."""

    def __init__(
        self,
        m: ModuleType,
        random: Random,
        weather: Weather,
        plan: dict[str, Any],
        *,
        route: Route,
        handoff: HandoffMode | None,
    ) -> None:
        patience_ends = weather.blackout > plan["max_recovery_rounds"] or plan["max_decode_attempts"] < 60
        super().__init__(m, plan, may_fail=patience_ends or weather.down == set(Role))
        self.random = random
        self.weather = weather
        self.route = route
        self.handoff = handoff
        self.past: list[Any] = []
        self.faults_left = weather.faults
        self.blackout = weather.blackout

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

    def feed(self, event: Any) -> None:
        self.past.append(event)
        self.carry_out(self.relay.receive(event))

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
        if weather.holding and not self.emitted and random.random() < weather.holding:
            self.resume() if self.held else self.hold()
            return
        actors: list[Any] = [e for e in self.engines.values() if e.speaking]
        actors += [t for t in self.transfers.values() if t.state == "moving" and not t.released]
        actors += sorted(self.timers)
        actors += [self.resume] * self.held
        demand(bool(actors or self.questions), "something is always awaited")
        actor = random.choice(actors or [None])
        if isinstance(actor, Engine):
            self.run_engine(actor)
        elif isinstance(actor, Transfer):
            self.run_transfer(actor)
        elif actor == self.resume:
            self.resume()
        elif actor is not None:
            self.fire(actor)

    def answer(self, question: Question) -> None:
        if question.kind == "route":
            pinned = self.route if not self.plan["may_reroute"] else self.random.choice([self.route, *Route])
            self.chosen_route = pinned
            cap = self.random.choice([None, None, 1, 6])
            if self.plan["relay_cap"] is None and cap is not None:
                self.relay_cap = max(cap, self.plan["relay_floor"])
            self.feed(self.m.RouteChosen(route=pinned, relay_cap=cap))
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
            main = self.main_transfer()
            assert main is not None
            main.state = "ready"
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
        self.prefill_awaited = kind is self.m.WorkerUnavailable and not self.emitted
        self.note_loss(engine)
        self.feed(kind(attempt=engine.attempt))

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
        elsewhere = bool(failing) and self.random.random() < 0.4
        detour = elsewhere and self.detours < self.plan["max_detours"]
        waits = self.live_decoder() is None and self.chosen_route is Route.RELAY and not self.recovering and not detour
        self.relay_kv_failed = failing and transfer.target is Role.RELAY_DECODE and waits
        settled = transfer.target is Role.RELAY_DECODE and not detour
        if settled and self.relay_kv_waited_for and self.lost_roles != set(Role):
            self.recovery_waits = False
        self.elsewhere = transfer.target if detour else None
        if failing:
            self.feed(self.m.TransferFailed(attempt=transfer.attempt, elsewhere=elsewhere))
        else:
            self.feed(self.m.TransferReady(attempt=transfer.attempt))
        self.relay_kv_failed, self.elsewhere = False, None

    def hold(self) -> None:
        prefill = self.live_decoder()
        self.held = prefill is not None
        self.feed(self.m.PrefillHeld())
        demand(self.live_decoder() is None, "a held prefill is stopped")

    def resume(self) -> None:
        self.held, self.resuming = False, True
        self.feed(self.m.PrefillResumed())
        self.resuming = False
        demand(self.live_decoder() is not None, "a prefill that may go on does")

    def fire(self, timer: Any) -> None:
        self.timers.discard(timer)
        self.resend_due = timer is self.m.Timer.RESEND
        if timer is self.m.Timer.RECOVER:
            self.prefill_awaited = False
            if self.recovery_waits and self.lost_roles == set(Role):
                self.lost_roles.clear()
            self.recovery_waits = False
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
        elif timer is not self.m.Timer.REROUTE or not self.may_ask_route_again():
            self.ignored(self.m.TimerFired(timer=timer))

    def hostile_event(self) -> Any:
        m, random = self.m, self.random
        if random.random() < 0.05:
            return random.choice([m.PrefillHeld(), m.PrefillResumed()])
        if self.past and random.random() < 0.5:
            return random.choice(self.past)
        if random.random() < 0.3:
            return random.choice([m.TransferReady, m.TransferFailed])(
                attempt=random.choice(list(self.transfers) or [1])
            )
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
        if isinstance(event, self.m.PrefillHeld):
            return not self.emitted and self.live_decoder() is not None
        if isinstance(event, self.m.PrefillResumed):
            return self.held
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


def random_world(m: ModuleType, random: Random, weather: Weather, **pinned: Any) -> World:
    """A request of any shape under ``weather``; ``pinned`` fixes parts of its plan."""
    cap = random.choice([None, None, 1, 3, 8])
    floor = random.choice([0, 0, 1, 3])
    plan = {
        "max_tokens": random.choice([1, 2, 5, 17, 40]),
        "stop_token_ids": frozenset(range(0, VOCABULARY, random.choice([15, 60, 2000]))) - {0},
        "prepare_main": random.random() < 0.9,
        "prepare_relay": random.random() < 0.8,
        "may_reroute": random.random() < 0.6,
        "relay_cap": None if cap is None else max(cap, floor),
        "relay_floor": floor,
        "reroute_interval": 0.25,
        "recovery_delay": 1.5,
        "resend_delay": 0.75,
        "max_prefill_attempts": random.choice([1, 3]),
        "max_prefill_waits": random.choice([0, 2]),
        "max_main_losses": random.choice([0, 1, 3]),
        "max_resends": random.choice([0, 2]),
        "max_detours": random.choice([0, 2]),
        "max_recovery_rounds": 15,
        "max_decode_attempts": 64,
    }
    plan.update(pinned)
    handoff = random.choice([None, *HandoffMode])
    return World(m, random, weather, plan, route=random.choice(list(Route)), handoff=handoff)
