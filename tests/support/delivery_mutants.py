"""Hand-made mutants of a delivery, its standstill and its queue: each removes one guard, and a script or property
notices it.
"""

from __future__ import annotations

from tests.support.mutants import Mutant


def _of(module: str, *mutants: tuple[str, str, str]) -> list[Mutant]:
    """From (guard, old, new)."""
    return [Mutant(guard, f"protocol.{module}", old, new) for guard, old, new in mutants]


MUTANTS: tuple[Mutant, ...] = (
    *_of(
        "delivery",
        # The target
        (
            "it begins once",
            "return self._begin(event) if isinstance(self._phase, New) else []",
            "return self._begin(event)",
        ),
        ("the wait counts from the beginning", "        self._standstill.moved(event.at)\n", ""),
        ("newcomers stand behind", "        if event.turn is not Turn.OPEN:\n", "        if False:\n"),
        ("watch and order go out together", "[self._ask(phase), *self._begin_order()]", "[self._ask(phase)]"),
        ("foreign reports are ignored", "        return watch == self._watch\n", "        return True\n"),
        ("only who waits is called", "return [AskTurn()] if self._waits_in_queue() else []", "return [AskTurn()]"),
        (
            "who has asked need not be called",
            "and self._phase.target in (Asking.BEHIND, Asking.FIRST)",
            "and not isinstance(self._phase.target, Open)",
        ),
        (
            "a turn that nobody asked for is none",
            "        if phase.target is not Asking.TURN and not self._waits_in_queue():\n            return []\n",
            "",
        ),
        (
            "who is called asks however long it has waited",
            "turn is Turn.OPEN or was_called else",
            "turn is Turn.OPEN else",
        ),
        ("where nobody waits one asks at once", "turn is Turn.OPEN or was_called else", "was_called else"),
        (
            "who was refused too late asks no more, called or not",
            "was_called = self._waits_in_queue() and turn is Turn.CALLED",
            "was_called = turn is Turn.CALLED",
        ),
        (
            "what was released while it asked counts",
            "        if turn is Turn.CALLED:\n            return [*commands, self._ask(phase)]\n",
            "",
        ),
        ("a watch is this delivery's own", "WatchId(self._next_name())", 'WatchId(f"{self.spec.name}.1")'),
        ("a reservation is as large as needed", "reserve_blocks=self.spec.reserve_blocks", "reserve_blocks=0"),
        (
            "who has waited for too long fails",
            "        if self._has_waited_too_long(since, at):\n",
            "        if False:\n",
        ),
        (
            "the wait counts from the first refusal",
            "since = seeking.since if isinstance(seeking, Refused) else at",
            "since = at",
        ),
        (
            "the first asks again soon",
            "delay = self._limits.node_retry if turn is Turn.FIRST else self._limits.capacity_patience",
            "delay = self._limits.capacity_patience",
        ),
        (
            "who was refused waits before it asks again",
            "delay = self._limits.node_retry if turn is Turn.FIRST",
            "delay = Seconds(0.0) if turn is Turn.FIRST",
        ),
        (
            "the others ask no more often than the first",
            "phase.target = Asking.FIRST if turn is Turn.FIRST else Asking.BEHIND",
            "phase.target = Asking.FIRST",
        ),
        (
            "who stands in the queue looks around",
            "        return [*commands, SetTimer(timer=Timer.TURN, delay=delay)]\n",
            "        return commands\n",
        ),
        (
            "after the first token it waits less",
            "now - self._prefilled_at >= self._limits.capacity_patience:",
            "False:",
        ),
        (
            "what nobody waits for takes no position",
            "        return self.demoted or now - since >= self._limits.max_queue\n",
            "        return now - since >= self._limits.max_queue\n",
        ),
        (
            "nobody waits for ever",
            "        return self.demoted or now - since >= self._limits.max_queue\n",
            "        return self.demoted\n",
        ),
        (
            "without capacity nothing is sent",
            "        return phase, [*self._tell_change(), *self._end_order()]\n",
            "        return phase, self._tell_change()\n",
        ),
        (
            "a refusal is told",
            "        return phase, [*self._tell_change(), *self._end_order()]\n",
            "        return phase, self._end_order()\n",
        ),
        (
            "a refusal is told once",
            "        if isinstance(seeking, Refused):\n            return seeking, []\n",
            "",
        ),
        (
            "what is there is there, whoever counts on it",
            "                    phase.state = DeliveryState.READY  # it is true, though nobody waits for it\n",
            "                    pass\n",
        ),
        (
            "what has failed stays so",
            "if self._reaches_goal(num_ready) and not self.settled:",
            "if self._reaches_goal(num_ready):",
        ),
        ("all blocks are the goal", "num_ready >= (len(", "num_ready >= -1 + (len("),
        (
            "a goal may be smaller",
            "len(self.spec.hashes) if self.spec.goal is None else self.spec.goal",
            "len(self.spec.hashes)",
        ),
        ("a target that reports is well", "        self._target_patience.forget()\n", ""),
        (
            "with capacity the wait begins anew",
            "if was_refused or (before is not None and num_ready > before):",
            "if before is not None and num_ready > before:",
        ),
        (
            "what arrives begins the wait anew",
            "if was_refused or (before is not None and num_ready > before):",
            "if was_refused:",
        ),
        (
            "what was there has not arrived",
            "if was_refused or (before is not None and num_ready > before):",
            "if was_refused or before is None or num_ready > before:",
        ),
        (
            "what does not grow has not arrived",
            "if was_refused or (before is not None and num_ready > before):",
            "if was_refused or before is not None:",
        ),
        (
            "with capacity it leaves the queue",
            "leaving: list[Command] = [LeaveQueue()] if was_refused else []",
            "leaving: list[Command] = []",
        ),
        (
            "all of the goal makes it ready",
            "        if self._reaches_goal(num_ready):\n            return [*leaving",
            "        if False:\n            return [*leaving",
        ),
        (
            "what came before there was capacity is sent again",
            "if before is None and self._order is NoOrder.ALL_SENT:",
            "if False:",
        ),
        (
            "what came later is not",
            "if before is None and self._order is NoOrder.ALL_SENT:",
            "if self._order is NoOrder.ALL_SENT:",
        ),
        ("with capacity it is sent", "return [*leaving, *self._begin_order(), *tell]", "return [*leaving, *tell]"),
        (
            "that it moves is told once",
            "tell = [] if isinstance(phase, Moving) else self._tell_change()",
            "tell = self._tell_change()",
        ),
        (
            "one that nobody waits for ends when it is ready",
            "*(self._close(DeliveryState.READY) if self._detached else [])",
            "",
        ),
        (
            "a watch that is gone is not closed",
            "        self._watch = None\n        phase = self._phase\n",
            "        phase = self._phase\n",
        ),
        (
            "it ends when its watch is closed",
            "                return self._end(phase.state)\n",
            "                return []\n",
        ),
        (
            "a full target is not away",
            "        if isinstance(error, CapacityExhausted):\n",
            "        if False:\n",
        ),
        (
            "what nobody waits for drives nobody out",
            "freeing: list[Command] = [] if self.demoted else [FreeCapacity()]",
            "freeing: list[Command] = [FreeCapacity()]",
        ),
        (
            "what somebody waits for drives others out",
            "freeing: list[Command] = [] if self.demoted else [FreeCapacity()]",
            "freeing: list[Command] = []",
        ),
        ("who was refused stands in the queue", "return [JoinQueue(), *freeing,", "return [*freeing,"),
        ("whose fault it is is known", "            self.is_targets_fault = True\n", ""),
        (
            "patience with a target has an end",
            "        if not self._target_patience.bears(error, at):\n",
            "        if False:\n",
        ),
        (
            "whose target is away keeps nobody waiting",
            "leaving: list[Command] = [LeaveQueue()] if isinstance(seeking, Refused) else []\n        return [*leaving, SetTimer(timer=Timer.TARGET",
            "leaving: list[Command] = []\n        return [*leaving, SetTimer(timer=Timer.TARGET",
        ),
        # The source
        (
            "the first lifetime counts",
            "self._instance = self._instance or event.instance",
            "self._instance = event.instance or self._instance",
        ),
        (
            "what a cancelled order says is late",
            "return self._take_progress(event.progress, event.at) if stands else []",
            "return self._take_progress(event.progress, event.at)",
        ),
        (
            "a failure of another order is not its own",
            "                if self._order == Standing(event.order):\n                    self._order",
            "                if True:\n                    self._order",
        ),
        (
            "an order ends once",
            "if event.order in self._unended else []",
            "if True else []",
        ),
        (
            "an answer that nobody awaits is ignored",
            "return self._on_source_checked(event.instance) if self._order is NoOrder.CHECK else []",
            "return self._on_source_checked(event.instance)",
        ),
        (
            "one order stands at most",
            "        if self._order is not NoOrder.NOTHING_TO_SEND or self.spec.is_local:\n",
            "        if self.spec.is_local:\n",
        ),
        (
            "a shared node is sent nothing",
            "        if self._order is not NoOrder.NOTHING_TO_SEND or self.spec.is_local:\n",
            "        if self._order is not NoOrder.NOTHING_TO_SEND:\n",
        ),
        (
            "patience with the source begins anew with capacity",
            "        self._source_patience.forget()\n        return [self._place_order()]\n",
            "        return [self._place_order()]\n",
        ),
        ("what was sent before counts", "self._sent_before, self.progress = self.sent, None", "self.progress = None"),
        (
            "another order has said nothing yet",
            "self._sent_before, self.progress = self.sent, None",
            "self._sent_before = self.sent",
        ),
        ("orders that have not ended are known", "        self._unended.add(self._order.order)\n", ""),
        (
            "an order is of the class that it is in",
            "send_class=self._send_class\n        )\n        return PlaceOrder",
            "send_class=self.spec.send_class\n        )\n        return PlaceOrder",
        ),
        (
            "what stands is cancelled",
            "return [CancelOrder(order=before.order)] if isinstance(before, Standing) else []",
            "return []",
        ),
        (
            "being placed is no progress",
            "        if progress.num_missing is not None:\n            self._source_patience.forget()\n",
            "        self._source_patience.forget()\n",
        ),
        (
            "a target that has answered is one",
            "        if progress.num_missing is not None:\n            self._source_patience.forget()\n",
            "",
        ),
        (
            "an acknowledgement is an arrival",
            "if before is not None and progress.num_acknowledged > before.num_acknowledged:",
            "if False:",
        ),
        (
            "a report without one is none",
            "if before is not None and progress.num_acknowledged > before.num_acknowledged:",
            "if before is not None:",
        ),
        (
            "an order that is done stands no more",
            "        if progress.done:\n            self._order = NoOrder.ALL_SENT\n",
            "",
        ),
        (
            "what is lacked is told once",
            "is_new = progress.num_missing is not None and (before is None or before.num_missing is None)",
            "is_new = progress.num_missing is not None",
        ),
        (
            "it is told when it is known",
            "is_new = progress.num_missing is not None and (before is None or before.num_missing is None)",
            "is_new = before is None",
        ),
        (
            "nobody is told who has left",
            "return [*record, TellInformed()] if is_new and self._is_heard() else record",
            "return [*record, TellInformed()] if is_new else record",
        ),
        (
            "before prefill is done not all is there",
            "all_there = self._prefilled_at is not None and isinstance(self._phase, Moving)",
            "all_there = isinstance(self._phase, Moving)",
        ),
        (
            "without capacity the link is not waited for",
            "all_there = self._prefilled_at is not None and isinstance(self._phase, Moving)",
            "all_there = self._prefilled_at is not None",
        ),
        (
            "what stands no more is not recorded",
            "if self.progress is None or not isinstance(self._order, Standing):",
            "if self.progress is None:",
        ),
        (
            "an order that was cancelled is not lost",
            "was_wanted = isinstance(before, Standing | Lost) and before.order == order",
            "was_wanted = isinstance(before, Standing | Lost)",
        ),
        (
            "why it was lost is known",
            "error = before.error if isinstance(before, Lost) else NodeFailed(why)",
            "error = NodeFailed(why)",
        ),
        (
            "only its own order has the last acknowledgement",
            "return [] if stands else self._stop(phase.state)",
            "return self._stop(phase.state)",
        ),
        (
            "with the last acknowledgement it ends",
            "return [] if stands else self._stop(phase.state)",
            "return []",
        ),
        (
            "when orders have ended capacity is given up",
            "            case Stopping():\n                return self._stop(phase.state)\n",
            "            case Stopping():\n                return []\n",
        ),
        (
            "patience with a source has an end",
            "        if not self._source_patience.bears(error, at):\n",
            "        if False:\n",
        ),
        (
            "a source that restarted has lost the blocks",
            "        if None not in (instance, self._instance) and instance != self._instance:\n",
            "        if False:\n",
        ),
        (
            "one that does not answer has not restarted",
            "        if None not in (instance, self._instance) and instance != self._instance:\n",
            "        if self._instance is not None and instance != self._instance:\n",
        ),
        (
            "of one that was never seen nothing is known",
            "        if None not in (instance, self._instance) and instance != self._instance:\n",
            "        if instance is not None and instance != self._instance:\n",
        ),
        # Time
        (
            "a turn is due to those that wait for it",
            "return self._on_turn_due(phase, at) if isinstance(phase, Refused) else []",
            "return []",
        ),
        (
            "a target is asked again when it was away",
            "if not isinstance(phase, Seeking) or phase.target is not Asking.RETURN:",
            "if not isinstance(phase, Seeking):",
        ),
        (
            "a source is checked when its order was lost",
            "                if self._order is not NoOrder.PAUSE:\n",
            "                if False:\n",
        ),
        (
            "an acknowledgement is not waited for longer",
            "[*self._end_order(), *self._stop(phase.state)] if isinstance(phase, Acknowledging) else []",
            "[]",
        ),
        (
            "what still stands then is cancelled",
            "[*self._end_order(), *self._stop(phase.state)] if isinstance(phase, Acknowledging) else []",
            "self._stop(phase.state) if isinstance(phase, Acknowledging) else []",
        ),
        (
            "the first asks again",
            "            case Asking.FIRST:\n                return [self._ask(phase)]\n",
            "            case Asking.FIRST:\n                return []\n",
        ),
        (
            "the others do not",
            "                return self._wait_in_queue(phase, Turn.BEHIND, at)\n",
            "                return [self._ask(phase)]\n",
        ),
        (
            "what is settled does not stand still",
            "        if not isinstance(self._phase, Seeking):\n            return []\n        informed",
            "        informed",
        ),
        ("a standstill ends it", "if left <= 0 and not isinstance(self._phase, Refused):", "if False:"),
        (
            "without capacity it does not stand still",
            "if left <= 0 and not isinstance(self._phase, Refused):",
            "if left <= 0:",
        ),
        (
            "it looks again",
            "        return [SetTimer(timer=Timer.STANDSTILL, delay=self._standstill.again_after(left, due.at))]\n",
            "        return []\n",
        ),
        # What its owner says
        (
            "one that nobody waits for any more ends when it is ready already",
            "return self._close(DeliveryState.READY) if isinstance(self._phase, Ready) else []",
            "return []",
        ),
        (
            "prefill is done once",
            "if self._prefilled_at is not None or not isinstance(self._phase, Seeking):",
            "if not isinstance(self._phase, Seeking):",
        ),
        (
            "from the end of prefill a standstill counts",
            "return [*self._record(), SetTimer(timer=Timer.STANDSTILL, delay=Seconds(0.0))]",
            "return self._record()",
        ),
        (
            "the wait begins with the end of prefill",
            "        self._prefilled_at = at\n        self._standstill.moved(at)\n",
            "        self._prefilled_at = at\n",
        ),
        ("a demotion begins another wait", "BACKGROUND\n        self._standstill.moved(at)\n", "BACKGROUND\n"),
        (
            "a demotion reaches the source",
            "return [*self._record(), Reclassify(order=self._order.order, send_class=self._send_class)]",
            "return self._record()",
        ),
        (
            "the link hears of a demotion",
            "return [*self._record(), Reclassify(order=self._order.order, send_class=self._send_class)]",
            "return [Reclassify(order=self._order.order, send_class=self._send_class)]",
        ),
        # The end
        (
            "who is detached hears nothing",
            "return not self._detached and not self.released",
            "return not self.released",
        ),
        (
            "who is released hears nothing",
            "return not self._detached and not self.released",
            "return not self._detached",
        ),
        (
            "a change is recorded",
            "return [*self._record(), *([TellChange()] if self._is_heard() else [])]",
            "return [TellChange()] if self._is_heard() else []",
        ),
        (
            "one that fails stops what is sent",
            "return [*self._record(), *tell, *self._end_order(), *self._stop(DeliveryState.FAILED)]",
            "return [*self._record(), *tell, *self._stop(DeliveryState.FAILED)]",
        ),
        (
            "one that fails is recorded",
            "return [*self._record(), *tell, *self._end_order(), *self._stop(DeliveryState.FAILED)]",
            "return [*tell, *self._end_order(), *self._stop(DeliveryState.FAILED)]",
        ),
        (
            "a crash after the end is none",
            "        if isinstance(self._phase, Ended):\n            return []\n        tell",
            "        tell",
        ),
        (
            "what was ready stays so",
            "state=self.state if self.settled else DeliveryState.FAILED",
            "state=DeliveryState.FAILED",
        ),
        (
            "a crash is told",
            "tell: list[Command] = [TellChange()] if self._is_heard() and not self.settled else []",
            "tell: list[Command] = []",
        ),
        (
            "it is closed once",
            "        if self.released:\n            return []\n        if self._detached",
            "        if self._detached",
        ),
        (
            "a last acknowledgement is waited for",
            "if self._detached and isinstance(self._phase, Ready) and isinstance(self._order, Standing):",
            "if False:",
        ),
        (
            "one that is released while somebody waits for it is not",
            "if self._detached and isinstance(self._phase, Ready) and isinstance(self._order, Standing):",
            "if isinstance(self._phase, Ready) and isinstance(self._order, Standing):",
        ),
        (
            "one that is not ready has none",
            "if self._detached and isinstance(self._phase, Ready) and isinstance(self._order, Standing):",
            "if self._detached and isinstance(self._order, Standing):",
        ),
        (
            "without an order there is none",
            "if self._detached and isinstance(self._phase, Ready) and isinstance(self._order, Standing):",
            "if self._detached and isinstance(self._phase, Ready):",
        ),
        (
            "it does not leave before its capacity is released",
            "isinstance(self._phase, Refused) and self._watch is None else []",
            "isinstance(self._phase, Refused) else []",
        ),
        (
            "who waits in the queue leaves it",
            "isinstance(self._phase, Refused) and self._watch is None else []",
            "False else []",
        ),
        (
            "capacity is given up last",
            "        if self._unended:\n            self._phase",
            "        if False:\n            self._phase",
        ),
        (
            "what is not held is not closed",
            "        if self._watch is None:\n            return self._end(state)\n",
            "",
        ),
        ("each has a name of its own", "        self._num_names += 1\n", ""),
        # What it reports
        (
            "what shares a node lacks nothing",
            "        if self.state is DeliveryState.READY or self.spec.is_local:\n",
            "        if self.state is DeliveryState.READY:\n",
        ),
        (
            "what is ready lacks nothing",
            "        if self.state is DeliveryState.READY or self.spec.is_local:\n",
            "        if self.spec.is_local:\n",
        ),
        (
            "what has arrived is not missing",
            "return self.progress.num_missing - self.progress.num_acknowledged",
            "return self.progress.num_missing",
        ),
        # Patience
        ("the first trouble counts", "self._since = now if self._since is None else self._since", "self._since = now"),
        (
            "what waiting cannot help is not waited for",
            "return not isinstance(error, ContextTooLong | Incompatible | BlocksLost) and now",
            "return now",
        ),
        ("blocks that are lost are", "ContextTooLong | Incompatible | BlocksLost", "ContextTooLong | Incompatible"),
        ("another format stays so", "ContextTooLong | Incompatible | BlocksLost", "ContextTooLong | BlocksLost"),
        ("what is too long stays so", "ContextTooLong | Incompatible | BlocksLost", "Incompatible | BlocksLost"),
    ),
    *_of(
        "standstill",
        (
            "what arrives ends a queue's patience",
            "self._moved_at, self._queue_patience = now, Seconds(0.0)",
            "self._moved_at = now",
        ),
        ("a process that slept blames nobody", "        self._make_good(due.at)\n", ""),
        (
            "a little late is no excuse",
            "        if late_by > self._limits.node_retry:\n",
            "        if late_by > 0.0:\n",
        ),
        (
            "the longest queue counts",
            "max(self._queue_patience, self._patience_with_queue(due.link))",
            "self._patience_with_queue(due.link)",
        ),
        (
            "it does not look all the time",
            "max(self._limits.node_retry, min(left, LOOK_EVERY))",
            "min(left, LOOK_EVERY)",
        ),
        ("it looks often enough", "min(left, LOOK_EVERY)", "left"),
        (
            "others are served meanwhile",
            "link_moved_at = max(self._moved_at, due.link_moved_at)",
            "link_moved_at = self._moved_at",
        ),
        ("what nobody waits for is patient", "        if stance.demoted:\n", "        if False:\n"),
        (
            "background work is work",
            "has_work = link.backlog + link.background_backlog > 0",
            "has_work = link.backlog > 0",
        ),
        (
            "so is what others wait for",
            "has_work = link.backlog + link.background_backlog > 0",
            "has_work = link.background_backlog > 0",
        ),
        (
            "a source with nothing is not waited for so long",
            "limits.link_patience if has_work or not stance.informed else limits.source_patience",
            "limits.link_patience",
        ),
        (
            "a target that has said nothing is",
            "limits.link_patience if has_work or not stance.informed else limits.source_patience",
            "limits.link_patience if has_work else limits.source_patience",
        ),
        (
            "what gets nothing to spare ends",
            "min(link_moved_at + patience, self._moved_at + limits.spare_patience)",
            "(link_moved_at + patience)",
        ),
        ("within a node nothing is under way", "        if stance.is_local:\n", "        if False:\n"),
        ("a source that is late is not waited for", "        if due.source_is_late:\n", "        if False:\n"),
        (
            "before a target has answered it takes longer",
            "node_patience = limits.source_patience if stance.informed else limits.node_patience",
            "node_patience = limits.source_patience",
        ),
        (
            "a source that has nothing takes less",
            "node_patience = limits.source_patience if stance.informed else limits.node_patience",
            "node_patience = limits.node_patience",
        ),
        (
            "a link with work takes longer",
            "link_patience = limits.link_patience if link.backlog > 0 else node_patience",
            "link_patience = node_patience",
        ),
        (
            "one without takes less",
            "link_patience = limits.link_patience if link.backlog > 0 else node_patience",
            "link_patience = limits.link_patience",
        ),
        (
            "a queue is waited for",
            "max(node_patience, self._queue_patience, link_patience)",
            "max(node_patience, link_patience)",
        ),
        ("twice, since others come", "min(2 * queue_s, ", "min(queue_s, "),
        ("but not for ever", "min(2 * queue_s, self._limits.max_queue_patience)", "2 * queue_s"),
    ),
    *_of(
        "capacity_queue",
        ("while nobody waits everybody asks", "        if not self._is_called:\n            return Turn.OPEN\n", ""),
        ("newcomers stand in the queue", "        self.join(waiter)\n", ""),
        ("only the first asks", "        if self._first() != waiter:\n            return Turn.BEHIND\n", ""),
        ("who is called is called once", "self._is_called[waiter], False", "self._is_called[waiter], True"),
        ("who is called asks at once", "return Turn.CALLED if is_called else Turn.FIRST", "return Turn.FIRST"),
        ("who is not waits", "return Turn.CALLED if is_called else Turn.FIRST", "return Turn.CALLED"),
        (
            "a position is kept",
            "        self._is_called.setdefault(waiter, False)\n",
            "        self._is_called.pop(waiter, None)\n        self._is_called[waiter] = False\n",
        ),
        ("who leaves is gone", "        self._is_called.pop(waiter, None)\n", ""),
        ("who leaves lets the next one ask", "return self.release() if was_first else None", "return None"),
        ("only the first does", "return self.release() if was_first else None", "return self.release()"),
        ("what was released is not forgotten", "            self._is_called[first] = True\n", "            pass\n"),
    ),
)
