"""One delivery of KV, from "wanted" to "ready", "failed" or "given up", as a sans-IO state machine: events in, commands
out.

An order at the source sends the blocks as they appear, a watch at the target reserves capacity for them and reports
them. Deliver ``Begun`` first, then whatever happens; carry out the returned commands in order. Commands that ask
(``AskTurn``) want their answer back at once. Time enters with the events.

Rules that hold whatever arrives, in whatever order:

1. At most one order stands and at most one watch is open. Both go out together; while the target has no capacity no order
   stands, since blocks that can't be kept would cross for nothing.
2. READY is said only when the watch reported every block of the goal. Blocks that arrived before the watch had its
   capacity may have been evicted: their order is placed again.
3. Nothing is sent any more by the time that the capacity for it is given up: the watch is closed when all orders have ended.
4. What can be outlived is outlived: a target without capacity is asked again, a node that was away gets its watch or order
   anew, each with a patience of its own. Everything that waits is bounded.
5. ``End`` is said once, when nothing is held any more; nothing follows it.

A watch outlives the orders that it is open for: one order can follow another under it. A source that is the target gets
no order at all. What is late or foreign is ignored.

Phases::

    new ──► placed ──────► moving ──► ready ──► acknowledging
              │  ▲            ▲  │       │            │
              ▼  │ no order   │  ▼       ▼            ▼
             refused ─────────┘ any ──► stopping ──► releasing ──► ended
"""

from __future__ import annotations

from typing import assert_never

from pdd.core.errors import BlocksLost, CapacityExhausted, ContextTooLong, Incompatible, NodeFailed, PddError
from pdd.core.ids import NodeInstance, OrderId, WatchId
from pdd.core.replication import ReplicationOrder, ReplicationProgress, Watch
from pdd.core.request import SendClass
from pdd.core.units import Bytes, Seconds
from pdd.protocol.capacity_queue import Turn
from pdd.protocol.delivery_messages import (
    AskTurn,
    Begun,
    CancelOrder,
    CheckSource,
    CloseWatch,
    Command,
    Crashed,
    DeliveryLimits,
    DeliverySpec,
    DeliveryState,
    Demoted,
    Detached,
    End,
    Event,
    FreeCapacity,
    JoinQueue,
    LeaveQueue,
    OpenWatch,
    OrderBegun,
    OrderEnded,
    OrderFailed,
    OrderProgressed,
    PlaceOrder,
    PrefillDone,
    Reclassify,
    RecordProgress,
    Released,
    SetTimer,
    SourceChecked,
    StandstillDue,
    TellChange,
    TellInformed,
    Timer,
    TimerFired,
    TurnChanged,
    TurnTold,
    WatchEnded,
    WatchFailed,
    WatchReported,
)
from pdd.protocol.delivery_phases import (
    Acknowledging,
    Asking,
    Closing,
    Ended,
    Lost,
    Moving,
    New,
    NoOrder,
    Open,
    Phase,
    Placed,
    Ready,
    Refused,
    Releasing,
    Seeking,
    Standing,
    Stopping,
)
from pdd.protocol.standstill import Stance, Standstill

# State ---------------------------------------------------------------------------------------------------------------


class _Patience:
    """Bears one trouble after another for at most ``limit``, counted from the first since the last ``forget``."""

    def __init__(self, limit: Seconds) -> None:
        self._limit = limit
        self._since: Seconds | None = None

    def forget(self) -> None:
        """All is well."""
        self._since = None

    def bears(self, error: PddError, now: Seconds) -> bool:
        """Whether waiting a little can help."""
        self._since = now if self._since is None else self._since
        return not isinstance(error, ContextTooLong | Incompatible | BlocksLost) and now - self._since < self._limit


class Delivery:
    """The state machine. Not thread-safe; one object per delivery."""

    def __init__(self, spec: DeliverySpec, limits: DeliveryLimits) -> None:
        self.spec = spec
        self.progress: ReplicationProgress | None = None
        """What was said of the latest order."""
        self.error: PddError | None = None
        """Why it has failed."""
        self.is_targets_fault = False
        """It has failed because the target was away, or not what it should be."""
        self._limits = limits
        self._phase: Phase = New()
        self._order: NoOrder | Standing | Lost = NoOrder.NOTHING_TO_SEND
        self._watch: WatchId | None = None
        self._unended: set[OrderId] = set()
        self._num_names = 0
        self._send_class = spec.send_class
        self._detached = False
        self._prefilled_at: Seconds | None = None
        self._instance: NodeInstance | None = None
        """The source's lifetime in which the blocks were written: the first one seen, not the one after a restart."""
        self._sent_before = 0
        self._target_patience = _Patience(limits.node_patience)
        self._source_patience = _Patience(limits.node_patience)
        self._standstill = Standstill(limits)

    def __repr__(self) -> str:
        target = f" target={self._phase.target}" if isinstance(self._phase, Seeking) else ""
        return (
            f"<Delivery {self.spec.name} {self.spec.source}->{self.spec.target} {self.phase} state={self.state.name}"
            f"{target} order={self._order} unended={sorted(self._unended)} watch={self._watch}"
            f" missing={self.num_missing} class={self._send_class} detached={self._detached} error={self.error!r}>"
        )

    @property
    def phase(self) -> str:
        """The name of a class of ``protocol.delivery_phases``."""
        return type(self._phase).__name__

    @property
    def state(self) -> DeliveryState:
        """What has become of it, also after it was released."""
        return self._phase.state

    @property
    def settled(self) -> bool:
        """It is ready, or never will be."""
        return self.state in (DeliveryState.READY, DeliveryState.FAILED)

    @property
    def refused(self) -> bool:
        return self.state is DeliveryState.REFUSED

    @property
    def released(self) -> bool:
        """It holds nothing any more, or is about to."""
        return isinstance(self._phase, Closing)

    @property
    def demoted(self) -> bool:
        """It gets only what the link has to spare."""
        return self._send_class is SendClass.BACKGROUND

    @property
    def num_missing(self) -> int | None:
        """How many blocks the target still lacks; None while it has not said so."""
        if self.state is DeliveryState.READY or self.spec.is_local:
            return 0
        if self.progress is None or self.progress.num_missing is None:
            return None
        return self.progress.num_missing - self.progress.num_acknowledged

    @property
    def num_lacking(self) -> int | None:
        """How many blocks the target lacked when it was asked; None while it has not said so."""
        if self.spec.is_local:
            return 0
        return None if self.progress is None else self.progress.num_missing

    @property
    def sent(self) -> Bytes:
        """Block payload that the source sent, over all orders."""
        return Bytes(self._sent_before + (0 if self.progress is None else self.progress.sent_bytes))

    def idle(self, now: Seconds) -> Seconds:
        """How long nothing has arrived."""
        return self._standstill.idle(now)

    def receive(self, event: Event) -> list[Command]:
        """Takes one event; returns what to do, in order."""
        match event:
            case Begun() | TurnTold() | TurnChanged() | WatchReported() | WatchFailed() | WatchEnded():
                return self._on_target(event)
            case OrderBegun() | OrderProgressed() | OrderFailed() | OrderEnded() | SourceChecked():
                return self._on_source(event)
            case TimerFired():
                return self._on_timer(event.timer, event.at)
            case StandstillDue():
                return self._on_standstill(event)
            case PrefillDone() | Demoted() | Detached() | Released() | Crashed():
                return self._on_word(event)
            case _:
                assert_never(event)

    # The target -------------------------------------------------------------------------------------------------------

    def _on_target(
        self, event: Begun | TurnTold | TurnChanged | WatchReported | WatchFailed | WatchEnded
    ) -> list[Command]:
        match event:
            case Begun():
                return self._begin(event) if isinstance(self._phase, New) else []
            case TurnTold():
                return self._on_turn(event.turn, event.at)
            case TurnChanged():
                return [AskTurn()] if self._waits_in_queue() else []
            case WatchReported():
                return self._on_report(event.readiness.num_ready, event.at) if self._is_ours(event) else []
            case WatchFailed():
                return self._on_watch_gone(event.error, event.at) if self._is_ours(event) else []
            case WatchEnded():
                error = NodeFailed(f"node {self.spec.target} ended a watch")
                return self._on_watch_gone(error, event.at) if self._is_ours(event) else []
            case _:
                assert_never(event)

    def _is_ours(self, event: WatchReported | WatchFailed | WatchEnded) -> bool:
        watch = event.readiness.watch if isinstance(event, WatchReported) else event.watch
        return watch == self._watch

    def _waits_in_queue(self) -> bool:
        return isinstance(self._phase, Refused) and self._phase.target in (Asking.BEHIND, Asking.FIRST)

    def _begin(self, event: Begun) -> list[Command]:
        self._standstill.moved(event.at)
        if event.turn is not Turn.OPEN:
            self._phase = Refused(target=Asking.TURN, since=event.at)
            return [AskTurn()]
        phase = self._phase = Placed(target=Asking.ANSWER)
        return [self._ask(phase), *self._begin_order()]

    def _on_turn(self, turn: Turn, at: Seconds) -> list[Command]:
        phase = self._phase
        if not isinstance(phase, Seeking):
            return []
        was_called = self._waits_in_queue() and turn is Turn.CALLED
        if phase.target is not Asking.TURN and not self._waits_in_queue():
            return []
        return [self._ask(phase)] if turn is Turn.OPEN or was_called else self._wait_in_queue(phase, turn, at)

    def _ask(self, phase: Seeking) -> OpenWatch:
        phase.target = Asking.ANSWER
        self._watch = WatchId(self._next_name())
        return OpenWatch(
            watch=Watch(watch=self._watch, hashes=self.spec.hashes, reserve_blocks=self.spec.reserve_blocks)
        )

    def _wait_in_queue(self, seeking: Seeking, turn: Turn, at: Seconds) -> list[Command]:
        since = seeking.since if isinstance(seeking, Refused) else at
        if self._has_waited_too_long(since, at):
            why = f"no room at node {self.spec.target}"
            return self._fail(CapacityExhausted(why, retry_after_s=self._limits.retry_after))
        phase, commands = self._refuse(seeking, at)
        if turn is Turn.CALLED:
            return [*commands, self._ask(phase)]
        phase.target = Asking.FIRST if turn is Turn.FIRST else Asking.BEHIND
        delay = self._limits.node_retry if turn is Turn.FIRST else self._limits.capacity_patience
        return [*commands, SetTimer(timer=Timer.TURN, delay=delay)]

    def _has_waited_too_long(self, since: Seconds, now: Seconds) -> bool:
        """Before the first token a client waits in line, as it does for its place; after it, for the next token."""
        if self._prefilled_at is not None and now - self._prefilled_at >= self._limits.capacity_patience:
            return True
        return self.demoted or now - since >= self._limits.max_queue

    def _refuse(self, seeking: Seeking, at: Seconds) -> tuple[Refused, list[Command]]:
        """What is sent to a target without capacity can't be kept."""
        if isinstance(seeking, Refused):
            return seeking, []
        phase = self._phase = Refused(target=seeking.target, since=at)
        return phase, [*self._tell_change(), *self._end_order()]

    def _on_report(self, num_ready: int, at: Seconds) -> list[Command]:
        phase = self._phase
        match phase:
            case Placed() | Refused() | Moving():
                return self._take_report(phase, num_ready, at)
            case Closing():
                if self._reaches_goal(num_ready) and not self.settled:
                    phase.state = DeliveryState.READY  # it is true, though nobody waits for it
                return []
            case New() | Ready():
                return []
            case _:
                assert_never(phase)

    def _reaches_goal(self, num_ready: int) -> bool:
        return num_ready >= (len(self.spec.hashes) if self.spec.goal is None else self.spec.goal)

    def _take_report(self, phase: Placed | Refused | Moving, num_ready: int, at: Seconds) -> list[Command]:
        self._target_patience.forget()
        before = phase.target.num_ready if isinstance(phase.target, Open) else None
        was_refused = isinstance(phase, Refused)
        if was_refused or (before is not None and num_ready > before):
            self._standstill.moved(at)
        leaving: list[Command] = [LeaveQueue()] if was_refused else []
        if self._reaches_goal(num_ready):
            return [*leaving, *self._become_ready()]
        if before is None and self._order is NoOrder.ALL_SENT:
            self._order = NoOrder.NOTHING_TO_SEND  # they came before there was capacity to keep them
        self._phase = Moving(target=Open(num_ready))
        tell = [] if isinstance(phase, Moving) else self._tell_change()
        return [*leaving, *self._begin_order(), *tell]

    def _become_ready(self) -> list[Command]:
        self._phase = Ready()
        return [*self._tell_change(), *(self._close(DeliveryState.READY) if self._detached else [])]

    def _on_watch_gone(self, error: PddError, at: Seconds) -> list[Command]:
        self._watch = None
        phase = self._phase
        match phase:
            case Placed() | Refused() | Moving():
                return self._bear_target(phase, error, at)
            case Releasing():
                return self._end(phase.state)
            case New() | Ready() | Acknowledging() | Stopping() | Ended():
                return []
            case _:
                assert_never(phase)

    def _bear_target(self, seeking: Placed | Refused | Moving, error: PddError, at: Seconds) -> list[Command]:
        if isinstance(error, CapacityExhausted):
            phase, commands = self._refuse(seeking, at)
            phase.target = Asking.TURN
            freeing: list[Command] = [] if self.demoted else [FreeCapacity()]
            return [JoinQueue(), *freeing, *commands, AskTurn()]
        if not self._target_patience.bears(error, at):
            self.is_targets_fault = True
            return self._fail(error)
        seeking.target = Asking.RETURN
        leaving: list[Command] = [LeaveQueue()] if isinstance(seeking, Refused) else []
        return [*leaving, SetTimer(timer=Timer.TARGET, delay=self._limits.node_retry)]

    # The source -------------------------------------------------------------------------------------------------------

    def _on_source(
        self, event: OrderBegun | OrderProgressed | OrderFailed | OrderEnded | SourceChecked
    ) -> list[Command]:
        match event:
            case OrderBegun():
                self._instance = self._instance or event.instance
                return []
            case OrderProgressed():
                stands = self._order == Standing(event.progress.order)
                return self._take_progress(event.progress, event.at) if stands else []
            case OrderFailed():
                if self._order == Standing(event.order):
                    self._order = Lost(event.order, event.error)
                return []
            case OrderEnded():
                return self._on_order_ended(event.order, event.at) if event.order in self._unended else []
            case SourceChecked():
                return self._on_source_checked(event.instance) if self._order is NoOrder.CHECK else []
            case _:
                assert_never(event)

    def _begin_order(self) -> list[Command]:
        """Unless there is one already, or nothing to send."""
        if self._order is not NoOrder.NOTHING_TO_SEND or self.spec.is_local:
            return []
        self._source_patience.forget()
        return [self._place_order()]

    def _place_order(self) -> PlaceOrder:
        self._sent_before, self.progress = self.sent, None
        self._order = Standing(OrderId(self._next_name()))
        self._unended.add(self._order.order)
        order = ReplicationOrder(
            order=self._order.order, target=self.spec.target, hashes=self.spec.hashes, send_class=self._send_class
        )
        return PlaceOrder(order=order)

    def _end_order(self) -> list[Command]:
        before, self._order = self._order, NoOrder.NOTHING_TO_SEND
        return [CancelOrder(order=before.order)] if isinstance(before, Standing) else []

    def _take_progress(self, progress: ReplicationProgress, at: Seconds) -> list[Command]:
        """Being placed is no progress: a node may accept an order again and again and never get through to its peer."""
        before, self.progress = self.progress, progress
        if progress.num_missing is not None:
            self._source_patience.forget()
        if before is not None and progress.num_acknowledged > before.num_acknowledged:
            self._standstill.moved(at)
        record = self._record()
        if progress.done:
            self._order = NoOrder.ALL_SENT
        is_new = progress.num_missing is not None and (before is None or before.num_missing is None)
        return [*record, TellInformed()] if is_new and self._is_heard() else record

    def _record(self) -> list[Command]:
        """What the source said last, and whether only the link is waited for now."""
        if self.progress is None or not isinstance(self._order, Standing):
            return []
        all_there = self._prefilled_at is not None and isinstance(self._phase, Moving)
        return [RecordProgress(progress=self.progress, all_there=all_there, send_class=self._send_class)]

    def _on_order_ended(self, order: OrderId, at: Seconds) -> list[Command]:
        self._unended.remove(order)
        before, phase = self._order, self._phase
        was_wanted = isinstance(before, Standing | Lost) and before.order == order
        if was_wanted:
            self._order = NoOrder.NOTHING_TO_SEND
        match phase:
            case Placed() | Refused() | Moving():
                why = f"node {self.spec.source} ended an order"
                error = before.error if isinstance(before, Lost) else NodeFailed(why)
                return self._bear_source(error, at) if was_wanted else []
            case Acknowledging():
                stands = isinstance(self._order, Standing | Lost)
                return [] if stands else self._stop(phase.state)
            case Stopping():
                return self._stop(phase.state)
            case New() | Ready() | Releasing() | Ended():
                return []
            case _:
                assert_never(phase)

    def _bear_source(self, error: PddError, at: Seconds) -> list[Command]:
        if not self._source_patience.bears(error, at):
            return self._fail(error)
        self._order = NoOrder.PAUSE
        return [SetTimer(timer=Timer.SOURCE, delay=self._limits.node_retry)]

    def _on_source_checked(self, instance: NodeInstance | None) -> list[Command]:
        """Blocks are written once: what a restarted source forgot it will never send."""
        if None not in (instance, self._instance) and instance != self._instance:
            return self._fail(NodeFailed(f"node {self.spec.source} restarted and lost the prompt's blocks"))
        return [self._place_order()]

    # Time -------------------------------------------------------------------------------------------------------------

    def _on_timer(self, timer: Timer, at: Seconds) -> list[Command]:
        phase = self._phase
        match timer:
            case Timer.TURN:
                return self._on_turn_due(phase, at) if isinstance(phase, Refused) else []
            case Timer.TARGET:
                if not isinstance(phase, Seeking) or phase.target is not Asking.RETURN:
                    return []
                phase.target = Asking.TURN
                return [AskTurn()]
            case Timer.SOURCE:
                if self._order is not NoOrder.PAUSE:
                    return []
                self._order = NoOrder.CHECK
                return [CheckSource()]
            case Timer.ACKNOWLEDGEMENT:
                return [*self._end_order(), *self._stop(phase.state)] if isinstance(phase, Acknowledging) else []
            case Timer.STANDSTILL:
                return []
            case _:
                assert_never(timer)

    def _on_turn_due(self, phase: Refused, at: Seconds) -> list[Command]:
        match phase.target:
            case Asking.FIRST:
                return [self._ask(phase)]
            case Asking.BEHIND:
                return self._wait_in_queue(phase, Turn.BEHIND, at)
            case Asking.TURN | Asking.ANSWER | Asking.RETURN | Open():
                return []
            case _:
                assert_never(phase.target)

    def _on_standstill(self, due: StandstillDue) -> list[Command]:
        """A block that the source never got, or lost before it was sent, never arrives."""
        if not isinstance(self._phase, Seeking):
            return []
        informed = self.progress is not None and self.progress.num_missing is not None
        stance = Stance(demoted=self.demoted, informed=informed, is_local=self.spec.is_local)
        left = self._standstill.look(due, stance)
        if left <= 0 and not isinstance(self._phase, Refused):
            why = "the line had nothing to spare for it" if self.demoted else "the transfer has come to a standstill"
            return self._fail(NodeFailed(why))
        return [SetTimer(timer=Timer.STANDSTILL, delay=self._standstill.again_after(left, due.at))]

    # What its owner says ----------------------------------------------------------------------------------------------

    def _on_word(self, event: PrefillDone | Demoted | Detached | Released | Crashed) -> list[Command]:
        match event:
            case PrefillDone():
                return self._on_prefilled(event.at)
            case Demoted():
                return self._demote(event.at)
            case Detached():
                self._detached = True
                return self._close(DeliveryState.READY) if isinstance(self._phase, Ready) else []
            case Released():
                return self._close(self.state)
            case Crashed():
                return self._crash()
            case _:
                assert_never(event)

    def _on_prefilled(self, at: Seconds) -> list[Command]:
        if self._prefilled_at is not None or not isinstance(self._phase, Seeking):
            return []
        self._prefilled_at = at
        self._standstill.moved(at)
        return [*self._record(), SetTimer(timer=Timer.STANDSTILL, delay=Seconds(0.0))]

    def _demote(self, at: Seconds) -> list[Command]:
        self._send_class = SendClass.BACKGROUND
        self._standstill.moved(at)
        if not isinstance(self._order, Standing):
            return []
        return [*self._record(), Reclassify(order=self._order.order, send_class=self._send_class)]

    # The end ----------------------------------------------------------------------------------------------------------

    def _is_heard(self) -> bool:
        return not self._detached and not self.released

    def _tell_change(self) -> list[Command]:
        return [*self._record(), *([TellChange()] if self._is_heard() else [])]

    def _fail(self, error: PddError) -> list[Command]:
        tell: list[Command] = [*self._leave_queue(), *([TellChange()] if self._is_heard() else [])]
        self.error, self._phase = error, Stopping(state=DeliveryState.FAILED)
        return [*self._record(), *tell, *self._end_order(), *self._stop(DeliveryState.FAILED)]

    def _crash(self) -> list[Command]:
        if isinstance(self._phase, Ended):
            return []
        tell: list[Command] = [TellChange()] if self._is_heard() and not self.settled else []
        self._order, self._watch = NoOrder.NOTHING_TO_SEND, None
        self._unended.clear()
        self._phase = Ended(state=self.state if self.settled else DeliveryState.FAILED)
        return tell

    def _close(self, state: DeliveryState) -> list[Command]:
        """Once: what is being closed already takes its course."""
        if self.released:
            return []
        if self._detached and isinstance(self._phase, Ready) and isinstance(self._order, Standing):
            self._phase = Acknowledging(state=state)
            return [SetTimer(timer=Timer.ACKNOWLEDGEMENT, delay=self._limits.capacity_patience)]
        return [*self._leave_queue(), *self._end_order(), *self._stop(state)]

    def _leave_queue(self) -> list[Command]:
        """One that has asked already may have been given capacity: the next one waits until that is released."""
        return [LeaveQueue()] if isinstance(self._phase, Refused) and self._watch is None else []

    def _stop(self, state: DeliveryState) -> list[Command]:
        """Nothing is sent any more by the time that the capacity for it is given up."""
        if self._unended:
            self._phase = Stopping(state=state)
            return []
        if self._watch is None:
            return self._end(state)
        self._phase = Releasing(state=state)
        return [CloseWatch(watch=self._watch)]

    def _end(self, state: DeliveryState) -> list[Command]:
        self._phase = Ended(state=state)
        return [End()]

    def _next_name(self) -> str:
        self._num_names += 1
        return f"{self.spec.name}.{self._num_names}"
