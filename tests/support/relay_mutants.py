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
    Mutant("an answer has at least one token", "if self.max_tokens < 1:", "if False:"),
    Mutant("a cap is at least one", "self.relay_cap < max(1, self.relay_floor)", "self.relay_cap < self.relay_floor"),
    Mutant("a cap is at least the floor", "self.relay_cap < max(1, self.relay_floor)", "self.relay_cap < 1"),
    Mutant("a relay starts once", "        if self._started:\n", "        if False:\n"),
    Mutant("no event before the start", "        if not self._started:\n", "        if False:\n"),
    Mutant("nothing follows the end", "        if self._finished:\n            return []\n", ""),
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
    Mutant("extends of the live attempt only", "if extend is None or attempt != extend.attempt:", "if extend is None:"),
    Mutant("an extend ends", "        self._extend = None\n        self._num_extended", "        self._num_extended"),
    Mutant("extended tokens count", "self._num_extended = extend.num_known", "pass"),
    Mutant(
        "after an extend main holds the prompt", "self._transfers[Role.MAIN_DECODE].progress = _Progress.READY", "pass"
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
    Mutant(
        "a lost extend of this attempt only",
        "if self._extend is not None and attempt == self._extend.attempt:",
        "if self._extend is not None:",
    ),
    Mutant("an extend may be lost", "if self._extend is not None and attempt == self._extend.attempt:", "if False:"),
    Mutant(
        "a lost decoder of this attempt only",
        "        if decoder is None or attempt != decoder.attempt:\n            return []\n        if self._route",
        "        if decoder is None:\n            return []\n        if self._route",
    ),
    Mutant("without prefill nothing starts", "if self._route is None and unavailable:", "if False:"),
    Mutant("only prefill is indispensable", "if self._route is None and unavailable:", "if unavailable:"),
    Mutant("a lost prefill is not unavailable", "if self._route is None and unavailable:", "if self._route is None:"),
    Mutant(
        "before the first token prefill starts again",
        "        if not self._emitted:\n            return self._restart_prefill()\n",
        "",
    ),
    Mutant(
        "a recovery remembers who was tried",
        "self._recovery = self._recovery or _Recovery()",
        "self._recovery = _Recovery()",
    ),
    Mutant("who was lost was tried", "self._recovery.tried.add(decoder.role)", "pass"),
    Mutant("a route was asked for", "        if not self._route_asked:\n", "        if False:\n"),
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
    Mutant(
        "the reroute timer asks only if it may",
        "return self._ask_route() if self._may_reroute() else []",
        "return self._ask_route()",
    ),
    Mutant("the reroute timer asks", "return self._ask_route() if self._may_reroute() else []", "return []"),
    Mutant("waiting P-MD is asked again", "        if self._may_reroute():\n", "        if False:\n"),
    Mutant("only waiting P-MD is asked again", "        if self._may_reroute():\n", "        if True:\n"),
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
    Mutant("decoders are bounded", "if self._decode_attempts >= self._plan.max_decode_attempts:", "if False:"),
    Mutant(
        "the last decoder allowed may start",
        "if self._decode_attempts >= self._plan.max_decode_attempts:",
        "if self._decode_attempts + 1 >= self._plan.max_decode_attempts:",
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
    Mutant("decoders are counted", "        self._decode_attempts += 1\n", ""),
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
    Mutant(
        "a decoder that ended is no decoder",
        "        self._decoder = None\n        self._handoff_asked = False\n        return [Stop",
        "        self._handoff_asked = False\n        return [Stop",
    ),
    Mutant(
        "a question dies with its decoder's end",
        "        self._decoder = None\n        self._handoff_asked = False\n        return [Stop",
        "        self._decoder = None\n        return [Stop",
    ),
    Mutant(
        "a capped relay decode gives its room up",
        "release = self._release_relay() if decoder.role is Role.RELAY_DECODE else []",
        "release: list[Command] = []",
    ),
    Mutant(
        "prefill's end gives nobody's room up",
        "release = self._release_relay() if decoder.role is Role.RELAY_DECODE else []",
        "release = self._release_relay()",
    ),
    Mutant(
        "a lost extend loses main",
        "            return [*self._lose_main(), *self._advance()]",
        "            return self._advance()",
    ),
    Mutant(
        "a lost extend is over",
        "            self._extend = None\n            return [*self._lose_main()",
        "            return [*self._lose_main()",
    ),
    Mutant(
        "what was not started is not stopped",
        "            self._decoder = None\n            return self._await_prefill()",
        "            return self._await_prefill()",
    ),
    Mutant(
        "a question dies with its decoder's loss",
        "        self._handoff_asked = False\n        self._recovery = self._recovery or",
        "        self._recovery = self._recovery or",
    ),
    Mutant(
        "a lost main is sought again",
        "orders = self._lose_main() if decoder.role is Role.MAIN_DECODE else []",
        "orders: list[Command] = []",
    ),
    Mutant(
        "losing another is not losing main",
        "orders = self._lose_main() if decoder.role is Role.MAIN_DECODE else []",
        "orders = self._lose_main()",
    ),
    Mutant("main's losses are counted", "        self._main_losses += 1\n", ""),
    Mutant("main's losses are bounded", "if self._main_losses <= self._plan.max_main_losses:", "if True:"),
    Mutant(
        "the last main allowed is sought",
        "if self._main_losses <= self._plan.max_main_losses:",
        "if self._main_losses < self._plan.max_main_losses:",
    ),
    Mutant(
        "what a lost main held is released", "[] if old is None else [CancelReplication(attempt=old.attempt)]", "[]"
    ),
    Mutant(
        "a lost main is forgotten",
        "old = self._transfers.pop(Role.MAIN_DECODE, None)",
        "old = self._transfers.get(Role.MAIN_DECODE)",
    ),
    Mutant(
        "another main has extended nothing",
        "self._num_extended, self._previous_gap, self._rounds = 0, None, 0",
        "self._previous_gap, self._rounds = None, 0",
    ),
    Mutant(
        "another main's gaps begin anew",
        "self._num_extended, self._previous_gap, self._rounds = 0, None, 0",
        "self._num_extended, self._rounds = 0, 0",
    ),
    Mutant(
        "another main's rounds begin anew",
        "self._num_extended, self._previous_gap, self._rounds = 0, None, 0",
        "self._num_extended, self._previous_gap = 0, None",
    ),
    Mutant(
        "a route question is answered once",
        "        self._route_asked = False\n        self._route = choice.route\n",
        "        self._route = choice.route\n",
    ),
    Mutant(
        "a cap may come with the route", "self._relay_cap = max(choice.relay_cap, self._plan.relay_floor, 1)", "pass"
    ),
    Mutant(
        "a chosen cap is at least the floor",
        "max(choice.relay_cap, self._plan.relay_floor, 1)",
        "max(choice.relay_cap, 1)",
    ),
    Mutant(
        "a chosen cap is at least one",
        "max(choice.relay_cap, self._plan.relay_floor, 1)",
        "max(choice.relay_cap, self._plan.relay_floor)",
    ),
    Mutant(
        "the plan's cap goes before the route's",
        "if self._plan.relay_cap is None and choice.relay_cap is not None:",
        "if choice.relay_cap is not None:",
    ),
    Mutant(
        "only a relay needs relay's KV",
        "if route is not Route.DIRECT and Role.RELAY_DECODE not in self._transfers:",
        "if Role.RELAY_DECODE not in self._transfers:",
    ),
    Mutant(
        "relay's KV is ordered once",
        "if route is not Route.DIRECT and Role.RELAY_DECODE not in self._transfers:",
        "if route is not Route.DIRECT:",
    ),
    Mutant(
        "relay's KV is ordered",
        "if route is not Route.DIRECT and Role.RELAY_DECODE not in self._transfers:",
        "if False:",
    ),
    Mutant(
        "main's KV is ordered when the route asks for it",
        "if route is not Route.RELAY_ONLY and main is None:",
        "if False:",
    ),
    Mutant("P-RLD needs no main", "if route is not Route.RELAY_ONLY and main is None:", "if main is None:"),
    Mutant(
        "main's KV is ordered once",
        "if route is not Route.RELAY_ONLY and main is None:",
        "if route is not Route.RELAY_ONLY:",
    ),
    Mutant("P-RLD demotes", "if route is Route.RELAY_ONLY and main is not None and not main.settled:", "if False:"),
    Mutant(
        "only P-RLD demotes",
        "if route is Route.RELAY_ONLY and main is not None and not main.settled:",
        "if main is not None and not main.settled:",
    ),
    Mutant(
        "what has settled is not demoted",
        "if route is Route.RELAY_ONLY and main is not None and not main.settled:",
        "if route is Route.RELAY_ONLY and main is not None:",
    ),
    Mutant(
        "a relay that got nothing is asked again",
        "if progress is _Progress.FAILED and waits and self._route is Route.RELAY:",
        "if False:",
    ),
    Mutant(
        "a relay that got its KV is not asked again",
        "if progress is _Progress.FAILED and waits and self._route is Route.RELAY:",
        "if waits and self._route is Route.RELAY:",
    ),
    Mutant(
        "only who waits is asked again",
        "if progress is _Progress.FAILED and waits and self._route is Route.RELAY:",
        "if progress is _Progress.FAILED and self._route is Route.RELAY:",
    ),
    Mutant(
        "only a relay is asked again",
        "if progress is _Progress.FAILED and waits and self._route is Route.RELAY:",
        "if progress is _Progress.FAILED and waits:",
    ),
    Mutant(
        "a recovery's relay decode starts when its KV is there",
        "        if recovery is not None and recovery.awaited is _Awaited.RELAY_KV:\n            recovery.awaited = None\n",
        "",
    ),
    Mutant(
        "only the wait for relay's KV ends with it",
        "if recovery is not None and recovery.awaited is _Awaited.RELAY_KV:",
        "if recovery is not None:",
    ),
    Mutant(
        "prefill is waited for",
        "        if self._pause is _Pause.NOBODY_UP:\n            return self._start_prefill()",
        "        if self._pause is _Pause.NOBODY_UP:\n            return []",
    ),
    Mutant(
        "prefill is waited for once at a time",
        "    def _begin_prefill(self) -> StartDecode:\n        self._pause = None\n",
        "    def _begin_prefill(self) -> StartDecode:\n",
    ),
    Mutant("a held prefill is stopped", "        return [Stop(attempt=decoder.attempt)]\n", "        return []\n"),
    Mutant(
        "a held prefill's tokens are not believed",
        "        self._decoder, self._pause = None, _Pause.HELD",
        "        self._pause = _Pause.HELD",
    ),
    Mutant("nobody is held after the first token", "if self._emitted or decoder is None:", "if decoder is None:"),
    Mutant("only a held prefill is resumed", "if self._pause is _Pause.HELD else []", "if not self._emitted else []"),
    Mutant(
        "a prefill for which nobody is up waits for its timer",
        "if self._pause is _Pause.HELD else []",
        "if self._pause is not None else []",
    ),
    Mutant(
        "a held prefill is resumed by its turn, not by a timer",
        "        if self._pause is _Pause.NOBODY_UP:\n",
        "        if self._pause is not None:\n",
    ),
    Mutant("nobody waits for the KV of a one-token answer", "if self._plan.max_tokens == 1 else", "if False else"),
    Mutant("somebody waits for any other's", "if self._plan.max_tokens == 1 else", "if self._plan.max_tokens else"),
    Mutant("waits for prefill are bounded", "if self._prefill_waits >= self._plan.max_prefill_waits:", "if False:"),
    Mutant("waits for prefill are counted", "        self._prefill_waits += 1\n", ""),
    Mutant(
        "waiting ends",
        "        recovery.awaited = None\n        return self._advance()",
        "        return self._advance()",
    ),
    Mutant("all are tried again", "            recovery.tried.clear()\n", "            pass\n"),
    Mutant("waiting for relay's KV forgets nobody", "if recovery.awaited is _Awaited.ANYBODY:", "if True:"),
    Mutant(
        "recovery goes on after its timer",
        "        recovery.awaited = None\n        return self._advance()",
        "        recovery.awaited = None\n        return []",
    ),
    Mutant(
        "without main others go on",
        "        if self._recovery is None and self._nobody_comes():\n            self._recovery = _Recovery()\n",
        "",
    ),
    Mutant(
        "main does not hand over to itself",
        "if decoder.role is Role.MAIN_DECODE or self._extend is not None:",
        "if self._extend is not None:",
    ),
    Mutant(
        "one extend at a time",
        "if decoder.role is Role.MAIN_DECODE or self._extend is not None:",
        "if decoder.role is Role.MAIN_DECODE:",
    ),
    Mutant(
        "no hand-off before main is ready",
        "if not self._main_is_ready() and not self._main_is_given_up():",
        "if False:",
    ),
    Mutant(
        "a main that is given up is handed to all the same",
        "if not self._main_is_ready() and not self._main_is_given_up():",
        "if not self._main_is_ready():",
    ),
    Mutant(
        "main is sought while another decodes",
        "            return self._seek_main()\n        self._handoff_asked = True",
        "            return []\n        self._handoff_asked = True",
    ),
    Mutant(
        "main is sought while relay's KV is awaited",
        "            return [self._start_decode(Role.RELAY_DECODE)]\n        return self._seek_main()",
        "            return [self._start_decode(Role.RELAY_DECODE)]\n        return []",
    ),
    Mutant(
        "main waits for its KV",
        "main.progress is _Progress.READY and self._floor_is_reached()",
        "self._floor_is_reached()",
    ),
    Mutant(
        "the floor holds a ready main back",
        "main.progress is _Progress.READY and self._floor_is_reached()",
        "main.progress is _Progress.READY",
    ),
    Mutant(
        "a transfer that P-RLD gave up starts nothing",
        "main.progress is _Progress.FAILED and self._route is not Route.RELAY_ONLY",
        "main.progress is _Progress.FAILED",
    ),
    Mutant(
        "the floor holds a main back that must compute",
        "if not self._main_has_failed() or not self._floor_is_reached():",
        "if not self._main_has_failed():",
    ),
    Mutant(
        "main computes only if its transfer failed",
        "if not self._main_has_failed() or not self._floor_is_reached():",
        "if not self._floor_is_reached():",
    ),
    Mutant(
        "main is given up only after its resends",
        "self._floor_is_reached() and self._resends >= self._plan.max_resends",
        "self._floor_is_reached()",
    ),
    Mutant(
        "a floor holds for a main that is given up",
        "return self._main_has_failed() and self._floor_is_reached() and self._resends",
        "return self._main_has_failed() and self._resends",
    ),
    Mutant(
        "main that decodes is sent nothing",
        "return self._main_has_failed() and not main_decodes and self._resends",
        "return self._main_has_failed() and self._resends",
    ),
    Mutant(
        "only what failed is sent again",
        "return self._main_has_failed() and not main_decodes and self._resends",
        "return not main_decodes and self._resends",
    ),
    Mutant(
        "main is sought once at a time",
        "if self._resend_awaited or not self._may_resend():",
        "if not self._may_resend():",
    ),
    Mutant(
        "main is sought only if it may be",
        "if self._resend_awaited or not self._may_resend():",
        "if self._resend_awaited:",
    ),
    Mutant("waiting to resend is remembered", "        self._resend_awaited = True\n", ""),
    Mutant(
        "waiting to resend ends",
        "        self._resend_awaited = False\n        return self._resend()",
        "        return self._resend()",
    ),
    Mutant(
        "the resend timer counts only while it is awaited",
        "        if not self._resend_awaited:\n            return []\n",
        "",
    ),
    Mutant(
        "the resend timer sends",
        "return self._resend() if self._may_resend() else self._advance()",
        "return self._advance()",
    ),
    Mutant(
        "the resend timer sends only if it may",
        "return self._resend() if self._may_resend() else self._advance()",
        "return self._resend()",
    ),
    Mutant("resends are counted", "        self._resends += 1\n", ""),
    Mutant(
        "a floor is for relays",
        "return self._route is Route.DIRECT or self._num_eager >= self._plan.relay_floor",
        "return self._num_eager >= self._plan.relay_floor",
    ),
    Mutant(
        "a floor holds main back",
        "return self._route is Route.DIRECT or self._num_eager >= self._plan.relay_floor",
        "return True",
    ),
    Mutant(
        "the floor itself is enough",
        "self._num_eager >= self._plan.relay_floor",
        "self._num_eager > self._plan.relay_floor",
    ),
    Mutant(
        "P-RLD has no cap",
        "return None if self._route is Route.RELAY_ONLY or self._recovery is not None else self._relay_cap",
        "return None if self._recovery is not None else self._relay_cap",
    ),
    Mutant(
        "a recovery has no cap",
        "return None if self._route is Route.RELAY_ONLY or self._recovery is not None else self._relay_cap",
        "return None if self._route is Route.RELAY_ONLY else self._relay_cap",
    ),
    Mutant(
        "relay decode is for relays",
        "if self._route is not Route.DIRECT and self._relay_may_start():",
        "if self._relay_may_start():",
    ),
    Mutant(
        "main goes first when nobody decodes",
        "        if self._main_is_ready() or self._main_must_compute():\n            return self._take_over()\n",
        "",
    ),
    Mutant(
        "main computes when nobody else comes",
        "if self._main_is_ready() or self._main_must_compute():",
        "if self._main_is_ready():",
    ),
    Mutant(
        "nobody starts while somebody is awaited",
        "        if recovery.awaited is not None:\n            return self._seek_main()\n",
        "",
    ),
    Mutant(
        "a ready main goes before the ladder",
        "        if self._main_is_ready() or self._extend is not None:\n            return self._take_over()\n        if recovery",
        "        if recovery",
    ),
    Mutant(
        "an extend under way makes main the next",
        "if self._main_is_ready() or self._extend is not None:",
        "if self._main_is_ready():",
    ),
    Mutant("waiting for anybody is remembered", "        recovery.awaited = _Awaited.ANYBODY\n", ""),
    Mutant(
        "relay decode's KV is waited for once",
        "recovery.relay_kv_awaited, recovery.awaited = True, _Awaited.RELAY_KV",
        "recovery.awaited = _Awaited.RELAY_KV",
    ),
    Mutant(
        "waiting for relay decode's KV is remembered",
        "recovery.relay_kv_awaited, recovery.awaited = True, _Awaited.RELAY_KV",
        "recovery.relay_kv_awaited = True",
    ),
    Mutant(
        "who has its KV starts",
        "if role is not Role.RELAY_DECODE or has_kv or recovery.relay_kv_awaited:",
        "if role is not Role.RELAY_DECODE or recovery.relay_kv_awaited:",
    ),
    Mutant(
        "relay decode's KV is given a moment",
        "if role is not Role.RELAY_DECODE or has_kv or recovery.relay_kv_awaited:",
        "if True:",
    ),
    Mutant(
        "a recovery's relay decode is sent the prompt",
        "order = [self._replicate(Role.RELAY_DECODE)] if relay is None else []",
        "order: list[Command] = []",
    ),
    Mutant(
        "what is under way to relay decode is not sent again",
        "order = [self._replicate(Role.RELAY_DECODE)] if relay is None else []",
        "order = [self._replicate(Role.RELAY_DECODE)]",
    ),
    Mutant("a prompt that failed to arrive is part of the gap", "if self._main_has_failed() else 0", "if False else 0"),
    Mutant("a prompt that arrived is not", "if self._main_has_failed() else 0", "if True else 0"),
    Mutant("lost prefills are counted", "        self._prefill_losses += 1\n", ""),
    Mutant("lost prefills are bounded", "if self._prefill_losses >= self._plan.max_prefill_attempts:", "if False:"),
    Mutant(
        "the last prefill allowed may start",
        "if self._prefill_losses >= self._plan.max_prefill_attempts:",
        "if self._prefill_losses + 1 >= self._plan.max_prefill_attempts:",
    ),
    Mutant(
        "only what is wanted is sent ahead",
        "for target, is_wanted in wanted if is_wanted]",
        "for target, is_wanted in wanted]",
    ),
    Mutant(
        "a new prefill releases the old one's transfers",
        "return [*self._release_transfers(), *self._start_prefill()]",
        "return self._start_prefill()",
    ),
    Mutant(
        "who waits for prefill holds nothing",
        "return [*self._release_transfers(), SetTimer(timer=Timer.RECOVER",
        "return [SetTimer(timer=Timer.RECOVER",
    ),
    Mutant("what was released is gone", "        self._transfers.clear()\n", ""),
    Mutant(
        "the cap is relay decode's", "cap = self._cap() if role is Role.RELAY_DECODE else None", "cap = self._cap()"
    ),
    Mutant(
        "main's first token releases relay's KV",
        "            if decoder.role is Role.MAIN_DECODE:\n                commands += self._release_relay()\n",
        "",
    ),
    Mutant(
        "relay decode goes before a main that must compute",
        "return self._route is Route.DIRECT or relay is None or relay.progress is _Progress.FAILED",
        "return True",
    ),
    Mutant(
        "on P-MD nobody but main comes",
        "return self._route is Route.DIRECT or relay is None or relay.progress is _Progress.FAILED",
        "return relay is None or relay.progress is _Progress.FAILED",
    ),
    Mutant(
        "a relay decode that got nothing does not come",
        "return self._route is Route.DIRECT or relay is None or relay.progress is _Progress.FAILED",
        "return self._route is Route.DIRECT or relay is None",
    ),
    Mutant(
        "a relay decode that gave its room up does not come",
        "return self._route is Route.DIRECT or relay is None or relay.progress is _Progress.FAILED",
        "return self._route is Route.DIRECT or (relay is not None and relay.progress is _Progress.FAILED)",
    ),
    Mutant(
        "relay decode waits for its KV", "return relay is not None and relay.settled\n", "return relay is not None\n"
    ),
    Mutant("other targets are tried", "if elsewhere and self._detours < self._plan.max_detours:", "if False:"),
    Mutant(
        "what failed for good is not sent elsewhere",
        "if elsewhere and self._detours < self._plan.max_detours:",
        "if self._detours < self._plan.max_detours and progress is _Progress.FAILED:",
    ),
    Mutant("other targets are not tried for ever", "        self._detours += 1\n", "        pass\n"),
)
