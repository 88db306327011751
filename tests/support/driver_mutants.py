"""Hand-made mutants of the router's driver that random worlds may miss: each removes one guard, and a unit test notices it."""

from __future__ import annotations

from tests.support.mutants import UnitMutant


def _of(module: str, *mutants: tuple[str, str, str, str]) -> list[UnitMutant]:
    """From (guard, old, new, test)."""
    return [
        UnitMutant(guard, f"router.driver.{module}", old, new, killer=f"router.{test}")
        for guard, old, new, test in mutants
    ]


MUTANTS: tuple[UnitMutant, ...] = (
    *_of(
        "decoders",
        (
            "a stream that ends without a finish is a loss",
            '        raise WorkerFailed("the engine\'s stream ended without a finish reason")\n',
            "        await asyncio.Event().wait()\n        assert span is not None\n        return span\n",
            "test_decoders:test_a_stream_that_ends_without_a_reason_is_a_failure",
        ),
        (
            "who failed is suspected",
            "            self._pool.suspect(seat)\n",
            "            pass\n",
            "test_decoders:test_failures_of_the_worker_make_it_suspect_and_in_numbers_open_its_breaker",
        ),
        (
            "who is full or refuses is not",
            "        if not isinstance(error, InvalidRequest | CapacityExhausted):\n",
            "        if True:\n",
            "test_decoders:test_what_the_client_or_the_crowd_has_done_is_never_held_against_a_worker",
        ),
        (
            "what prefill refuses the client is told",
            "        if isinstance(error, InvalidRequest) and generation.first_position == 0:\n",
            "        if False:\n",
            "test_decoders:test_a_request_that_prefill_refuses_is_refused",
        ),
        (
            "attempts end with their request",
            "            self._running[attempt].cancel()\n        for",
            "            pass\n        for",
            "test_decoders:test_the_end_of_a_request_ends_its_attempts_and_its_timers",
        ),
        (
            "timers end with their request",
            "            timer.cancel()\n\n    def _start(",
            "            pass\n\n    def _start(",
            "test_decoders:test_the_end_of_a_request_ends_its_attempts_and_its_timers",
        ),
        (
            "a timer that is set anew replaces the one before",
            "            self._timers[name].cancel()\n",
            "            pass\n",
            "test_decoders:test_a_timer_that_is_set_anew_goes_off_once",
        ),
        (
            "a stopped attempt ends",
            "        if task is not None:\n            task.cancel()\n",
            "",
            "test_decoders:test_a_stopped_attempt_lets_go_of_its_stream_at_once",
        ),
        (
            "the position that is due comes next",
            "        if span.first_position != self._next:\n",
            "        if False:\n",
            "test_decoders:test_a_span_that_was_not_due_is_a_failure_of_the_worker_and_is_not_passed_on",
        ),
        (
            "no gap",
            "        if span.first_position != self._next:\n",
            "        if span.first_position < self._next:\n",
            "test_decoders:test_a_span_that_was_not_due_is_a_failure_of_the_worker_and_is_not_passed_on",
        ),
        (
            "the next position is due after a span",
            "        self._next = span.end_position\n",
            "",
            "test_decoders:test_spans_arrive_until_the_last_and_nothing_after_it",
        ),
        (
            "nothing past the budget",
            "        if self._next > self._end:\n",
            "        if False:\n",
            "test_decoders:test_a_span_that_was_not_due_is_a_failure_of_the_worker_and_is_not_passed_on",
        ),
        (
            "the first token waits to be admitted",
            "            await self.admitted.wait()\n",
            "            pass\n",
            "test_decoders:test_the_first_token_waits_until_the_request_is_admitted",
        ),
        (
            "an engine that has the prompt gets less time",
            "settings.decode_patience if has_prompt else settings.prefill_patience",
            "settings.prefill_patience",
            "test_decoders:test_an_engine_may_be_silent_for_so_long_and_longer_only_before_the_first_token_of_a_prompt_it_computes",
        ),
        (
            "a good end vouches for the worker",
            "            self._pool.vouch(seat)\n",
            "            pass\n",
            "test_decoders:test_a_client_that_leaves_proves_nothing_against_a_worker_but_tokens_prove_something_for_it",
        ),
        (
            "an end without a token vouches for nobody",
            "        if course.num_spans == 0:\n            return\n",
            "",
            "test_decoders:test_a_client_that_leaves_before_the_first_token_proves_nothing_at_all",
        ),
    ),
    *_of(
        "patience",
        (
            "the end of a process is a loss",
            "        forget = self._lifetime.on_end(self._on_end)\n",
            "        forget = lambda: None\n",
            "test_decoders:test_a_process_that_was_replaced_is_lost_even_if_its_connection_stays",
        ),
        (
            "so is an end that came before the beginning",
            "        if self._why is not None:\n            raise WorkerFailed(self._why)\n        begun",
            "        begun",
            "test_decoders:test_what_begins_at_a_process_that_is_gone_is_lost_at_once",
        ),
        (
            "who is over listens no more",
            "            forget()\n",
            "            pass\n",
            "test_decoders:test_a_generation_that_is_over_listens_to_its_worker_no_more",
        ),
        (
            "a router that was stopped blames nobody",
            "self._waits_since is None or late_by > _STOPPED_FOR",
            "self._waits_since is None",
            "test_decoders:test_a_router_that_was_stopped_itself_gives_the_engine_its_patience_again",
        ),
        (
            "what the reader takes is not the engine's time",
            "            self._scope = self._waits_since = None\n",
            "            self._scope = None\n",
            "test_decoders:test_what_the_reader_takes_is_not_the_engines_time",
        ),
        (
            "an engine that sends is heard",
            "        self._lifetime.heard = True\n",
            "",
            "test_decoders:test_an_engine_that_decodes_is_alive_though_it_answers_no_checks",
        ),
    ),
    *_of(
        "run",
        (
            "the end of an answer ends all that it started",
            "                finally:\n                    self._decoders.stop_all()\n",
            "                finally:\n                    pass\n",
            "test_driver:test_a_client_that_leaves_while_somebody_is_waited_for_is_let_go_at_once",
        ),
        (
            "two emissions of a batch both go out",
            "    def _emit(self, command: relay.Emit) -> None:\n        self._flush()\n",
            "    def _emit(self, command: relay.Emit) -> None:\n",
            "test_driver:test_two_emissions_of_one_batch_are_both_sent_and_the_last_says_why_it_is_the_last",
        ),
        (
            "the first end counts",
            "        if not self.outbox.closed:\n            self.report.wan",
            "        if True:\n            self.report.wan",
            "test_driver:test_a_slow_line_is_hidden_by_a_relay",
        ),
        (
            "who lost it is left",
            "        self._seats.lose(seat)\n",
            "",
            "test_driver:test_an_engine_that_was_full_is_not_asked_again_by_this_request_while_another_is_there",
        ),
        (
            "the second prefill sends from its own node",
            "            self._paths.prefill_lost()\n",
            "            pass\n",
            "test_driver:test_the_second_prefill_sends_from_its_own_node",
        ),
        (
            "prefill's place is free after its token",
            "            self._seats.give_up(Role.PREFILL)\n",
            "            pass\n",
            "test_driver:test_prefills_place_is_free_after_its_token",
        ),
        (
            "relay decode's place is free after the hand-off",
            "        if role is Role.RELAY_DECODE and self._relay.num_emitted:\n",
            "        if False:\n",
            "test_driver_policies:test_a_relay_that_has_handed_over_leaves_its_place",
        ),
        (
            "a filtered turn's KV goes before others' next time",
            "        if self._conversation is None or not self._conversation.last_filtered:",
            "        if True:",
            "test_driver_policies:test_it_does_not_give_way_on_two_turns_in_a_row",
        ),
        (
            "an answer that is over gives way to those that wait",
            "            self._paths.spare_the_line()\n",
            "            pass\n",
            "test_driver_policies:test_what_an_answer_that_is_over_still_sends_gives_way_to_whoever_waits",
        ),
    ),
    *_of(
        "mailbox",
        (
            "a reader that is gone makes nobody wait",
            "        self._spans.clear()\n        self._drained.set()\n",
            "        self._spans.clear()\n",
            "test_driver_parts:test_a_full_outbox_waits_for_its_reader_until_that_is_gone",
        ),
        (
            "nothing is kept for a reader that is gone",
            "        if not self._discarded:\n            self._spans",
            "        if True:\n            self._spans",
            "test_driver_parts:test_a_full_outbox_waits_for_its_reader_until_that_is_gone",
        ),
        (
            "the first close counts",
            "        if not self._closed:\n            self._closed, self._error",
            "        if True:\n            self._closed, self._error",
            "test_driver_parts:test_a_reader_gets_all_spans_before_the_error_that_broke_the_answer_off",
        ),
        (
            "spans wait for room",
            "        await self._room.acquire()\n",
            "",
            "test_driver_parts:test_spans_wait_for_room_in_the_inbox_and_nothing_else_does",
        ),
        (
            "the client's last word overtakes",
            "        self._events.appendleft((event, False))\n",
            "        self._events.append((event, False))\n",
            "test_driver_parts:test_the_clients_last_word_overtakes_what_waits",
        ),
    ),
    *_of(
        "waiting_room",
        (
            "who waits is called",
            "            self._waiting.pop(called).over.set()\n",
            "            self._waiting.pop(called)\n",
            "test_waiting_room:test_requests_beyond_the_limit_wait_and_are_answered_in_order",
        ),
        (
            "who has waited too long leaves the line",
            "                raise self._turned_away(ShedReason.QUEUE_TIMEOUT, place.entry) from None\n",
            "                await place.over.wait()\n",
            "test_waiting_room:test_whoever_has_waited_too_long_is_turned_away_and_holds_nothing",
        ),
        (
            "whose turn would not come in time is told at once",
            "self._line.why_not(request.tenant) or self._why_not_in_time(entry)",
            "self._line.why_not(request.tenant)",
            "test_waiting_room:test_whose_turn_would_not_come_in_time_is_turned_away_at_once",
        ),
        (
            "a place that is free may be had by the largest",
            "        if rate is None or not self._line.is_saturated:\n",
            "        if rate is None:\n",
            "test_waiting_room:test_however_large_a_request_is_it_may_have_a_place_that_is_free",
        ),
    ),
    *_of(
        "pins",
        (
            "what was dropped while the node was away is told",
            "        if pin in self._told:\n            self._note(pin)\n",
            "        if False:\n            self._note(pin)\n",
            "test_conversations:test_a_node_that_hung_hears_of_every_pin_that_was_dropped_meanwhile",
        ),
        (
            "what it never heard of is not",
            "        if pin in self._told:\n            self._note(pin)\n",
            "        if True:\n            self._note(pin)\n",
            "test_conversations:test_what_a_node_never_heard_of_need_not_be_taken_back",
        ),
        (
            "after a failure all are tried again",
            "dict.fromkeys((name, *self._due, *self._wanted))",
            "dict.fromkeys((name, *self._due))",
            "test_conversations:test_a_node_that_is_away_is_told_all_that_is_still_wanted_when_it_is_back",
        ),
        (
            "so is the one that failed",
            "dict.fromkeys((name, *self._due, *self._wanted))",
            "dict.fromkeys((*self._due, *self._wanted))",
            "test_conversations:test_a_pin_that_could_not_be_taken_back_is_taken_back_later",
        ),
        (
            "a node that came back is told all",
            "            self._due = {**self._due, **dict.fromkeys(self._wanted)}\n",
            "",
            "test_conversations:test_a_connection_that_was_lost_unnoticed_is_made_up_for_at_the_next_word",
        ),
    ),
    *_of(
        "conversations",
        (
            "a pin moves with its conversation",
            "        if turn.main_node != node:\n            self._unpin(turn)\n",
            "",
            "test_conversations:test_the_pin_moves_with_its_conversation",
        ),
        (
            "the same turn again has one pin",
            "        if kept is not None:\n            self._unpin(kept)\n",
            "",
            "test_conversations:test_the_same_turn_again_is_one_conversation_with_one_pin",
        ),
        (
            "being found keeps it alive",
            "                self._by_tip.move_to_end(tip)\n",
            "",
            "test_conversations:test_of_too_many_the_one_that_rested_longest_goes",
        ),
    ),
    *_of(
        "seats",
        (
            "a seat ends with its process",
            "        if seat is not None and self._pool.holds(seat):\n            return seat\n",
            "        if seat is not None:\n            return seat\n",
            "test_driver_placement:test_a_request_leaves_a_worker_whose_process_is_gone_and_goes_elsewhere_after_a_loss",
        ),
        (
            "who lost it is avoided",
            "        self._lost.add(seat.worker.name)\n",
            "",
            "test_driver_placement:test_a_request_leaves_a_worker_whose_process_is_gone_and_goes_elsewhere_after_a_loss",
        ),
        (
            "only the seat that was lost is given up",
            "        if self._seats.get(seat.worker.role) is seat:\n",
            "        if True:\n",
            "test_driver_placement:test_a_seat_that_was_lost_long_ago_does_not_cost_the_one_taken_since",
        ),
        (
            "a seat given up is given back",
            "        if seat is not None:\n            self._pool.release(seat)\n",
            "",
            "test_driver_parts:test_a_request_stays_at_its_worker_and_goes_elsewhere_after_a_loss",
        ),
    ),
    *_of(
        "worker",
        (
            "a process that ends is told to all who wait",
            "        for listener in listeners.values():\n            listener()\n",
            "",
            "test_pool:test_whoever_waits_at_a_worker_is_told_at_once_and_once_when_it_is_down",
        ),
        (
            "a seat is given back once",
            "        if seat in self.seats:\n",
            "        if self.seats.setdefault(seat) is None:\n",
            "test_driver_placement:test_a_seat_given_back_takes_its_blocks_along",
        ),
        (
            "a trial that told nothing is over",
            "            if seat.is_trial:\n                self.breaker.end_trial()\n",
            "",
            "test_pool:test_a_trial_that_told_nothing_is_followed_by_another",
        ),
        (
            "a suspect gets nothing",
            "return self.lifetime is not None and not self.suspect",
            "return self.lifetime is not None",
            "test_pool:test_a_suspect_is_down_at_once_and_up_with_its_next_answer",
        ),
    ),
    *_of(
        "pool",
        (
            "the end of one process counts once",
            "        if not state.suspect:\n            state.breaker",
            "        if True:\n            state.breaker",
            "test_pool:test_the_end_of_one_process_counts_as_one_failure_however_much_ran_there",
        ),
        (
            "a suspect is asked at once",
            "        state.check_now.set()\n\n    def vouch",
            "\n    def vouch",
            "test_pool:test_a_suspect_is_down_at_once_and_up_with_its_next_answer",
        ),
        (
            "an answer that was on its way clears nobody",
            "        if state.check_now.is_set():\n            return",
            "        if False:\n            return",
            "test_pool:test_an_answer_that_was_on_its_way_when_the_worker_failed_does_not_clear_it",
        ),
        (
            "who serves another model is down",
            "        if self._model is not None and info.model != self._model:\n",
            "        if False:\n",
            "test_pool:test_a_worker_that_serves_another_model_is_down_and_says_why",
        ),
        (
            "another process ends the one before",
            "        if state.lifetime is not None:\n            state.lifetime.end()\n",
            "",
            "test_decoders:test_a_process_that_was_replaced_is_lost_even_if_its_connection_stays",
        ),
        (
            "who was heard lives",
            "            if asked is not None and asked.heard:\n",
            "            if False:\n",
            "test_pool:test_a_worker_of_whom_something_was_heard_during_a_check_lives_however_late_its_answer_is",
        ),
        (
            "a new process answers for nothing that broke before",
            "        if state.lifetime is not seat.lifetime:\n            return",
            "        if False:\n            return",
            "test_pool:test_a_restarted_worker_is_another_one",
        ),
        (
            "load is counted over those that are up",
            "return sum(state.worker.max_batch for state in self._of(role) if state.up)",
            "return sum(state.worker.max_batch for state in self._of(role))",
            "test_pool:test_load_is_counted_over_those_that_are_up",
        ),
        (
            "a node that comes back is noticed",
            "            state.returns += 1\n",
            "            pass\n",
            "test_pool:test_nodes_are_known_by_their_last_answer",
        ),
        (
            "a node that is away has no books",
            "            self._node_stats.pop(state.node.node, None)\n",
            "            pass\n",
            "test_pool:test_nodes_are_known_by_their_last_answer",
        ),
    ),
    *_of(
        "room_line",
        (
            "newcomers stand behind",
            "        return len(self._line) > 0\n",
            "        return False\n",
            "test_room_line:test_a_large_reservation_is_not_passed_by_small_ones",
        ),
        (
            "what is let go is asked for at once",
            "        if self._turns:\n            next(iter(self._turns)).wake()\n",
            "",
            "test_room_line:test_what_is_let_go_is_asked_for_at_once_and_in_order",
        ),
        (
            "who gives up lets the next one ask",
            "        if was_first:\n            self.let_go()\n",
            "",
            "test_room_line:test_whoever_gives_up_lets_the_next_one_ask",
        ),
        (
            "who was refused waits before it asks again",
            "            await self._pause()\n",
            "            await asyncio.sleep(0)\n",
            "test_room_line:test_many_who_wait_ask_no_more_often_than_one",
        ),
    ),
    *_of(
        "placement",
        (
            "prefill's own node lacks nothing",
            "                missing[node.node] = 0\n",
            "                missing[node.node] = len(hashes)\n",
            "test_driver_placement:test_relay_decode_on_prefills_own_node_needs_no_copy",
        ),
        (
            "who is slow costs more",
            "        block_s = (self._pool.pace(Role.PREFILL).unit_s or _BLOCK_UNKNOWN) * slowness\n",
            "        block_s = self._pool.pace(Role.PREFILL).unit_s or _BLOCK_UNKNOWN\n",
            "test_driver_placement:test_a_slow_prefill_gets_less",
        ),
        (
            "so does a slow decoder",
            "        unit = (pace.alone_s or _TOKEN_UNKNOWN) * slowness\n",
            "        unit = pace.alone_s or _TOKEN_UNKNOWN\n",
            "test_driver_placement:test_a_slow_decoder_gets_less",
        ),
        (
            "blocks ahead count",
            "block_s * (state.num_missing + len(state.seats))",
            "block_s * len(state.seats)",
            "test_driver_placement:test_blocks_ahead_count_not_requests",
        ),
        (
            "what must be sent costs its time",
            "return Seconds(sending + alone), queue",
            "return alone, queue",
            "test_driver_placement:test_main_decode_is_chosen_by_the_time_that_the_missing_bytes_take",
        ),
        (
            "by the line's rate just now",
            "self._lines.forecast(source, target).rate\n",
            "_UNKNOWN_RATE\n",
            "test_driver_placement:test_a_line_that_is_slow_just_now_makes_a_prefix_dearer",
        ),
        (
            "what a crowd costs was measured",
            "if crowd is None else crowd * slowness",
            "",
            "test_driver_placement:test_decoders_that_a_crowd_slows_down_much_share_it_before_their_batches_are_full",
        ),
        (
            "a node without books has no room",
            "        if stats is None:\n            return False\n",
            "        if stats is None:\n            return True\n",
            "test_driver_placement:test_a_worker_whose_node_does_not_answer_is_passed_over",
        ),
        (
            "room that was promised is taken",
            "max(stats.reserved_blocks + stats.leased_blocks, state.node.num_promised)",
            "stats.reserved_blocks + stats.leased_blocks",
            "test_driver_placement:test_room_that_was_promised_since_the_books_were_read_is_taken",
        ),
        (
            "room that is reserved or leased is taken",
            "max(stats.reserved_blocks + stats.leased_blocks, state.node.num_promised)",
            "state.node.num_promised",
            "test_driver_placement:test_a_decoder_whose_node_has_no_room_is_passed_over_unless_all_are_full",
        ),
        (
            "a conversation has its home",
            "home = None if conversation is None else conversation.workers.get(role)",
            "home = None",
            "test_driver_placement:test_a_conversation_goes_back_to_its_workers_even_when_another_has_less_to_do",
        ),
        (
            "who is late is passed over",
            "late=state.is_late(now)",
            "late=False",
            "test_driver_placement:test_a_worker_that_is_late_with_an_answer_is_passed_over_long_before_it_counts_as_down",
        ),
        (
            "who lost it is avoided",
            "lost_here=worker.name in question.avoid",
            "lost_here=False",
            "test_pool:test_one_to_avoid_is_picked_only_if_there_is_no_other",
        ),
        (
            "a tripped breaker is heeded",
            "trusted=state.breaker.lets_through(now)",
            "trusted=True",
            "test_pool:test_a_worker_whose_generations_break_off_is_passed_over_though_it_answers_its_checks",
        ),
    ),
    *_of(
        "prospects",
        (
            "a conversation is not filtered twice in a row",
            "filtered_last_turn=self._conversation is not None and self._conversation.last_filtered",
            "filtered_last_turn=False",
            "test_driver_policies:test_a_conversation_is_never_filtered_on_two_turns_in_a_row",
        ),
        (
            "the filtered share holds",
            "            self._traffic.filter_share.filtered_one()\n",
            "",
            "test_driver_policies:test_no_more_than_their_share_are_filtered",
        ),
        (
            "the filter may be off",
            "policy.filter is FilterRule.OFF or steered",
            "steered",
            "test_driver_policies:test_without_the_filter_every_relay_goes_on_to_main_decode",
        ),
        (
            "a long budget is judged by what is used of it",
            "self._traffic.lengths.likely(self._request.max_tokens)",
            "self._request.max_tokens",
            "test_driver_policies:test_a_long_budget_of_which_little_is_ever_used_is",
        ),
        (
            "relay decode is capped when it is busy",
            "        return choose_relay_cap(\n",
            "        return None and choose_relay_cap(\n",
            "test_driver_policies:test_a_busy_relay_decode_is_given_back_early_and_at_once",
        ),
        (
            "relay decode's load is heeded",
            "relay_load=self._other_load()",
            "relay_load=0.0",
            "test_driver_policies:test_a_full_relay_decode_takes_nobody_else",
        ),
        (
            "who hits at main decode takes no room at relay decode",
            "else should_prepare_relay(view)",
            "else view.relay_available",
            "test_driver_policies:test_who_hits_at_main_decode_takes_no_room_at_relay_decode",
        ),
    ),
    *_of(
        "choices",
        (
            "a pinned route needs its worker",
            "(steering.route is Route.RELAY and view.relay_available)",
            "steering.route is Route.RELAY",
            "test_driver_choices:test_a_pinned_relay_without_relay_decode_goes_direct",
        ),
        (
            "a pinned one-shot is one",
            "    if steering.handoff is HandoffMode.ONE_SHOT:\n        return HandoffMode.ONE_SHOT\n",
            "",
            "test_driver_choices:test_the_hand_off_follows_the_threshold_unless_it_is_pinned",
        ),
        (
            "a pinned relay emits at least one token",
            "return 1 if steering.route is Route.RELAY else 0",
            "return 0",
            "test_driver_choices:test_a_pinned_relay_emits_at_least_one_token",
        ),
        (
            "a pinned catch-up has no cap",
            " and steering.handoff is not HandoffMode.CATCH_UP\n    return RelayPlan",
            "\n    return RelayPlan",
            "test_driver_choices:test_a_catch_up_after_so_many_tokens_is_only_a_floor",
        ),
    ),
)
