"""Short words for scripts about one relay: each line is an event and exactly the commands that answer it."""

from types import ModuleType
from typing import Any

from pdd.core.errors import LocalProtocolError
from pdd.core.request import FinishReason, HandoffMode, Role, Route, SendClass

PREFILL, RELAY, MAIN = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
END = 99
"""The stop token."""


class Play:
    """One relay of module ``m``. Attempts 1, 2 and 3 are main's transfer, relay's transfer and prefill."""

    def __init__(self, m: ModuleType, **plan: Any) -> None:
        self.m = m
        self.settings = {"num_prompt_tokens": 10, "max_tokens": 8, "stop_token_ids": frozenset({END}), **plan}
        self.relay = m.Relay(m.RelayPlan(**self.settings))

    def start(self, *commands: Any) -> None:
        self.same(self.relay.start(), commands)

    def on(self, event: Any, *commands: Any) -> None:
        self.same(self.relay.receive(event), commands)

    def same(self, given: list[Any], wanted: tuple[Any, ...]) -> None:
        assert given == list(wanted), f"wanted {list(wanted)}, got {given}"

    def refuses(self, event: Any) -> None:
        try:
            self.relay.receive(event)
        except LocalProtocolError:
            return
        raise AssertionError(f"{event} should be refused")

    # Openings that many scripts share ---------------------------------------------------------------------------------

    def prefilled(self) -> None:
        """Through prefill's token 10 at position 0."""
        self.start(self.replicate(1, MAIN), self.replicate(2, RELAY), self.decode(3, PREFILL, 0, 1))
        self.on(self.tokens(3, 0, 10, finish=LENGTH), self.emit(3, PREFILL, 0, 10), self.ask_route())

    def direct(self) -> None:
        """Waiting for main's KV on route P-MD, with the reroute timer set."""
        self.prefilled()
        self.on(self.route(Route.DIRECT), self.timer("REROUTE", 0.25))

    def relaying(self) -> None:
        """Relay decode runs as attempt 4 and has emitted 11 at position 1."""
        self.prefilled()
        self.on(self.route(Route.RELAY))
        self.on(self.ready(2), self.decode(4, RELAY, 1, 7))
        self.on(self.tokens(4, 1, 11), self.emit(4, RELAY, 1, 11))

    def relaying_without_main(self) -> None:
        """Relay decode goes on as attempt 4; main's transfer has failed and may not be made again."""
        self.relaying()
        self.on(self.failed(1), self.ask_handoff(12, None, 0))

    def main_decoding(self) -> None:
        """Main decode runs as attempt 4 on route P-MD and has emitted 11 at position 1."""
        self.direct()
        self.on(self.ready(1), self.decode(4, MAIN, 1, 7))
        self.on(self.tokens(4, 1, 11), self.emit(4, MAIN, 1, 11), self.cancel(2))

    # Events -----------------------------------------------------------------------------------------------------------

    def tokens(self, attempt: int, first: int, *tokens: int, finish: FinishReason | None = None) -> Any:
        return self.m.TokensDecoded(attempt=attempt, first_position=first, tokens=tokens, finish_reason=finish)

    def extended(self, attempt: int) -> Any:
        return self.m.Extended(attempt=attempt)

    def ready(self, attempt: int) -> Any:
        return self.m.TransferReady(attempt=attempt)

    def failed(self, attempt: int, *, elsewhere: bool = False) -> Any:
        return self.m.TransferFailed(attempt=attempt, elsewhere=elsewhere)

    def lost(self, attempt: int) -> Any:
        return self.m.WorkerLost(attempt=attempt)

    def unavailable(self, attempt: int) -> Any:
        return self.m.WorkerUnavailable(attempt=attempt)

    def route(self, route: Route, relay_cap: int | None = None) -> Any:
        return self.m.RouteChosen(route=route, relay_cap=relay_cap)

    def one_shot(self) -> Any:
        return self.m.HandoffChosen(mode=HandoffMode.ONE_SHOT)

    def catch_up(self) -> Any:
        return self.m.HandoffChosen(mode=HandoffMode.CATCH_UP)

    def fired(self, timer: str) -> Any:
        return self.m.TimerFired(timer=self.m.Timer[timer])

    def held(self) -> Any:
        return self.m.PrefillHeld()

    def resumed(self) -> Any:
        return self.m.PrefillResumed()

    def client_left(self) -> Any:
        return self.m.ClientLeft()

    def answer_complete(self) -> Any:
        return self.m.AnswerComplete()

    # Commands ---------------------------------------------------------------------------------------------------------

    def replicate(self, attempt: int, target: Role) -> Any:
        send_class = SendClass.BACKGROUND if self.settings["max_tokens"] == 1 else SendClass.NORMAL
        return self.m.Replicate(attempt=attempt, target=target, send_class=send_class)

    def cancel(self, attempt: int) -> Any:
        return self.m.CancelReplication(attempt=attempt)

    def demote(self, attempt: int) -> Any:
        return self.m.Demote(attempt=attempt)

    def decode(self, attempt: int, role: Role, known: int, budget: int) -> Any:
        return self.m.StartDecode(attempt=attempt, role=role, num_known=known, max_tokens=budget)

    def extend(self, attempt: int, known: int) -> Any:
        return self.m.StartExtend(attempt=attempt, num_known=known)

    def stop(self, attempt: int) -> Any:
        return self.m.Stop(attempt=attempt)

    def emit(self, attempt: int, role: Role, first: int, *tokens: int) -> Any:
        return self.m.Emit(attempt=attempt, role=role, first_position=first, tokens=tokens)

    def ask_route(self) -> Any:
        return self.m.AskRoute()

    def ask_handoff(self, gap: int, previous: int | None, rounds: int) -> Any:
        return self.m.AskHandoff(gap=gap, previous_gap=previous, rounds=rounds)

    def timer(self, timer: str, delay: float) -> Any:
        return self.m.SetTimer(timer=self.m.Timer[timer], delay=delay)

    def finish(self, reason: FinishReason | None) -> Any:
        return self.m.Finish(reason=reason)

    def fail(self, why: str) -> Any:
        return self.m.Fail(why=why)
