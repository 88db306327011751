"""The referee of one relay: knows the rules, keeps books of its own, and judges every batch of commands.

It never reads the relay's private state; it raises ``Violation`` when a rule of the relay is broken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pdd.core.request import FinishReason, Role, Route, SendClass

VOCABULARY = 997
PROMPT = (11, 22, 33)


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
    demoted: bool = False

    @property
    def settled(self) -> bool:
        return self.state != "moving"

    @property
    def held(self) -> bool:
        """It holds something at its target, or will."""
        return not self.released and self.state != "failed"


@dataclass
class Question:
    kind: str
    decoder: int | None


class Referee:
    """One request's books. ``may_fail``: bad luck alone may end the answer after its first token."""

    def __init__(self, m: ModuleType, plan: dict[str, Any], *, may_fail: bool) -> None:
        self.m = m
        self.plan = plan
        self.may_fail = may_fail
        self.prompt = PROMPT
        self.emitted: list[int] = []
        self.engines: dict[int, Engine] = {}
        self.transfers: dict[int, Transfer] = {}
        self.timers: set[Any] = set()
        self.questions: list[Question] = []
        self.used: set[int] = set()
        self.over = False
        self.outcome: Any = None
        self.last_role: Role | None = None
        self.lost_after_tokens: Role | None = None
        self.relay = self.m.Relay(self.m.RelayPlan(num_prompt_tokens=len(self.prompt), **self.plan))
        self.handlers: dict[type, Callable[[Any], None]] = {
            m.Replicate: self.on_replicate,
            m.CancelReplication: self.on_cancel_replication,
            m.Demote: self.on_demote,
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
        self.chosen_route: Route | None = None
        self.relay_cap: int | None = self.plan["relay_cap"]
        self.num_eager = 0
        self.num_extended = 0
        self.previous_gap: int | None = None
        self.rounds = 0
        self.prefills = 0
        self.decodes = 0
        self.failed = False
        self.main_losses = 0
        self.main_is_to_be_released = False
        self.resends = 0
        self.detours = 0
        self.elsewhere: Role | None = None
        self.resend_due = False
        self.lost_roles: set[Role] = set()
        self.recovering = False
        self.recovery_rounds = 0
        self.relay_kv_waited_for = False
        self.relay_kv_failed = False
        self.recovery_waits = False
        self.relay_ended_at_cap = False
        self.extend_stopped = False
        self.main_spoke = False
        self.prefill_awaited = False
        self.prefill_waits = 0
        self.held = self.resuming = False
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

    def note_loss(self, engine: Engine, *, with_tokens: bool = False) -> None:
        self.failed = True
        if engine.role is Role.MAIN_DECODE and self.emitted:
            self.main_losses += 1
            self.main_is_to_be_released = self.main_transfer() is not None
            self.num_extended, self.previous_gap, self.rounds = 0, None, 0
        if not self.emitted or engine.is_extend:
            return
        if with_tokens:
            self.lost_after_tokens = engine.role
        else:
            self.lost_roles.add(engine.role)
            self.recovering = True

    # Checking commands ------------------------------------------------------------------------------------------------

    def carry_out(self, commands: list[Any]) -> None:
        asking = (self.m.AskRoute, self.m.AskHandoff)
        demand(not any(isinstance(command, asking) for command in commands[:-1]), "a question comes last")
        self.extend_stopped = self.main_spoke = False
        relay_held = self.relay_transfer()
        for command in commands:
            demand(not self.over, "nothing follows Finish or Fail")
            self.handlers[type(command)](command)
        released = relay_held is None or relay_held.released
        demand(released or not self.main_spoke, "main's tokens release relay decode's KV")
        self.lost_after_tokens = None
        self.resend_due = False
        self.relay_ended_at_cap = False
        demand(self.over or not self.main_is_to_be_released, "what was lost with main decode is released")
        self.check_rest()

    def on_replicate(self, command: Any) -> None:
        self.new_attempt(command.attempt)
        demand(not self.main_is_to_be_released, "what was lost is released before it is sent again")
        self.detours += self.elsewhere is command.target
        demand(self.detours <= self.plan["max_detours"], "other targets are tried, but not for ever")
        held = [t for t in self.transfers.values() if t.target is command.target and t.held]
        demand(not held, "a target never holds the same request twice")
        demand(command.target is not Role.PREFILL, "prefill's node is the source")
        waited_for = command.send_class is SendClass.NORMAL
        demand(waited_for is (self.max_tokens > 1), "only for the KV of an answer that prefill ends does nobody wait")
        if command.target is Role.RELAY_DECODE:
            wanted = self.plan["prepare_relay"] and not self.emitted
            route = self.chosen_route not in (None, Route.DIRECT)
            away = self.elsewhere is Role.RELAY_DECODE
            demand(wanted or route or self.recovering or away, "relay decode's node gets nothing that was not wanted")
        else:
            self.check_main_order()
        self.transfers[command.attempt] = Transfer(command.attempt, command.target)

    def check_main_order(self) -> None:
        """The first order, one after a loss, or one after a failure."""
        if self.elsewhere is Role.MAIN_DECODE:
            return
        before = [t for t in self.transfers.values() if t.target is Role.MAIN_DECODE]
        if not self.emitted:
            demand(self.plan["prepare_main"], "main decode's node gets nothing ahead that was not wanted")
        elif not before:
            wanted = self.chosen_route is not Route.RELAY_ONLY or bool(self.main_losses)
            demand(wanted, "who stays at relay decode needs no main")
        elif before[-1].released:
            demand(0 < self.main_losses <= self.plan["max_main_losses"], "a main that was lost often is given up")
        else:
            self.resends += 1
            demand(self.resend_due and before[-1].state == "failed", "what failed is sent again after a while")
            demand(self.resends <= self.plan["max_resends"], "it is not sent for ever")

    def on_cancel_replication(self, command: Any) -> None:
        transfer = self.transfers.get(command.attempt)
        demand(transfer is not None and not transfer.released, "only a transfer under way is cancelled, once")
        assert transfer is not None
        transfer.released = True
        demand(not (transfer.settled and self.left), "what is settled needs no cancelling")
        ending = self.left or self.ending_in_failure()
        if transfer.target is Role.MAIN_DECODE:
            demand(not self.emitted or ending or self.main_is_to_be_released, "main's transfer goes on")
            self.main_is_to_be_released = False
        else:
            main_emitted = self.last_role is Role.MAIN_DECODE
            done = self.completed or self.answer_is_out() or main_emitted or self.relay_ended_at_cap
            demand(not self.emitted or ending or done, "relay decode's KV stays until main has decoded")

    def on_demote(self, command: Any) -> None:
        transfer = self.transfers[command.attempt]
        demand(transfer.target is Role.MAIN_DECODE and self.chosen_route is Route.RELAY_ONLY, "P-RLD demotes main's KV")
        demand(not transfer.settled and not transfer.released, "only what is under way is demoted")
        demand(not transfer.demoted, "it is demoted once")
        transfer.demoted = True

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
            demand(not self.held, "a held prefill goes on when it may, not before")
            self.prefills += not self.resuming
            bound = self.plan["max_prefill_attempts"] + self.plan["max_prefill_waits"]
            demand(self.prefills <= bound, "prefill attempts are bounded")
            targets = {t.target for t in self.transfers.values() if not t.released}
            kinds = {Role.MAIN_DECODE: "prepare_main", Role.RELAY_DECODE: "prepare_relay"}
            wanted = {role for role, name in kinds.items() if self.plan[name]}
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
        demand(
            role not in self.lost_roles or role is Role.MAIN_DECODE, "a role that was lost is tried after the others"
        )
        whole = self.max_tokens - len(self.emitted)
        if role is Role.MAIN_DECODE:
            demand(self.live_extend() is None, "main decode does not run beside its own extend")
            others_lost = {
                Role.PREFILL,
                Role.RELAY_DECODE,
            } <= self.lost_roles and Role.MAIN_DECODE not in self.lost_roles
            has_to = self.main_must_compute() or (self.handing_over and self.main_is_given_up())
            took_over = self.recovering and self.extend_stopped
            demand(
                self.main_is_ready() or others_lost or has_to or took_over, "main decode starts on readiness, or last"
            )
        elif not self.recovering and not self.nobody_comes():
            # Nothing was lost since the last token.
            demand(role is Role.RELAY_DECODE, "prefill decodes only after a loss")
            demand(self.chosen_route is not Route.DIRECT, "relay decode is for relays, or after a loss")
            demand(self.relay_settled(), "relay decode starts on readiness")
            demand(not self.main_is_ready() and not self.main_must_compute(), "whoever may start at main does")
            if self.chosen_route is Route.RELAY and self.relay_cap is not None:
                whole = min(whole, self.relay_cap - self.num_eager)
        else:
            demand(not self.main_is_ready(), "main decode goes first if it may")
            order = [Role.RELAY_DECODE, Role.PREFILL]
            demand(role is next(r for r in order if r not in self.lost_roles), "the nearest goes on")
            ready = self.relay_settled() or self.relay_kv_waited_for
            demand(role is Role.PREFILL or ready, "relay decode's KV is given a moment to come")
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
        self.extend_stopped |= engine.is_extend

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
        self.main_spoke = command.role is Role.MAIN_DECODE
        self.lost_roles = set() if self.lost_after_tokens is None else {self.lost_after_tokens}
        self.recovering = self.lost_after_tokens is not None
        self.recovery_rounds = 0
        self.relay_kv_waited_for = self.recovery_waits = False
        if engine is not None and engine.role is Role.RELAY_DECODE and engine.known:
            self.relay_ended_at_cap = count + len(command.tokens) == engine.known + engine.budget

    def on_ask_route(self, _: Any) -> None:
        first = self.chosen_route is None
        self.route_questions += 1
        demand(bool(self.emitted) and not self.questions, "a route is asked after prefill, once at a time")
        demand(self.live_decoder() is None, "nobody decodes while a route is chosen")
        again = self.may_ask_route_again() or self.relay_kv_failed
        demand(
            first or again, "a route is asked again only while the client waits on P-MD, or relay decode got nothing"
        )
        self.questions.append(Question("route", None))

    def may_ask_route_again(self) -> bool:
        main = self.main_transfer()
        waits = self.live_decoder() is None and main is not None and not main.settled and not self.recovering
        return self.chosen_route is Route.DIRECT and self.plan["may_reroute"] and waits and not self.questions

    def on_ask_handoff(self, command: Any) -> None:
        decoder = self.live_decoder()
        demand(decoder is not None and decoder.role is not Role.MAIN_DECODE, "only another decoder hands over")
        assert decoder is not None
        self.drop_dead_questions()
        demand(not self.questions, "one question at a time")
        demand(self.live_extend() is None, "no hand-off during an extend")
        demand(self.main_is_ready() or self.main_is_given_up(), "a hand-off is asked when main decode could take over")
        demand(command.gap == self.gap(), "the gap is what the final batch would be")
        demand(command.previous_gap == self.previous_gap and command.rounds == self.rounds, "history is told as it was")
        self.questions.append(Question("handoff", decoder.attempt))

    def on_set_timer(self, command: Any) -> None:
        timer, plan = command.timer, self.plan
        if timer is self.m.Timer.REROUTE:
            demand(self.may_ask_route_again(), "the reroute timer runs while the client waits on P-MD")
            demand(command.delay == plan["reroute_interval"], "the reroute timer has its own interval")
        elif timer is self.m.Timer.RESEND:
            demand(self.may_resend(), "the resend timer runs while main has nothing and another decodes")
            demand(timer not in self.timers, "main's transfer is waited for once at a time")
            demand(command.delay == plan["resend_delay"], "the resend timer has its own delay")
        else:
            self.check_recovery_timer(command)
        self.timers.add(timer)

    def check_recovery_timer(self, command: Any) -> None:
        demand(command.delay == self.plan["recovery_delay"], "the recovery timer has its own delay")
        if not self.emitted:
            demand(self.prefill_awaited, "before the first token only prefill is waited for")
            self.prefill_waits += 1
            demand(self.prefill_waits <= self.plan["max_prefill_waits"], "prefill is not waited for for ever")
            return
        demand(not self.recovery_awaited(), "recovery waits once at a time")
        self.recovering = self.recovery_waits = True
        if self.lost_roles == set(Role):
            self.recovery_rounds += 1
            demand(self.recovery_rounds <= self.plan["max_recovery_rounds"], "recovery is bounded")
        else:
            demand(Role.RELAY_DECODE not in self.lost_roles and not self.relay_kv_waited_for, "KV is waited for once")
            demand(not self.relay_settled() and self.relay_transfer() is not None, "what may come is waited for")
            self.relay_kv_waited_for = True

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
            away = self.prefill_awaited and self.prefill_waits >= self.plan["max_prefill_waits"]
            demand(bounded or away, "only lost prefills fail a request before its first token")
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

    def transfer_to(self, role: Role) -> Transfer | None:
        """The newest that is not released."""
        newest = next((t for t in reversed(self.transfers.values()) if t.target is role), None)
        return None if newest is None or newest.released else newest

    def main_transfer(self) -> Transfer | None:
        return self.transfer_to(Role.MAIN_DECODE)

    def relay_transfer(self) -> Transfer | None:
        return self.transfer_to(Role.RELAY_DECODE)

    def relay_settled(self) -> bool:
        relay = self.relay_transfer()
        return relay is not None and relay.settled

    def floor_reached(self) -> bool:
        return self.chosen_route is Route.DIRECT or self.num_eager >= self.plan["relay_floor"]

    def cap_reached(self) -> bool:
        capped = self.relay_cap is not None and self.chosen_route is not Route.RELAY_ONLY and not self.recovering
        return capped and self.num_eager >= (self.relay_cap or 0)

    def main_is_ready(self) -> bool:
        main = self.main_transfer()
        return main is not None and main.state == "ready" and self.floor_reached()

    def main_has_failed(self) -> bool:
        main = self.main_transfer()
        return main is not None and main.state == "failed" and self.chosen_route is not Route.RELAY_ONLY

    def main_must_compute(self) -> bool:
        if self.recovering or not self.main_has_failed() or not self.floor_reached():
            return False
        relay = self.relay_transfer()
        relay_comes = relay is not None and relay.state != "failed" and not self.cap_reached()
        return self.chosen_route is Route.DIRECT or not relay_comes

    def main_is_given_up(self) -> bool:
        spent = self.resends >= self.plan["max_resends"]
        return self.main_has_failed() and self.floor_reached() and spent

    def may_resend(self) -> bool:
        decoder = self.live_decoder()
        main_decodes = decoder is not None and decoder.role is Role.MAIN_DECODE
        return self.main_has_failed() and not main_decodes and self.resends < self.plan["max_resends"]

    def nobody_comes(self) -> bool:
        return self.main_transfer() is None and (self.relay_transfer() is None or self.cap_reached())

    def recovery_awaited(self) -> bool:
        return self.m.Timer.RECOVER in self.timers and self.recovery_waits

    def gap(self) -> int:
        prompt = len(self.prompt) if self.main_has_failed() else 0
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
        if self.questions:
            return
        decoder = self.live_decoder()
        just_started = decoder is not None and not decoder.sent
        seeks = self.chosen_route is not None and self.live_extend() is None and not just_started
        if seeks and self.may_resend():
            demand(self.m.Timer.RESEND in self.timers, "main decode is sought while another decodes")
        if decoder is not None:
            hands_over = decoder.role is not Role.MAIN_DECODE and self.live_extend() is None and bool(self.emitted)
            may = self.main_is_ready() or (self.main_is_given_up() and not just_started)
            demand(not (hands_over and may), "a hand-off is asked as soon as main decode could start")
            return
        if self.held:
            return
        demand(self.live_extend() is None, "an extend never outlives the decoder beside it")
        demand(not self.main_is_ready() and not self.main_must_compute(), "main decode starts as soon as it may")
        if self.prefill_awaited or self.recovering:
            demand(self.m.Timer.RECOVER in self.timers, "after a loss somebody goes on, or is waited for")
            return
        demand(not self.nobody_comes(), "somebody is awaited")
        if self.chosen_route is not Route.DIRECT:
            demand(self.cap_reached() or not self.relay_settled(), "relay decode starts as soon as it may")
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
            demand(self.may_fail, "an answer that began is completed while any role is up")
        relays = [e for e in self.engines.values() if e.role is Role.RELAY_DECODE]
        pinned_direct = self.chosen_route is Route.DIRECT and not self.plan["may_reroute"]
        if pinned_direct and not self.failed:
            demand(not relays, "a pinned P-MD request never relays")
            demand(self.route_questions == 1, "a pinned route is asked once")
