"""The referee of one delivery: knows the rules, keeps books of its own, and judges every batch of commands.

It never reads the delivery's private state; it raises ``Violation`` when a rule is broken.
"""

from __future__ import annotations

from typing import Any

from pdd.core.errors import BlocksLost, CapacityExhausted, ContextTooLong, Incompatible, PddError
from pdd.core.ids import OrderId, WatchId
from pdd.core.request import SendClass
from pdd.protocol import delivery_messages as dm
from pdd.protocol.delivery_messages import DeliveryState, Timer

FATAL = (ContextTooLong, Incompatible, BlocksLost)
FOLLOWS = {
    "New": {"Placed", "Refused", "Ended"},
    "Placed": {"Refused", "Moving", "Ready", "Acknowledging", "Stopping", "Releasing", "Ended"},
    "Refused": {"Moving", "Ready", "Stopping", "Releasing", "Ended"},
    "Moving": {"Refused", "Ready", "Acknowledging", "Stopping", "Releasing", "Ended"},
    "Ready": {"Acknowledging", "Stopping", "Releasing", "Ended"},
    "Acknowledging": {"Stopping", "Releasing", "Ended"},
    "Stopping": {"Releasing", "Ended"},
    "Releasing": {"Ended"},
    "Ended": set[str](),
}
"""Which phase may follow which. One event may do two steps at once."""
UNDER_WAY = ("Placed", "Refused", "Moving")


class Violation(AssertionError):
    """The delivery broke one of its rules."""


def demand(condition: bool, rule: str) -> None:
    if not condition:
        raise Violation(rule)


class Referee:
    """One delivery's books."""

    def __init__(self, m: Any, spec: dm.DeliverySpec, limits: dm.DeliveryLimits) -> None:
        self.delivery = m.Delivery(spec, limits)
        self.spec = spec
        self.limits = limits
        self.goal = len(spec.hashes) if spec.goal is None else spec.goal
        self.now = 0.0
        self.begun = self.over = self.silent = self.crashed = False
        self.prefilled = self.demoted = self.admitted = self.refused = False
        self.watch: WatchId | None = None
        self.num_ready: int | None = None
        self.closing_watch = False
        self.standing: OrderId | None = None
        self.unended: dict[OrderId, str] = {}
        """Orders that have not ended: 'standing', 'cancelled', 'failed' or 'done'."""
        self.timers: dict[Timer, float] = {}
        self.asks_turn = self.checks_source = self.all_sent = False
        self.sent: dict[OrderId, int] = {}
        self.target_troubled: float | None = None
        self.source_troubled: float | None = None
        self.told: list[DeliveryState] = [DeliveryState.PLACED]
        self.used: set[str] = set()
        self.num_ready_told = 0

    def receive(self, event: dm.Event) -> list[dm.Command]:
        """What is commanded, after it was judged."""
        before, now = self.delivery.phase, float(event.at)
        demand(now >= self.now, "time goes on")
        self.now = now
        troubled = self.note(event)
        commands = self.delivery.receive(event)
        for command in commands:
            demand(not self.over, "nothing follows End")
            self.judge(command)
        after = self.delivery.phase
        demand(after == before or after in FOLLOWS[before], f"{after} does not follow {before}")
        self.check_rest(event, troubled, before)
        return commands

    # Events -----------------------------------------------------------------------------------------------------------

    def note(self, event: dm.Event) -> str | None:
        """Keeps the books; whose trouble it is."""
        match event:
            case dm.Begun():
                self.begun = self.begun or self.delivery.phase == "New"
            case dm.TurnTold():
                self.asks_turn = False
            case dm.WatchReported():
                self.note_report(event)
            case dm.WatchFailed() | dm.WatchEnded():
                return self.note_watch_gone(event)
            case dm.OrderProgressed():
                self.note_progress(event)
            case dm.OrderFailed():
                if event.order == self.standing:
                    self.standing, self.unended[event.order] = None, "failed"
            case dm.OrderEnded():
                return self.note_order_ended(event.order)
            case dm.SourceChecked():
                self.checks_source = False
            case dm.TimerFired():
                self.timers.pop(event.timer, None)
            case dm.StandstillDue():
                self.timers.pop(Timer.STANDSTILL, None)
            case dm.PrefillDone():
                self.prefilled = self.prefilled or self.delivery.phase in UNDER_WAY
            case dm.Demoted():
                self.demoted = True
            case dm.Detached() | dm.Released():
                self.silent = True
            case dm.Crashed():
                self.crashed = True
            case _:
                pass
        return None

    def note_report(self, event: dm.WatchReported) -> None:
        if event.readiness.watch != self.watch:
            return
        self.target_troubled = None
        if self.num_ready is None and event.readiness.num_ready < self.goal and self.under_way:
            self.all_sent = False
        self.num_ready = event.readiness.num_ready

    def note_watch_gone(self, event: dm.WatchFailed | dm.WatchEnded) -> str | None:
        if event.watch != self.watch:
            return None
        self.watch, self.num_ready, self.closing_watch = None, None, False
        if isinstance(event, dm.WatchFailed) and isinstance(event.error, CapacityExhausted):
            self.admitted = False
            return "capacity"
        self.target_troubled = self.now if self.target_troubled is None else self.target_troubled
        return "target"

    def note_progress(self, event: dm.OrderProgressed) -> None:
        progress = event.progress
        if progress.order != self.standing:
            return
        self.sent[progress.order] = progress.sent_bytes
        if progress.num_missing is not None:
            self.source_troubled = None
        if progress.done:
            self.standing, self.unended[progress.order], self.all_sent = None, "done", True

    def note_order_ended(self, order: OrderId) -> str | None:
        how = self.unended.pop(order, None)
        if order == self.standing:
            self.standing = None
        if how not in ("standing", "failed"):
            return None
        self.source_troubled = self.now if self.source_troubled is None else self.source_troubled
        return "source"

    # Commands ---------------------------------------------------------------------------------------------------------

    def judge(self, command: dm.Command) -> None:
        match command:
            case dm.AskTurn():
                demand(not self.asks_turn and self.watch is None, "it asks for its turn when it needs one")
                self.asks_turn = True
            case dm.OpenWatch():
                self.judge_watch(command)
            case dm.CloseWatch():
                demand(command.watch == self.watch and not self.closing_watch, "an open watch is closed once")
                demand(not self.unended, "nothing is sent any more by the time that capacity is given up")
                self.closing_watch = True
            case dm.PlaceOrder():
                self.judge_order(command)
            case dm.CancelOrder():
                demand(command.order == self.standing, "what stands is cancelled, once")
                self.standing, self.unended[command.order] = None, "cancelled"
            case dm.Reclassify():
                demand(command.order == self.standing, "what stands is reclassified")
                demand(self.demoted and command.send_class is SendClass.BACKGROUND, "for those that wait")
            case dm.CheckSource():
                demand(not self.checks_source and self.standing is None, "a source whose order is lost is asked")
                self.checks_source = True
            case dm.SetTimer():
                demand(0.0 <= command.delay <= 2.0, "it looks around often enough")
                self.timers[command.timer] = self.now + command.delay
            case dm.RecordProgress():
                demand(command.progress.order in self.unended, "what stands is recorded")
                demand(
                    command.send_class is (SendClass.BACKGROUND if self.demoted_now else SendClass.NORMAL), "as it is"
                )
            case dm.TellChange():
                self.judge_change()
            case dm.TellInformed():
                demand(not self.silent, "nobody is told after the release")
            case dm.FreeCapacity():
                demand(not self.demoted_now, "nobody gives way to what nobody waits for")
            case dm.End():
                demand(self.watch is None and not self.unended, "nothing is held at the end")
                self.over = True

    @property
    def demoted_now(self) -> bool:
        return self.demoted or self.spec.send_class is SendClass.BACKGROUND

    @property
    def under_way(self) -> bool:
        return self.delivery.phase in UNDER_WAY

    def judge_watch(self, command: dm.OpenWatch) -> None:
        self.judge_name(command.watch.watch)
        demand(self.watch is None, "one watch is open at most")
        demand(command.watch.hashes == self.spec.hashes, "it watches what is delivered")
        demand(command.watch.reserve_blocks == self.spec.reserve_blocks, "and reserves what is needed")
        self.watch, self.num_ready = command.watch.watch, None

    def judge_order(self, command: dm.PlaceOrder) -> None:
        self.judge_name(command.order.order)
        demand(self.standing is None, "one order stands at most")
        demand(not self.spec.is_local, "nothing is sent from a node to itself")
        demand(self.delivery.state is not DeliveryState.REFUSED, "nothing is sent without capacity")
        demand(not self.all_sent, "what has arrived is not sent again")
        demand(
            command.order.hashes == self.spec.hashes and command.order.target == self.spec.target, "what, and where to"
        )
        demand((command.order.send_class is SendClass.BACKGROUND) is self.demoted_now, "in the class that it is in")
        self.standing = command.order.order
        self.unended[command.order.order] = "standing"

    def judge_name(self, name: str) -> None:
        demand(name not in self.used and name.startswith(self.spec.name), "each has a name of its own")
        self.used.add(name)

    def judge_change(self) -> None:
        state = self.delivery.state
        demand(not self.silent, "nobody is told after the release")
        demand(state is not self.told[-1], "what is told has changed")
        demand(self.told[-1] not in (DeliveryState.READY, DeliveryState.FAILED), "it is settled once")
        if state is DeliveryState.READY:
            demand(self.num_ready is not None and self.num_ready >= self.goal, "ready is what was reported")
        if state is DeliveryState.FAILED:
            demand(self.crashed or self.delivery.error is not None, "it has failed for a reason")
        self.told.append(state)

    # After each event -------------------------------------------------------------------------------------------------

    def check_rest(self, event: dm.Event, troubled: str | None, before: str) -> None:
        phase, state = self.delivery.phase, self.delivery.state
        demand((phase == "Ended") is (self.over or self.crashed), "the end is said")
        demand(self.delivery.sent == sum(self.sent.values()), "all that was sent counts")
        self.check_told(state)
        if before in UNDER_WAY and troubled is not None:
            self.check_patience(event, troubled)
        if phase in UNDER_WAY:
            self.check_awaits(phase)
        if state is DeliveryState.FAILED:
            demand(self.delivery.released, "what has failed holds nothing, or is about to")
        if phase == "Stopping":
            demand(bool(self.unended) and self.standing is None, "it stops what is sent")
        if phase == "Acknowledging":
            demand(Timer.ACKNOWLEDGEMENT in self.timers, "it waits so long for an acknowledgement")
        if phase == "Releasing":
            demand(self.closing_watch, "it gives up its capacity")
        demand(repr(self.delivery).count(phase) > 0, "it says where it is")

    def check_told(self, state: DeliveryState) -> None:
        unsaid = self.told == [DeliveryState.PLACED] and state is DeliveryState.REFUSED
        late = self.silent or self.delivery.released
        demand(late or unsaid or state is self.told[-1], "whoever it is made for is told")

    def check_patience(self, event: dm.Event, troubled: str) -> None:
        """What waiting may help is waited for, and no longer."""
        if troubled == "capacity":
            demand(self.asks_turn and self.delivery.refused, "without capacity it waits for its turn")
            return
        since = self.target_troubled if troubled == "target" else self.source_troubled
        assert since is not None
        error: PddError | None = getattr(event, "error", None) or self.delivery.error
        failed = self.delivery.state is DeliveryState.FAILED
        if self.now - since >= self.limits.node_patience:
            demand(failed, "patience has an end")
        elif not isinstance(error, FATAL):
            demand(not failed, "what may come back is waited for")

    def check_awaits(self, phase: str) -> None:
        """Nothing is ever under way without something that will happen."""
        in_queue = phase == "Refused" and Timer.TURN in self.timers
        returning = Timer.TARGET in self.timers
        demand(self.watch is not None or self.asks_turn or in_queue or returning, "the target is waited for")
        if phase != "Refused" and not self.spec.is_local:
            lost = any(how in ("failed", "standing") for how in self.unended.values())
            again = Timer.SOURCE in self.timers or self.checks_source
            demand(lost or again or self.all_sent, "the source is waited for")
        if phase == "Refused":
            demand(self.standing is None, "nothing is sent without capacity")
        demand(not self.prefilled or Timer.STANDSTILL in self.timers, "a standstill will be noticed")
