"""Hand-made mutants of ``protocol/relay.py``: each removes one guard. The suite must notice every one of them.

A mutant that no sequence of events can tell from the original is not listed.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """``old`` occurs exactly once in the source."""

    guard: str
    old: str
    new: str


MUTANTS: tuple[Mutant, ...] = (
    # Plan and calling order
    Mutant("an answer has at least one token", "if self.max_tokens < 1:", "if False:"),
    Mutant("a cap is at least one", "self.relay_cap < max(1, self.relay_floor)", "self.relay_cap < self.relay_floor"),
    Mutant("a cap is at least the floor", "self.relay_cap < max(1, self.relay_floor)", "self.relay_cap < 1"),
    Mutant("a relay starts once", "        if self._started:\n", "        if False:\n"),
    Mutant("no event before the start", "        if not self._started:\n", "        if False:\n"),
    Mutant("nothing follows the end", "        if self._finished:\n            return []\n", ""),
    # Whose tokens
    Mutant(
        "tokens of the live attempt only",
        "if decoder is None or event.attempt != decoder.attempt:",
        "if decoder is None:",
    ),
    Mutant(
        "a contradictory decoder is stopped",
        "return [Stop(attempt=decoder.attempt), *self._lose_decoder(decoder)]",
        "return self._lose_decoder(decoder)",
    ),
    Mutant("main's first token releases relay's KV", "commands += self._release_relay()", "pass"),
    Mutant(
        "only main's tokens release relay's KV",
        "            if decoder.role is Role.MAIN_DECODE:\n                commands",
        "            if True:\n                commands",
    ),
    Mutant("a stop token ends the answer", "if fresh and fresh[-1] in self._plan.stop_token_ids:", "if False:"),
    Mutant(
        "an engine may stop of its own accord",
        "if event.finish_reason is FinishReason.STOP and event.end_position == self.num_emitted:",
        "if False:",
    ),
    Mutant(
        "a stop beyond what was asked for is not the answer's",
        "if event.finish_reason is FinishReason.STOP and event.end_position == self.num_emitted:",
        "if event.finish_reason is FinishReason.STOP and event.end_position <= self.num_emitted:",
    ),
    Mutant(
        "a stop before what is out is not the answer's",
        "if event.finish_reason is FinishReason.STOP and event.end_position == self.num_emitted:",
        "if event.finish_reason is FinishReason.STOP and event.end_position >= self.num_emitted:",
    ),
    Mutant("the budget ends the answer", "if self.num_emitted == self._plan.max_tokens:", "if False:"),
    Mutant("a capped decoder has ended", "if self.num_emitted == decoder.end:", "if False:"),
    Mutant("a short end is a loss", "        if event.finish_reason is not None:\n", "        if False:\n"),
    Mutant("the prefill that ends lets the route be asked", "return commands + self._advance()", "return commands"),
    # What of a span is new
    Mutant("no gap before a span", "if overlap < 0 or event.first_position < 0:", "if event.first_position < 0:"),
    Mutant("no negative position", "if overlap < 0 or event.first_position < 0:", "if overlap < 0:"),
    Mutant("repeated tokens must agree", "if event.tokens[: len(repeated)] != repeated:", "if False:"),
    Mutant(
        "repeated tokens are cut",
        "event.tokens[overlap : overlap + decoder.end - self.num_emitted]",
        "event.tokens[: decoder.end - self.num_emitted]",
    ),
    Mutant(
        "tokens beyond what was asked for are cut",
        "event.tokens[overlap : overlap + decoder.end - self.num_emitted]",
        "event.tokens[overlap:]",
    ),
    Mutant(
        "tokens after a stop token are cut",
        "                return fresh[: index + 1]\n",
        "                return fresh\n",
    ),
    Mutant("the stop token itself is emitted", "return fresh[: index + 1]", "return fresh[:index]"),
    # Emitting
    Mutant(
        "prefill's token is not eager",
        "if self._route is not None and decoder.role is not Role.MAIN_DECODE:",
        "if decoder.role is not Role.MAIN_DECODE:",
    ),
    Mutant("eager tokens are counted", "self._num_eager += len(tokens)", "pass"),
    Mutant(
        "a token ends a recovery",
        "        self._emitted.extend(tokens)\n        self._recovery = None\n",
        "        self._emitted.extend(tokens)\n",
    ),
    Mutant(
        "a decoder that said so is not stopped",
        "[Stop(attempt=event.attempt)] if event.finish_reason is None else []",
        "[Stop(attempt=event.attempt)]",
    ),
    Mutant(
        "a decoder that goes on is stopped",
        "[Stop(attempt=event.attempt)] if event.finish_reason is None else []",
        "[]",
    ),
    Mutant(
        "a decoder that ended is no decoder",
        "        self._decoder = None\n        self._handoff_asked = False\n        return stop",
        "        self._handoff_asked = False\n        return stop",
    ),
    Mutant(
        "a question dies with its decoder's end",
        "        self._decoder = None\n        self._handoff_asked = False\n        return stop",
        "        self._decoder = None\n        return stop",
    ),
    # Extends and transfers
    Mutant("extends of the live attempt only", "if extend is None or attempt != extend.attempt:", "if extend is None:"),
    Mutant("an extend ends", "        self._extend = None\n        self._num_extended", "        self._num_extended"),
    Mutant("extended tokens count", "self._num_extended = extend.num_known", "pass"),
    Mutant(
        "after an extend main holds the prompt",
        "self._transfers[Role.MAIN_DECODE].progress = _Progress.READY",
        "pass",
    ),
    Mutant(
        "transfers of this attempt only",
        "if transfer.attempt == attempt and not transfer.settled:",
        "if not transfer.settled:",
    ),
    Mutant(
        "a settled transfer stays as it is",
        "if transfer.attempt == attempt and not transfer.settled:",
        "if transfer.attempt == attempt:",
    ),
    Mutant(
        "a failed transfer is settled",
        "return self.progress is not _Progress.MOVING",
        "return self.progress is _Progress.READY",
    ),
    # Losses
    Mutant(
        "a lost extend of this attempt only",
        "if self._extend is not None and attempt == self._extend.attempt:",
        "if self._extend is not None:",
    ),
    Mutant("an extend may be lost", "if self._extend is not None and attempt == self._extend.attempt:", "if False:"),
    Mutant(
        "main that was lost in an extend is lost",
        "            self._extend = None\n            self._main_lost = True\n",
        "            self._extend = None\n",
    ),
    Mutant(
        "a lost extend is over",
        "            self._extend = None\n            self._main_lost = True\n",
        "            self._main_lost = True\n",
    ),
    Mutant(
        "a lost decoder of this attempt only",
        "        if decoder is None or attempt != decoder.attempt:\n            return []\n        if self._route",
        "        if decoder is None:\n            return []\n        if self._route",
    ),
    Mutant("without prefill nothing starts", "if self._route is None and unavailable:", "if False:"),
    Mutant("only prefill is indispensable", "if self._route is None and unavailable:", "if unavailable:"),
    Mutant("a lost prefill is not unavailable", "if self._route is None and unavailable:", "if self._route is None:"),
    Mutant(
        "what was not started is not stopped",
        "            self._decoder = None\n            return self._fail(",
        "            return self._fail(",
    ),
    Mutant(
        "before the first token prefill starts again",
        "        if not self._emitted:\n            return self._restart_prefill()\n",
        "",
    ),
    Mutant(
        "a question dies with its decoder's loss",
        "        self._handoff_asked = False\n        if decoder.role",
        "        if decoder.role",
    ),
    Mutant(
        "a lost main is remembered",
        "        if decoder.role is Role.MAIN_DECODE:\n            self._main_lost = True\n",
        "",
    ),
    Mutant(
        "losing another is not losing main",
        "        if decoder.role is Role.MAIN_DECODE:\n            self._main_lost = True\n",
        "        self._main_lost = True\n",
    ),
    Mutant(
        "a recovery remembers who was tried",
        "self._recovery = self._recovery or _Recovery()",
        "self._recovery = _Recovery()",
    ),
    Mutant("who was lost was tried", "self._recovery.tried.add(decoder.role)", "pass"),
    # Questions
    Mutant("a route was asked for", "        if not self._route_asked:\n", "        if False:\n"),
    Mutant(
        "a route question is answered once",
        "        self._route_asked = False\n        self._route = route\n",
        "        self._route = route\n",
    ),
    Mutant(
        "only a relay needs relay's KV",
        "if route is Route.RELAY and Role.RELAY_DECODE not in self._transfers:",
        "if Role.RELAY_DECODE not in self._transfers:",
    ),
    Mutant(
        "relay's KV is ordered once",
        "if route is Route.RELAY and Role.RELAY_DECODE not in self._transfers:",
        "if route is Route.RELAY:",
    ),
    Mutant(
        "relay's KV is ordered", "if route is Route.RELAY and Role.RELAY_DECODE not in self._transfers:", "if False:"
    ),
    Mutant("a hand-off was asked for", "if not self._handoff_asked or decoder is None:", "if decoder is None:"),
    Mutant(
        "a hand-off question is answered once",
        "        self._handoff_asked = False\n        self._previous_gap",
        "        self._previous_gap",
    ),
    Mutant("the last gap is told", "        self._previous_gap = self._gap()\n", ""),
    Mutant(
        "relay decode stops before main starts",
        "return [Stop(attempt=decoder.attempt), self._start_decode(Role.MAIN_DECODE)]",
        "return [self._start_decode(Role.MAIN_DECODE), Stop(attempt=decoder.attempt)]",
    ),
    Mutant(
        "relay decode stops at the hand-off",
        "return [Stop(attempt=decoder.attempt), self._start_decode(Role.MAIN_DECODE)]",
        "return [self._start_decode(Role.MAIN_DECODE)]",
    ),
    Mutant("rounds are counted", "self._rounds += 1", "pass"),
    # Timers
    Mutant(
        "the reroute timer asks only if it may",
        "return self._ask_route() if self._may_reroute() else []",
        "return self._ask_route()",
    ),
    Mutant("the reroute timer asks", "return self._ask_route() if self._may_reroute() else []", "return []"),
    Mutant("waiting P-MD is asked again", "        if self._may_reroute():\n", "        if False:\n"),
    Mutant("only waiting P-MD is asked again", "        if self._may_reroute():\n", "        if True:\n"),
    Mutant(
        "the recovery timer counts only while all wait",
        "if self._recovery is None or not self._recovery.waiting:",
        "if self._recovery is None:",
    ),
    Mutant("waiting ends", "                self._recovery.waiting = False\n", ""),
    Mutant("all are tried again", "                self._recovery.tried.clear()\n", ""),
    Mutant(
        "recovery goes on after its timer",
        "self._recovery.tried.clear()\n                return self._advance()",
        "self._recovery.tried.clear()\n                return []",
    ),
    # What to do next
    Mutant(
        "nothing starts before the first token",
        "if not self._emitted or self._route_asked or self._handoff_asked:",
        "if self._route_asked or self._handoff_asked:",
    ),
    Mutant(
        "nothing starts while a route is chosen",
        "if not self._emitted or self._route_asked or self._handoff_asked:",
        "if not self._emitted or self._handoff_asked:",
    ),
    Mutant(
        "a hand-off is asked once",
        "if not self._emitted or self._route_asked or self._handoff_asked:",
        "if not self._emitted or self._route_asked:",
    ),
    Mutant(
        "without main others go on",
        "        if self._main_lost and self._recovery is None:\n            self._recovery = _Recovery()\n",
        "",
    ),
    Mutant(
        "main does not hand over to itself",
        "if decoder.role is Role.MAIN_DECODE or self._extend is not None or not self._main_may_start():",
        "if self._extend is not None or not self._main_may_start():",
    ),
    Mutant(
        "one extend at a time",
        "if decoder.role is Role.MAIN_DECODE or self._extend is not None or not self._main_may_start():",
        "if decoder.role is Role.MAIN_DECODE or not self._main_may_start():",
    ),
    Mutant(
        "no hand-off before main is ready",
        "if decoder.role is Role.MAIN_DECODE or self._extend is not None or not self._main_may_start():",
        "if decoder.role is Role.MAIN_DECODE or self._extend is not None:",
    ),
    Mutant(
        "a floor is for relays", "self._plan.relay_floor if self._route is Route.RELAY else 0", "self._plan.relay_floor"
    ),
    Mutant("a floor holds main back", "self._plan.relay_floor if self._route is Route.RELAY else 0", "0"),
    Mutant(
        "main waits for its KV",
        "return main.settled and not self._main_lost and self._num_eager >= floor",
        "return not self._main_lost and self._num_eager >= floor",
    ),
    Mutant(
        "a lost main is not handed to",
        "return main.settled and not self._main_lost and self._num_eager >= floor",
        "return main.settled and self._num_eager >= floor",
    ),
    Mutant(
        "the floor itself is enough",
        "return main.settled and not self._main_lost and self._num_eager >= floor",
        "return main.settled and not self._main_lost and self._num_eager > floor",
    ),
    Mutant(
        "relay decode waits for its KV",
        "return relay is not None and relay.settled and (cap is None",
        "return relay is not None and (cap is None",
    ),
    Mutant("a capped relay decode does not start again", "self._num_eager < cap)", "True)"),
    Mutant(
        "relay decode is for route RELAY",
        "if self._route is Route.RELAY and self._relay_may_start():",
        "if self._relay_may_start():",
    ),
    Mutant(
        "main goes first when nobody decodes",
        "        if self._main_may_start():\n            return self._take_over()\n        if self._route is Route.RELAY",
        "        if self._route is Route.RELAY",
    ),
    Mutant(
        "only P-MD is rerouted",
        "if self._route is not Route.DIRECT or not self._plan.may_reroute or self._route_asked:",
        "if not self._plan.may_reroute or self._route_asked:",
    ),
    Mutant(
        "a pinned route stays",
        "if self._route is not Route.DIRECT or not self._plan.may_reroute or self._route_asked:",
        "if self._route is not Route.DIRECT or self._route_asked:",
    ),
    Mutant(
        "a route is asked once at a time",
        "if self._route is not Route.DIRECT or not self._plan.may_reroute or self._route_asked:",
        "if self._route is not Route.DIRECT or not self._plan.may_reroute:",
    ),
    Mutant(
        "no reroute while somebody decodes",
        "return self._decoder is None and self._recovery is None",
        "return self._recovery is None",
    ),
    Mutant(
        "no reroute during a recovery",
        "return self._decoder is None and self._recovery is None",
        "return self._decoder is None",
    ),
    Mutant(
        "taking over stops the extend",
        "return [*self._stop_extend(), self._start_decode(Role.MAIN_DECODE)]",
        "return [self._start_decode(Role.MAIN_DECODE)]",
    ),
    # Recovery
    Mutant("nobody starts while all wait", "        if recovery.waiting:\n            return []\n", ""),
    Mutant("decoders are bounded", "if self._decode_attempts >= self._plan.max_decode_attempts:", "if False:"),
    Mutant(
        "the last decoder allowed may start",
        "if self._decode_attempts >= self._plan.max_decode_attempts:",
        "if self._decode_attempts + 1 >= self._plan.max_decode_attempts:",
    ),
    Mutant(
        "a ready main goes before the ladder",
        "        if self._main_may_start():\n            return self._take_over()\n        for role",
        "        for role",
    ),
    Mutant(
        "who was tried is not tried again", "            if role not in recovery.tried:\n", "            if True:\n"
    ),
    Mutant(
        "relay decode is nearest",
        "RECOVERY_LADDER = (Role.RELAY_DECODE, Role.PREFILL, Role.MAIN_DECODE)",
        "RECOVERY_LADDER = (Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE)",
    ),
    Mutant(
        "main is the last resort",
        "RECOVERY_LADDER = (Role.RELAY_DECODE, Role.PREFILL, Role.MAIN_DECODE)",
        "RECOVERY_LADDER = (Role.RELAY_DECODE, Role.PREFILL)",
    ),
    Mutant("rounds of recovery are bounded", "if recovery.rounds >= self._plan.max_recovery_rounds:", "if False:"),
    Mutant("rounds of recovery are counted", "        recovery.rounds += 1\n", ""),
    Mutant(
        "the last round allowed is waited for",
        "if recovery.rounds >= self._plan.max_recovery_rounds:",
        "if recovery.rounds + 1 >= self._plan.max_recovery_rounds:",
    ),
    Mutant("waiting is remembered", "        recovery.waiting = True\n", ""),
    # Arithmetic
    Mutant(
        "a prompt that failed to arrive is part of the gap",
        "if main.progress is _Progress.FAILED else 0",
        "if False else 0",
    ),
    Mutant(
        "a prompt that arrived is not",
        "if main.progress is _Progress.FAILED else 0",
        "if main.progress is not _Progress.MOVING else 0",
    ),
    Mutant(
        "what was extended is not in the gap",
        "missing_prompt + self.num_emitted - self._num_extended",
        "missing_prompt + self.num_emitted",
    ),
    Mutant(
        "attempts are unique",
        "        self._last_attempt += 1\n        return self._last_attempt",
        "        return self._last_attempt",
    ),
    Mutant("prefills are counted", "        self._prefill_attempts += 1\n", ""),
    Mutant("prefills are bounded", "if self._prefill_attempts >= self._plan.max_prefill_attempts:", "if False:"),
    Mutant(
        "the last prefill allowed may start",
        "if self._prefill_attempts >= self._plan.max_prefill_attempts:",
        "if self._prefill_attempts + 1 >= self._plan.max_prefill_attempts:",
    ),
    Mutant(
        "relay's KV is sent ahead only if prepared",
        "targets = [Role.RELAY_DECODE] if self._plan.prepare_relay else []",
        "targets = [Role.RELAY_DECODE]",
    ),
    Mutant(
        "a new prefill releases the old one's transfers",
        "return [*releases, *self._start_prefill()]",
        "return self._start_prefill()",
    ),
    Mutant("decoders are counted", "        self._decode_attempts += 1\n", ""),
    Mutant(
        "the cap is relay decode's",
        "cap = self._plan.relay_cap if role is Role.RELAY_DECODE and self._recovery is None else None",
        "cap = self._plan.relay_cap if self._recovery is None else None",
    ),
    Mutant(
        "a recovery has no cap",
        "cap = self._plan.relay_cap if role is Role.RELAY_DECODE and self._recovery is None else None",
        "cap = self._plan.relay_cap if role is Role.RELAY_DECODE else None",
    ),
    Mutant(
        "a cap limits the budget", "remaining if cap is None else min(remaining, cap - self._num_eager)", "remaining"
    ),
    Mutant(
        "a cap never exceeds the budget",
        "remaining if cap is None else min(remaining, cap - self._num_eager)",
        "remaining if cap is None else cap - self._num_eager",
    ),
    Mutant(
        "what is out is not asked for again",
        "remaining = self._plan.max_tokens - self.num_emitted",
        "remaining = self._plan.max_tokens",
    ),
    # Ending
    Mutant(
        "the end stops the decoder",
        "stops: list[Command] = [] if decoder is None else [Stop(attempt=decoder.attempt)]",
        "stops: list[Command] = []",
    ),
    Mutant("the end stops the extend", "return stops + self._stop_extend()", "return stops"),
    Mutant(
        "a stopped extend is over",
        "        attempt = self._extend.attempt\n        self._extend = None\n",
        "        attempt = self._extend.attempt\n",
    ),
    Mutant(
        "relay's KV is released once",
        "self._transfers.pop(Role.RELAY_DECODE, None)",
        "self._transfers.get(Role.RELAY_DECODE)",
    ),
    Mutant(
        "a settled transfer is not cancelled",
        "if target in self._transfers and not self._transfers[target].settled",
        "if target in self._transfers",
    ),
    Mutant(
        "a transfer may be gone already",
        "if target in self._transfers and not self._transfers[target].settled",
        "if not self._transfers[target].settled",
    ),
    Mutant("an answer cancels relay's transfer", "*self._cancel_transfers([Role.RELAY_DECODE]), Finish", "Finish"),
    Mutant(
        "main's transfer goes on after an answer",
        "*self._cancel_transfers([Role.RELAY_DECODE]), Finish",
        "*self._cancel_transfers(self._transfers), Finish",
    ),
    Mutant(
        "a client that leaves cancels all transfers",
        "*self._cancel_transfers(self._transfers), Finish(reason=None)",
        "*self._cancel_transfers([Role.RELAY_DECODE]), Finish(reason=None)",
    ),
    Mutant(
        "a failure cancels all transfers", "*self._cancel_transfers(self._transfers), Fail(why=why)", "Fail(why=why)"
    ),
    Mutant(
        "an answer is the end",
        "        self._finished = True\n        return [*self._stop_engines(), *self._cancel_transfers([Role",
        "        return [*self._stop_engines(), *self._cancel_transfers([Role",
    ),
    Mutant(
        "a client that leaves is the end",
        "        self._finished = True\n        return [*self._stop_engines(), *self._cancel_transfers(self._transfers), Finish",
        "        return [*self._stop_engines(), *self._cancel_transfers(self._transfers), Finish",
    ),
    Mutant(
        "a failure is the end",
        "        self._finished = True\n        return [*self._stop_engines(), *self._cancel_transfers(self._transfers), Fail",
        "        return [*self._stop_engines(), *self._cancel_transfers(self._transfers), Fail",
    ),
)
