"""Hand-made mutants of ``protocol/relay.py``: each removes one guard. The suite must notice every one of them.

A mutant that no sequence of events can tell from the original is not listed.
"""

from tests.support.mutants import Mutant

MODULES = ("pdd.protocol.relay_messages", "pdd.protocol.relay_phases", "pdd.protocol.relay")
"""What a relay is made of."""


def _relay(guard: str, old: str, new: str) -> Mutant:
    return Mutant(guard, "protocol.relay", old, new)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("an answer has at least one token", "protocol.relay_messages", "if self.max_tokens < 1:", "if False:"),
    Mutant(
        "a cap is at least one",
        "protocol.relay_messages",
        "self.relay_cap < max(1, self.relay_floor)",
        "self.relay_cap < self.relay_floor",
    ),
    Mutant(
        "a cap is at least the floor",
        "protocol.relay_messages",
        "self.relay_cap < max(1, self.relay_floor)",
        "self.relay_cap < 1",
    ),
    _relay("a relay starts once", "        if not isinstance(self._phase, New):\n", "        if False:\n"),
    _relay("no event before the start", "        if isinstance(self._phase, New):\n", "        if False:\n"),
    _relay("nothing follows the end", "        if isinstance(self._phase, Over):\n            return []\n", ""),
    _relay(
        "tokens of the live attempt only",
        "if not isinstance(phase, Decoding) or event.attempt != phase.decoder.attempt:\n            return []\n        fresh",
        "if not isinstance(phase, Decoding):\n            return []\n        fresh",
    ),
    _relay(
        "a contradictory decoder is stopped",
        "return [Stop(attempt=event.attempt), *self._lose_decoder(phase)]",
        "return self._lose_decoder(phase)",
    ),
    _relay(
        "only main's tokens release relay's KV",
        "self._num_eager += len(tokens)\n                return [emit]",
        "self._num_eager += len(tokens)\n                return [emit, *self._release_relay()]",
    ),
    _relay("a stop token ends the answer", "if fresh and fresh[-1] in self._plan.stop_token_ids:", "if False:"),
    _relay(
        "an engine may stop of its own accord",
        "if event.finish_reason is FinishReason.STOP and event.end_position == self.num_emitted:",
        "if False:",
    ),
    _relay(
        "a stop beyond what was asked for is not the answer's",
        "if event.finish_reason is FinishReason.STOP and event.end_position == self.num_emitted:",
        "if event.finish_reason is FinishReason.STOP and event.end_position <= self.num_emitted:",
    ),
    _relay(
        "a stop before what is out is not the answer's",
        "if event.finish_reason is FinishReason.STOP and event.end_position == self.num_emitted:",
        "if event.finish_reason is FinishReason.STOP and event.end_position >= self.num_emitted:",
    ),
    _relay("the budget ends the answer", "if self.num_emitted == self._plan.max_tokens:", "if False:"),
    _relay("a capped decoder has ended", "if self.num_emitted == phase.decoder.end:", "if False:"),
    _relay("a short end is a loss", "        if event.finish_reason is not None:\n", "        if False:\n"),
    _relay("the prefill that ends lets the route be asked", "return commands + self._advance()", "return commands"),
    _relay("no gap before a span", "if overlap < 0 or event.first_position < 0:", "if event.first_position < 0:"),
    _relay("no negative position", "if overlap < 0 or event.first_position < 0:", "if overlap < 0:"),
    _relay("repeated tokens must agree", "if event.tokens[: len(repeated)] != repeated:", "if False:"),
    _relay(
        "repeated tokens are cut",
        "event.tokens[overlap : overlap + decoder.end - self.num_emitted]",
        "event.tokens[: decoder.end - self.num_emitted]",
    ),
    _relay(
        "tokens beyond what was asked for are cut",
        "event.tokens[overlap : overlap + decoder.end - self.num_emitted]",
        "event.tokens[overlap:]",
    ),
    _relay(
        "tokens after a stop token are cut",
        "                return fresh[: index + 1]\n",
        "                return fresh\n",
    ),
    _relay("the stop token itself is emitted", "return fresh[: index + 1]", "return fresh[:index]"),
    _relay(
        "prefill's token is not eager",
        "            case Prefilling():\n                return [emit]\n            case RelayDecoding()",
        "            case Prefilling() | RelayDecoding()",
    ),
    _relay("eager tokens are counted", "self._num_eager += len(tokens)", "pass"),
    _relay(
        "a token ends a recovery",
        "        self._emitted.extend(tokens)\n        self._tried = _Tried()\n",
        "        self._emitted.extend(tokens)\n",
    ),
    _relay(
        "a decoder that said so is not stopped",
        "[Stop(attempt=event.attempt)] if event.finish_reason is None else []",
        "[Stop(attempt=event.attempt)]",
    ),
    _relay(
        "a decoder that goes on is stopped",
        "[Stop(attempt=event.attempt)] if event.finish_reason is None else []",
        "[]",
    ),
    _relay(
        "extends of the live attempt only",
        "case Extending(decoder=decoder, extend=extend) if attempt == extend.attempt:",
        "case Extending(decoder=decoder, extend=extend):",
    ),
    _relay(
        "an extend ends",
        "                self._phase = RelayDecoding(decoder=decoder)\n                self._catch_up",
        "                self._catch_up",
    ),
    _relay("extended tokens count", "self._catch_up = replace(self._catch_up, num_extended=extend.num_known)", "pass"),
    _relay(
        "after an extend main holds the prompt",
        "self._transfers[Role.MAIN_DECODE] = replace(main, progress=_Progress.READY)",
        "pass",
    ),
    _relay(
        "transfers of this attempt only",
        "target = moving.get(event.attempt)",
        "target = next(iter(moving.values()), None)",
    ),
    _relay(
        "a settled transfer stays as it is",
        "for target, each in self._transfers.items() if not each.settled}",
        "for target, each in self._transfers.items()}",
    ),
    _relay(
        "a failed transfer is settled",
        "return self.progress is not _Progress.MOVING",
        "return self.progress is _Progress.READY",
    ),
    _relay(
        "a lost extend of this attempt only",
        "if isinstance(phase, Extending) and event.attempt == phase.extend.attempt:",
        "if isinstance(phase, Extending):",
    ),
    _relay(
        "an extend may be lost",
        "if isinstance(phase, Extending) and event.attempt == phase.extend.attempt:",
        "if False:",
    ),
    _relay(
        "a lost decoder of this attempt only",
        "if not isinstance(phase, Decoding) or event.attempt != phase.decoder.attempt:\n            return []\n        if isinstance(phase, Prefilling)",
        "if not isinstance(phase, Decoding):\n            return []\n        if isinstance(phase, Prefilling)",
    ),
    _relay(
        "without prefill nothing starts",
        "if isinstance(phase, Prefilling) and isinstance(event, WorkerUnavailable):",
        "if False:",
    ),
    _relay(
        "only prefill is indispensable",
        "if isinstance(phase, Prefilling) and isinstance(event, WorkerUnavailable):",
        "if isinstance(event, WorkerUnavailable):",
    ),
    _relay(
        "a lost prefill is not unavailable",
        "if isinstance(phase, Prefilling) and isinstance(event, WorkerUnavailable):",
        "if isinstance(phase, Prefilling):",
    ),
    _relay(
        "before the first token prefill starts again", "return self._restart_prefill()\n", "return self._recover()\n"
    ),
    _relay(
        "a recovery remembers who was tried",
        "self._tried.roles.add(phase.decoder.role)",
        "self._tried = _Tried(roles={phase.decoder.role})",
    ),
    _relay("who was lost was tried", "self._tried.roles.add(phase.decoder.role)", "pass"),
    _relay("a route was asked for", "        if not isinstance(self._phase, AskingRoute):\n", "        if False:\n"),
    _relay(
        "a hand-off was asked for",
        "        if not isinstance(self._phase, AskingHandoff):\n",
        "        if not isinstance(self._phase, Decoding):\n",
    ),
    _relay(
        "a hand-off question is answered once",
        "        if not isinstance(self._phase, AskingHandoff):\n",
        "        if not isinstance(self._phase, AskingHandoff | Extending):\n",
    ),
    _relay("the last gap is told", "previous_gap=self._gap(), rounds=", "rounds="),
    _relay(
        "relay decode stops before main starts",
        "return [Stop(attempt=decoder.attempt), *self._take_over()]",
        "return [*self._take_over(), Stop(attempt=decoder.attempt)]",
    ),
    _relay(
        "relay decode stops at the hand-off",
        "return [Stop(attempt=decoder.attempt), *self._take_over()]",
        "return self._take_over()",
    ),
    _relay("rounds are counted", "rounds=self._catch_up.rounds + 1", "rounds=self._catch_up.rounds"),
    _relay(
        "the reroute timer asks only if it may", "return self._ask_route() if asks else []", "return self._ask_route()"
    ),
    _relay("the reroute timer asks", "return self._ask_route() if asks else []", "return []"),
    _relay("waiting P-MD is asked again", "        if self._plan.may_reroute:\n", "        if False:\n"),
    _relay("only waiting P-MD is asked again", "        if self._plan.may_reroute:\n", "        if True:\n"),
    _relay(
        "nothing starts before the first token",
        "            case AwaitingMain() | Capped():",
        "            case AwaitingMain() | Capped() | Prefilling() | Held():",
    ),
    _relay(
        "nothing starts while a route is chosen",
        "            case AwaitingMain() | Capped():",
        "            case AwaitingMain() | Capped() | AskingRoute():",
    ),
    _relay(
        "a hand-off is asked once",
        "            case RelayDecoding(decoder=decoder):\n",
        "            case RelayDecoding(decoder=decoder) | AskingHandoff(decoder=decoder):\n",
    ),
    _relay(
        "only P-MD is rerouted",
        "isinstance(self._phase, AwaitingMain) and self._plan.may_reroute",
        "isinstance(self._phase, AwaitingMain | AwaitingRelay) and self._plan.may_reroute",
    ),
    _relay(
        "a pinned route stays",
        "isinstance(self._phase, AwaitingMain) and self._plan.may_reroute",
        "isinstance(self._phase, AwaitingMain)",
    ),
    _relay(
        "a route is asked once at a time",
        "isinstance(self._phase, AwaitingMain) and self._plan.may_reroute",
        "isinstance(self._phase, AwaitingMain | AskingRoute) and self._plan.may_reroute",
    ),
    _relay(
        "no reroute while somebody decodes",
        "isinstance(self._phase, AwaitingMain) and self._plan.may_reroute",
        "isinstance(self._phase, AwaitingMain | Decoding) and self._plan.may_reroute",
    ),
    _relay(
        "no reroute during a recovery",
        "isinstance(self._phase, AwaitingMain) and self._plan.may_reroute",
        "isinstance(self._phase, AwaitingMain | AwaitingRelayAgain | BackingOff) and self._plan.may_reroute",
    ),
    _relay("taking over stops the extend", "return [*self._stop_extend(), self._decode(", "return [self._decode("),
    _relay("decoders are bounded", "if self._num_decodes >= self._plan.max_decode_attempts:", "if False:"),
    _relay(
        "the last decoder allowed may start",
        "if self._num_decodes >= self._plan.max_decode_attempts:",
        "if self._num_decodes + 1 >= self._plan.max_decode_attempts:",
    ),
    _relay(
        "who was tried is not tried again", "            if role not in self._tried.roles:\n", "            if True:\n"
    ),
    _relay(
        "relay decode is nearest",
        "RECOVERY_LADDER = (Role.RELAY_DECODE, Role.PREFILL, Role.MAIN_DECODE)",
        "RECOVERY_LADDER = (Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE)",
    ),
    _relay(
        "main is the last resort",
        "RECOVERY_LADDER = (Role.RELAY_DECODE, Role.PREFILL, Role.MAIN_DECODE)",
        "RECOVERY_LADDER = (Role.RELAY_DECODE, Role.PREFILL)",
    ),
    _relay("rounds of recovery are bounded", "if self._tried.rounds >= self._plan.max_recovery_rounds:", "if False:"),
    _relay("rounds of recovery are counted", "        self._tried.rounds += 1\n", ""),
    _relay(
        "the last round allowed is waited for",
        "if self._tried.rounds >= self._plan.max_recovery_rounds:",
        "if self._tried.rounds + 1 >= self._plan.max_recovery_rounds:",
    ),
    _relay(
        "what was extended is not in the gap",
        "missing_prompt + self.num_emitted - self._catch_up.num_extended",
        "missing_prompt + self.num_emitted",
    ),
    _relay(
        "attempts are unique",
        "        self._last_attempt += 1\n        return self._last_attempt",
        "        return self._last_attempt",
    ),
    _relay("decoders are counted", "        self._num_decodes += 1\n", ""),
    _relay("a cap limits the budget", "remaining if cap is None else min(remaining, cap)", "remaining"),
    _relay(
        "a cap never exceeds the budget",
        "remaining if cap is None else min(remaining, cap)",
        "remaining if cap is None else cap",
    ),
    _relay(
        "what is out is not asked for again",
        "remaining = self._plan.max_tokens - self.num_emitted",
        "remaining = self._plan.max_tokens",
    ),
    _relay(
        "the end stops the decoder",
        "[Stop(attempt=phase.decoder.attempt)] if isinstance(phase, Decoding) else []",
        "[]",
    ),
    _relay("the end stops the extend", "return decoder + self._stop_extend()", "return decoder"),
    _relay(
        "a stopped extend is over",
        "[*self._stop_decoder(event), *self._stop_extend(), *self._finish(reason)]",
        "[*self._stop_decoder(event), *self._stop_extend(), *self._stop_extend(), *self._finish(reason)]",
    ),
    _relay(
        "relay's KV is released once",
        "self._transfers.pop(Role.RELAY_DECODE, None)",
        "self._transfers.get(Role.RELAY_DECODE)",
    ),
    _relay(
        "a settled transfer is not cancelled", "for each in transfers if not each.settled)", "for each in transfers)"
    ),
    _relay(
        "a transfer may be gone already",
        "[self._transfers[target] for target in targets if target in self._transfers]",
        "[self._transfers[target] for target in targets]",
    ),
    _relay(
        "an answer cancels relay's transfer",
        "self._end([Role.RELAY_DECODE], Finish(reason=reason))",
        "self._end([], Finish(reason=reason))",
    ),
    _relay(
        "main's transfer goes on after an answer",
        "self._end([Role.RELAY_DECODE], Finish(reason=reason))",
        "self._end(self._transfers, Finish(reason=reason))",
    ),
    _relay(
        "a client that leaves cancels all transfers",
        "self._end(self._transfers, Finish(reason=None))",
        "self._end([Role.RELAY_DECODE], Finish(reason=None))",
    ),
    _relay(
        "a failure cancels all transfers", "self._end(self._transfers, Fail(why=why))", "self._end([], Fail(why=why))"
    ),
    _relay(
        "an answer is the end",
        "        self._phase = Over()\n",
        "        self._phase = Over() if isinstance(last, Fail) or last.reason is None else self._phase\n",
    ),
    _relay(
        "a client that leaves is the end",
        "        self._phase = Over()\n",
        "        self._phase = Over() if isinstance(last, Fail) or last.reason is not None else self._phase\n",
    ),
    _relay(
        "a failure is the end",
        "        self._phase = Over()\n",
        "        self._phase = Over() if isinstance(last, Finish) else self._phase\n",
    ),
    _relay("a decoder that ended is no decoder", "        self._phase = AskingRoute()\n", ""),
    _relay(
        "a question dies with its decoder's end",
        "        if not isinstance(self._phase, AskingHandoff):\n",
        "        if not isinstance(self._phase, AskingHandoff | MainDecoding):\n",
    ),
    _relay(
        "a capped relay decode gives its room up",
        "        release = self._release_relay()\n",
        "        release: list[Command] = []\n",
    ),
    _relay(
        "prefill's end gives nobody's room up",
        "(self._ask_route() if isinstance(phase, Prefilling) else",
        "(self._release_relay() + self._ask_route() if isinstance(phase, Prefilling) else",
    ),
    _relay("a lost extend loses main", "            return self._lose_main()\n", "            return []\n"),
    _relay("a lost extend is over", "            self._phase = RelayDecoding(decoder=phase.decoder)\n", ""),
    _relay("what was not started is not stopped", "        self._phase = AwaitingPrefill()\n", ""),
    _relay(
        "a question dies with its decoder's loss",
        "        if not isinstance(self._phase, AskingHandoff):\n",
        "        if not isinstance(self._phase, AskingHandoff | RelayDecoding):\n",
    ),
    _relay("a lost main is sought again", "return [*self._lose_main(), *self._recover()]", "return self._recover()"),
    _relay(
        "losing another is not losing main",
        "            case RelayDecoding() | AskingHandoff() | Extending():\n                return self._recover()",
        "            case RelayDecoding() | AskingHandoff() | Extending():\n                return [*self._lose_main(), *self._recover()]",
    ),
    _relay("main's losses are counted", "        self._num_main_losses += 1\n", ""),
    _relay("main's losses are bounded", "if self._num_main_losses <= self._plan.max_main_losses:", "if True:"),
    _relay(
        "the last main allowed is sought",
        "if self._num_main_losses <= self._plan.max_main_losses:",
        "if self._num_main_losses < self._plan.max_main_losses:",
    ),
    _relay(
        "what a lost main held is released", "[] if old is None else [CancelReplication(attempt=old.attempt)]", "[]"
    ),
    _relay(
        "a lost main is forgotten",
        "old = self._transfers.pop(Role.MAIN_DECODE, None)",
        "old = self._transfers.get(Role.MAIN_DECODE)",
    ),
    _relay(
        "another main has extended nothing",
        "        self._catch_up = _CatchUp()\n        old",
        "        self._catch_up = replace(self._catch_up, previous_gap=None, rounds=0)\n        old",
    ),
    _relay(
        "another main's gaps begin anew",
        "        self._catch_up = _CatchUp()\n        old",
        "        self._catch_up = _CatchUp(previous_gap=self._catch_up.previous_gap)\n        old",
    ),
    _relay(
        "another main's rounds begin anew",
        "        self._catch_up = _CatchUp()\n        old",
        "        self._catch_up = _CatchUp(rounds=self._catch_up.rounds)\n        old",
    ),
    _relay(
        "a route question is answered once",
        "        if not isinstance(self._phase, AskingRoute):\n",
        "        if not isinstance(self._phase, AskingRoute | AwaitingMain | AwaitingRelay):\n",
    ),
    _relay(
        "a cap may come with the route", "self._relay_cap = max(choice.relay_cap, self._plan.relay_floor, 1)", "pass"
    ),
    _relay(
        "a chosen cap is at least the floor",
        "max(choice.relay_cap, self._plan.relay_floor, 1)",
        "max(choice.relay_cap, 1)",
    ),
    _relay(
        "a chosen cap is at least one",
        "max(choice.relay_cap, self._plan.relay_floor, 1)",
        "max(choice.relay_cap, self._plan.relay_floor)",
    ),
    _relay(
        "the plan's cap goes before the route's",
        "if self._plan.relay_cap is None and choice.relay_cap is not None:",
        "if choice.relay_cap is not None:",
    ),
    _relay(
        "only a relay needs relay's KV",
        "        orders = self._order(Role.MAIN_DECODE)\n",
        "        orders = [*self._order(Role.RELAY_DECODE), *self._order(Role.MAIN_DECODE)]\n",
    ),
    _relay(
        "relay's KV is ordered once",
        "return [] if target in self._transfers else",
        "return [] if target in self._transfers and target is Role.MAIN_DECODE else",
    ),
    _relay(
        "relay's KV is ordered",
        "[*self._order(Role.RELAY_DECODE), *self._order(Role.MAIN_DECODE)]",
        "self._order(Role.MAIN_DECODE)",
    ),
    _relay(
        "main's KV is ordered when the route asks for it",
        "[*self._order(Role.RELAY_DECODE), *self._order(Role.MAIN_DECODE)]",
        "self._order(Role.RELAY_DECODE)",
    ),
    _relay(
        "P-RLD needs no main",
        "[*self._order(Role.RELAY_DECODE), *self._demote_main()]",
        "[*self._order(Role.RELAY_DECODE), *self._order(Role.MAIN_DECODE), *self._demote_main()]",
    ),
    _relay(
        "main's KV is ordered once",
        "return [] if target in self._transfers else",
        "return [] if target in self._transfers and target is Role.RELAY_DECODE else",
    ),
    _relay(
        "P-RLD demotes", "[*self._order(Role.RELAY_DECODE), *self._demote_main()]", "self._order(Role.RELAY_DECODE)"
    ),
    _relay(
        "only P-RLD demotes",
        "[*self._order(Role.RELAY_DECODE), *self._order(Role.MAIN_DECODE)]",
        "[*self._order(Role.RELAY_DECODE), *self._order(Role.MAIN_DECODE), *self._demote_main()]",
    ),
    _relay(
        "what has settled is not demoted",
        "return [] if main is None or main.settled else",
        "return [] if main is None else",
    ),
    _relay(
        "a relay that got nothing is asked again",
        "Role.RELAY_DECODE if failed and self._route is Route.RELAY:",
        "Role.RELAY_DECODE if False:",
    ),
    _relay(
        "a relay that got its KV is not asked again",
        "Role.RELAY_DECODE if failed and self._route is Route.RELAY:",
        "Role.RELAY_DECODE if self._route is Route.RELAY:",
    ),
    _relay(
        "only who waits is asked again", "case AwaitingRelay(), Role.RELAY_DECODE if", "case _, Role.RELAY_DECODE if"
    ),
    _relay(
        "only a relay is asked again",
        "Role.RELAY_DECODE if failed and self._route is Route.RELAY:",
        "Role.RELAY_DECODE if failed:",
    ),
    _relay(
        "a recovery's relay decode starts when its KV is there",
        "            case AwaitingRelayAgain(), Role.RELAY_DECODE:\n                return self._recover()\n",
        "",
    ),
    _relay(
        "only the wait for relay's KV ends with it",
        "            case AwaitingRelayAgain(), Role.RELAY_DECODE:\n",
        "            case AwaitingRelayAgain() | BackingOff(), Role.RELAY_DECODE:\n",
    ),
    _relay(
        "prefill is waited for",
        "            case AwaitingPrefill():\n                return self._start_prefill()\n",
        "            case AwaitingPrefill():\n                return []\n",
    ),
    _relay(
        "prefill is waited for once at a time",
        "            case AwaitingPrefill():\n                return self",
        "            case AwaitingPrefill() | Prefilling():\n                return self",
    ),
    _relay("a held prefill is stopped", "        return [Stop(attempt=decoder.attempt)]\n", "        return []\n"),
    _relay("a held prefill's tokens are not believed", "                self._phase = Held()\n", ""),
    _relay(
        "nobody is held after the first token",
        "case Prefilling(decoder=decoder) if isinstance(event, PrefillHeld):",
        "case Prefilling(decoder=decoder) | RelayDecoding(decoder=decoder) if isinstance(event, PrefillHeld):",
    ),
    _relay(
        "only a held prefill is resumed",
        "case Held() if isinstance(event, PrefillResumed):",
        "case Held() | Prefilling() if isinstance(event, PrefillResumed):",
    ),
    _relay(
        "a prefill for which nobody is up waits for its timer",
        "case Held() if isinstance(event, PrefillResumed):",
        "case Held() | AwaitingPrefill() if isinstance(event, PrefillResumed):",
    ),
    _relay(
        "a held prefill is resumed by its turn, not by a timer",
        "            case AwaitingPrefill():\n                return self",
        "            case AwaitingPrefill() | Held():\n                return self",
    ),
    _relay("nobody waits for the KV of a one-token answer", "if self._plan.max_tokens == 1 else", "if False else"),
    _relay("somebody waits for any other's", "if self._plan.max_tokens == 1 else", "if self._plan.max_tokens else"),
    _relay("waits for prefill are bounded", "if self._num_prefill_waits >= self._plan.max_prefill_waits:", "if False:"),
    _relay("waits for prefill are counted", "        self._num_prefill_waits += 1\n", ""),
    _relay(
        "waiting ends",
        "                self._phase = MainDecoding(decoder=decoder)\n                return []\n            case _:\n                return []\n",
        "                return []\n            case _:\n                return []\n",
    ),
    _relay(
        "all are tried again",
        "            case BackingOff():\n                self._tried.roles.clear()\n",
        "            case BackingOff():\n",
    ),
    _relay(
        "waiting for relay's KV forgets nobody",
        "            case AwaitingRelayAgain():\n                return self._recover()\n",
        "            case AwaitingRelayAgain():\n                self._tried.roles.clear()\n                return self._recover()\n",
    ),
    _relay(
        "recovery goes on after its timer",
        "                self._tried.roles.clear()\n                return self._recover()\n",
        "                self._tried.roles.clear()\n                return []\n",
    ),
    _relay(
        "without main others go on",
        "        if main is None:\n            return [*release, *self._recover()]\n        if main.settled:",
        "        if main is not None and main.settled:",
    ),
    _relay(
        "main does not hand over to itself",
        "            case RelayDecoding(decoder=decoder):\n",
        "            case RelayDecoding(decoder=decoder) | MainDecoding(decoder=decoder):\n",
    ),
    _relay(
        "one extend at a time",
        "            case RelayDecoding(decoder=decoder):\n",
        "            case RelayDecoding(decoder=decoder) | Extending(decoder=decoder):\n",
    ),
    _relay(
        "no hand-off before main is ready",
        "if not self._main_is_ready() and not (given_up and self._floor_is_reached()):",
        "if False:",
    ),
    _relay(
        "a main that is given up is handed to all the same",
        "if not self._main_is_ready() and not (given_up and self._floor_is_reached()):",
        "if not self._main_is_ready():",
    ),
    _relay(
        "main is sought while another decodes",
        "            return self._seek_main()\n        self._phase = AskingHandoff",
        "            return []\n        self._phase = AskingHandoff",
    ),
    _relay(
        "main is sought while relay's KV is awaited",
        "        self._phase = AwaitingRelay()\n        return self._seek_main()",
        "        self._phase = AwaitingRelay()\n        return []",
    ),
    _relay(
        "main waits for its KV",
        "main.progress is _Progress.READY and self._floor_is_reached()",
        "self._floor_is_reached()",
    ),
    _relay(
        "the floor holds a ready main back",
        "main.progress is _Progress.READY and self._floor_is_reached()",
        "main.progress is _Progress.READY",
    ),
    _relay(
        "a transfer that P-RLD gave up starts nothing",
        "main.progress is _Progress.FAILED and self._route is not Route.RELAY_ONLY",
        "main.progress is _Progress.FAILED",
    ),
    _relay(
        "the floor holds a main back that must compute",
        "or (nothing_came and self._floor_is_reached())",
        "or nothing_came",
    ),
    _relay(
        "main computes only if its transfer failed",
        "relay.progress is _Progress.FAILED and self._main_has_failed()",
        "relay.progress is _Progress.FAILED",
    ),
    _relay(
        "main is given up only after its resends",
        "given_up = self._main_has_failed() and self._num_resends >= self._plan.max_resends",
        "given_up = self._main_has_failed()",
    ),
    _relay("a floor holds for a main that is given up", "(given_up and self._floor_is_reached())", "given_up"),
    _relay(
        "main that decodes is sent nothing",
        "return self._main_has_failed() and not main_decodes and self._num_resends",
        "return self._main_has_failed() and self._num_resends",
    ),
    _relay(
        "only what failed is sent again",
        "return self._main_has_failed() and not main_decodes and self._num_resends",
        "return not main_decodes and self._num_resends",
    ),
    _relay(
        "main is sought once at a time",
        "if self._resend_timer_runs or not self._may_resend():",
        "if not self._may_resend():",
    ),
    _relay(
        "main is sought only if it may be",
        "if self._resend_timer_runs or not self._may_resend():",
        "if self._resend_timer_runs:",
    ),
    _relay("waiting to resend is remembered", "        self._resend_timer_runs = True\n", ""),
    _relay("waiting to resend ends", "        self._resend_timer_runs = False\n        if", "        if"),
    _relay(
        "the resend timer counts only while it is awaited",
        "        if not self._resend_timer_runs:\n            return []\n",
        "",
    ),
    _relay(
        "the resend timer sends",
        "        self._num_resends += 1\n        return [self._replicate(Role.MAIN_DECODE)]",
        "        return self._advance()",
    ),
    _relay(
        "the resend timer sends only if it may",
        "        if not self._may_resend():\n            return self._advance()\n",
        "",
    ),
    _relay("resends are counted", "        self._num_resends += 1\n", ""),
    _relay(
        "a floor is for relays",
        "return self._route is Route.DIRECT or self._num_eager >= self._plan.relay_floor",
        "return self._num_eager >= self._plan.relay_floor",
    ),
    _relay(
        "a floor holds main back",
        "return self._route is Route.DIRECT or self._num_eager >= self._plan.relay_floor",
        "return True",
    ),
    _relay(
        "the floor itself is enough",
        "self._num_eager >= self._plan.relay_floor",
        "self._num_eager > self._plan.relay_floor",
    ),
    _relay(
        "P-RLD has no cap",
        "cap = None if self._route is Route.RELAY_ONLY else self._relay_cap",
        "cap = self._relay_cap",
    ),
    _relay(
        "a recovery has no cap",
        "decoder = self._new_decoder(role)\n",
        "decoder = self._new_decoder(role, self._relay_cap)\n",
    ),
    _relay(
        "relay decode is for relays",
        "            case AwaitingMain() | Capped():\n                return self._take_over() if self._transfers[Role.MAIN_DECODE].settled else []\n            case AwaitingRelay():",
        "            case Capped():\n                return self._take_over() if self._transfers[Role.MAIN_DECODE].settled else []\n            case AwaitingRelay() | AwaitingMain():",
    ),
    _relay(
        "main goes first when nobody decodes",
        "        if self._main_is_ready() or (nothing_came and self._floor_is_reached()):\n            return self._take_over()\n",
        "",
    ),
    _relay(
        "main computes when nobody else comes",
        "if self._main_is_ready() or (nothing_came and self._floor_is_reached()):",
        "if self._main_is_ready():",
    ),
    _relay(
        "nobody starts while somebody is awaited",
        "            case AwaitingRelayAgain() | BackingOff():\n                return self._seek_main()",
        "            case AwaitingRelayAgain() | BackingOff():\n                return self._recover()",
    ),
    _relay(
        "a ready main goes before the ladder",
        "return self._take_over() if self._main_is_ready() else self._try_next()",
        "return self._try_next()",
    ),
    _relay(
        "an extend under way makes main the next",
        "            case Extending():  # main decode is at it already\n                return self._take_over()\n",
        "            case Extending() if not self._main_is_ready():\n                return [*self._stop_extend(), *self._try_next()]\n",
    ),
    _relay("waiting for anybody is remembered", "        self._phase = BackingOff()\n", ""),
    _relay("relay decode's KV is waited for once", "            self._tried.relay_kv_awaited = True\n", ""),
    _relay("waiting for relay decode's KV is remembered", "            self._phase = AwaitingRelayAgain()\n", ""),
    _relay(
        "who has its KV starts",
        "if role is Role.RELAY_DECODE and not has_kv and not self._tried.relay_kv_awaited:",
        "if role is Role.RELAY_DECODE and not self._tried.relay_kv_awaited:",
    ),
    _relay(
        "relay decode's KV is given a moment",
        "if role is Role.RELAY_DECODE and not has_kv and not self._tried.relay_kv_awaited:",
        "if False:",
    ),
    _relay(
        "a recovery's relay decode is sent the prompt", "return [*self._order(role), SetTimer(", "return [SetTimer("
    ),
    _relay(
        "what is under way to relay decode is not sent again",
        "return [*self._order(role), SetTimer(",
        "return [self._replicate(role), SetTimer(",
    ),
    _relay("a prompt that failed to arrive is part of the gap", "if self._main_has_failed() else 0", "if False else 0"),
    _relay("a prompt that arrived is not", "if self._main_has_failed() else 0", "if True else 0"),
    _relay("lost prefills are counted", "        self._num_prefill_losses += 1\n", ""),
    _relay("lost prefills are bounded", "if self._num_prefill_losses >= self._plan.max_prefill_attempts:", "if False:"),
    _relay(
        "the last prefill allowed may start",
        "if self._num_prefill_losses >= self._plan.max_prefill_attempts:",
        "if self._num_prefill_losses + 1 >= self._plan.max_prefill_attempts:",
    ),
    _relay(
        "only what is wanted is sent ahead",
        "for target, is_wanted in wanted if is_wanted]",
        "for target, is_wanted in wanted]",
    ),
    _relay(
        "a new prefill releases the old one's transfers",
        "return [*self._release_transfers(), *self._start_prefill()]",
        "return self._start_prefill()",
    ),
    _relay(
        "who waits for prefill holds nothing",
        "return [*self._release_transfers(), SetTimer(timer=Timer.RECOVER",
        "return [SetTimer(timer=Timer.RECOVER",
    ),
    _relay("what was released is gone", "        self._transfers.clear()\n", ""),
    _relay(
        "the cap is relay decode's",
        "self._decode(MainDecoding(decoder=self._new_decoder(Role.MAIN_DECODE)))]",
        "self._decode(MainDecoding(decoder=self._new_decoder(Role.MAIN_DECODE, self._relay_cap)))]",
    ),
    _relay("main's first token releases relay's KV", "return [emit, *self._release_relay()]", "return [emit]"),
    _relay(
        "relay decode goes before a main that must compute",
        "relay.progress is _Progress.FAILED and self._main_has_failed()",
        "self._main_has_failed()",
    ),
    _relay(
        "on P-MD nobody but main comes",
        "        if self._transfers[Role.MAIN_DECODE].settled:\n",
        "        if self._main_is_ready():\n",
    ),
    _relay(
        "a relay decode that got nothing does not come",
        "relay.progress is _Progress.FAILED and self._main_has_failed()",
        "False",
    ),
    _relay(
        "a relay decode that gave its room up does not come",
        "        if main.settled:\n",
        "        if main.progress is _Progress.READY:\n",
    ),
    _relay(
        "relay decode waits for its KV",
        "        if relay.settled:\n            cap",
        "        if True:\n            cap",
    ),
    _relay(
        "other targets are tried",
        "if failed and event.elsewhere and self._num_detours < self._plan.max_detours:",
        "if False:",
    ),
    _relay(
        "what failed for good is not sent elsewhere",
        "if failed and event.elsewhere and self._num_detours < self._plan.max_detours:",
        "if failed and self._num_detours < self._plan.max_detours:",
    ),
    _relay("other targets are not tried for ever", "            self._num_detours += 1\n", "            pass\n"),
    _relay(
        "a main decode that starts is settled by its first token",
        "            case MainStarting(decoder=decoder) | MainDecoding(decoder=decoder):\n                self._phase = MainDecoding(decoder=decoder)\n",
        "            case MainStarting(decoder=decoder) | MainDecoding(decoder=decoder):\n",
    ),
    _relay(
        "a wait goes on while main decode starts",
        "return [self._decode(MainStarting(decoder=self._new_decoder(Role.MAIN_DECODE), awaited=awaited))]",
        "return self._take_over()",
    ),
    _relay(
        "a main decode lost as it starts gives back to that wait",
        "                self._phase = awaited\n                return []\n",
        "                return self._try_next()\n",
    ),
    _relay(
        "relay's KV ends the wait for it while main decode starts",
        "            case MainStarting(decoder=decoder, awaited=AwaitingRelayAgain()), Role.RELAY_DECODE:\n                self._phase = MainDecoding(decoder=decoder)\n                return []\n",
        "",
    ),
    _relay(
        "relay's KV ends no other wait while main decode starts",
        "case MainStarting(decoder=decoder, awaited=AwaitingRelayAgain()), Role.RELAY_DECODE:",
        "case MainStarting(decoder=decoder), Role.RELAY_DECODE:",
    ),
    _relay(
        "all are tried again also when main decode was starting",
        "                if isinstance(awaited, BackingOff):\n                    self._tried.roles.clear()\n",
        "",
    ),
    _relay(
        "a wait for relay's KV forgets nobody while main decode starts",
        "                if isinstance(awaited, BackingOff):\n",
        "                if True:\n",
    ),
    _relay(
        "a main decode that starts can be lost",
        "            case MainStarting() | MainDecoding():\n                return [*",
        "            case MainStarting():\n                return self._recover()\n            case MainDecoding():\n                return [*",
    ),
    _relay("a capped relay waits", "        self._phase = Capped()\n", ""),
    _relay(
        "who waits after its cap is not rerouted",
        "isinstance(self._phase, AwaitingMain) and self._plan.may_reroute",
        "isinstance(self._phase, AwaitingMain | Capped) and self._plan.may_reroute",
    ),
    _relay(
        "a main whose KV is sent in vain computes the prompt",
        "return self._take_over() if self._transfers[Role.MAIN_DECODE].settled else []",
        "return self._take_over() if self._main_is_ready() else []",
    ),
    _relay(
        "an answer's end stops the extend",
        "[*self._stop_decoder(event), *self._stop_extend(), *self._finish(reason)]",
        "[*self._stop_decoder(event), *self._finish(reason)]",
    ),
    _relay(
        "a failure stops the extend",
        "return [*self._stop_extend(), *self._end(self._transfers, Fail",
        "return [*self._end(self._transfers, Fail",
    ),
    _relay(
        "main does not hand over as it starts",
        "            case RelayDecoding(decoder=decoder):\n",
        "            case RelayDecoding(decoder=decoder) | MainStarting(decoder=decoder):\n",
    ),
    _relay("the phase has a name", "return type(self._phase).__name__", "return type(self).__name__"),
)
