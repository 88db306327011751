"""Hand-made mutants of the router's driver that random worlds may miss: each removes one guard, and a unit test notices
it.
"""

from __future__ import annotations

from tests.support.mutants import UnitMutant


def _of(module: str, *mutants: tuple[str, str, str, str], tests: str = "router") -> list[UnitMutant]:
    """From (guard, old, new, test). ``tests``: of which package."""
    return [
        UnitMutant(guard, f"router.driver.{module}", old, new, killer=f"{tests}.{test}")
        for guard, old, new, test in mutants
    ]


MUTANTS: tuple[UnitMutant, ...] = (
    *_of(
        "request.decoders",
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
            "who has computed its prompt stands in nobody's way",
            "            self._prefill_turn.computed()\n",
            "",
            "test_driver_room:test_what_relay_decode_has_a_place_for_is_computed_when_prefill_is_free_and_answers_as_soon_as_there_is_room",
        ),
        (
            "a prefill that was held says nothing about the pace",
            "whole = list(self._seats.values()).count(seat) == 1",
            "whole = True",
            "test_driver_room:test_a_held_prefill_goes_on_from_what_it_had_computed",
        ),
        (
            "what prefill refuses the client is told",
            "        if isinstance(error, InvalidRequest) and self._is_final(generation, worker):\n",
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
            "settings.decode_patience if has_prompt else self._prefill_patience(seat)",
            "self._prefill_patience(seat)",
            "test_decoders:test_an_engine_may_be_silent_for_so_long_and_longer_only_before_the_first_token_of_a_prompt_it_computes",
        ),
        (
            "prefills say nothing about decoders that compute a prompt",
            "self._workers.prefill_time(seat, self._clock.now()) if is_prefill else None",
            "self._workers.prefill_time(seat, self._clock.now())",
            "test_decoders:test_what_was_measured_of_prefills_says_nothing_about_a_decoder_that_computes_a_prompt",
        ),
        (
            "a good end vouches for the worker",
            "            self._workers.vouch(seat, now)\n",
            "            pass\n",
            "test_decoders:test_a_client_that_leaves_proves_nothing_against_a_worker_but_tokens_prove_something_for_it",
        ),
        (
            "an end without a token vouches for nobody",
            "        if course.num_spans == 0:\n            return\n",
            "",
            "test_decoders:test_a_client_that_leaves_before_the_first_token_proves_nothing_at_all",
        ),
        (
            "what all that decode have refused is known",
            "all_refused=self._refused_by.issuperset(up)",
            "all_refused=False",
            "test_decoders:test_what_is_refused_in_mid_answer_is_tried_elsewhere_unless_all_or_three_have_refused_it",
        ),
        (
            "how many have refused is known",
            "num_refused=len(self._refused_by)",
            "num_refused=0",
            "test_decoders:test_what_is_refused_in_mid_answer_is_tried_elsewhere_unless_all_or_three_have_refused_it",
        ),
        (
            "what one has refused is not refused by all",
            "self._is_final(generation, worker)",
            "True",
            "test_decoders:test_what_is_refused_in_mid_answer_is_tried_elsewhere_unless_all_or_three_have_refused_it",
        ),
        (
            "patience with a prefill goes by what was measured of prefills",
            "self._workers.prefill_time(seat, self._clock.now()) if is_prefill else None",
            "None",
            "test_decoders:test_patience_with_a_prefill_goes_by_what_was_measured_of_prefills_and_what_stands_before_it",
        ),
        (
            "and by the settings",
            "most=settings.prefill_patience",
            "most=Seconds(1e9)",
            "test_decoders:test_patience_with_a_prefill_goes_by_what_was_measured_of_prefills_and_what_stands_before_it",
        ),
    ),
    *_of(
        "bounds.patience",
        (
            "what has expired expires no more",
            "    if not scope.expired():\n",
            "    if True:\n",
            "test_patience:test_a_scope_expires_once_however_often_it_is_told_to",
        ),
        (
            "a wait that broke off keeps its reason",
            "        self._why = self._why or why\n",
            "        self._why = why\n",
            "test_patience:test_a_wait_that_expired_and_does_not_let_go_yet_keeps_its_reason_and_disturbs_nobody",
        ),
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
        "request.run",
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
            "        if self._relay.num_emitted == 0:\n            self._lose_prefill()\n",
            "",
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
            "a prefill that goes on elsewhere than its transfers is lost",
            "        if not self._paths.begins_at(seat.worker):\n",
            "        if False:\n",
            "test_driver_room:test_a_prefill_worker_that_dies_while_a_prefill_is_held_there_is_replaced",
        ),
        (
            "a request that is over waits for no turn",
            "            self._prefill_turn.over()\n            self._seats",
            "            self._seats",
            "test_driver_room:test_a_client_that_leaves_while_its_prefill_is_held_leaves_nothing",
        ),
        (
            "a turn at prefill takes effect",
            "        self._prefill_turn.begin(seat.worker.name)\n",
            "",
            "test_driver_room:test_what_has_no_place_anywhere_is_not_computed",
        ),
        (
            "what prefill ended gives way however often",
            "        return once_more and self._relay.num_emitted > 1",
            "        return once_more",
            "test_driver_room:test_an_answer_that_ended_at_its_first_token_gives_way_from_then_on_however_often_in_a_row",
        ),
        (
            "a filtered turn's KV goes before others' next time",
            "        return once_more and self._relay.num_emitted > 1",
            "        return False",
            "test_driver_policies:test_it_does_not_give_way_on_two_turns_in_a_row",
        ),
        (
            "an answer that is over gives way to those that wait",
            "            self._paths.spare_the_line()\n",
            "            pass\n",
            "test_driver_policies:test_what_an_answer_that_is_over_still_sends_gives_way_to_whoever_waits",
        ),
        (
            "the filtered share holds",
            "            self._shared.beliefs.filter_share.filtered_one()\n",
            "            pass\n",
            "test_driver_policies:test_no_more_than_their_share_are_filtered",
        ),
        (
            "relay decode is capped when it is busy",
            "relay_cap=choice.relay_cap)",
            "relay_cap=None)",
            "test_driver_policies:test_a_busy_relay_decode_is_given_back_early_and_at_once",
        ),
    ),
    *_of(
        "request.mailbox",
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
        "bounds.waiting_room",
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
        "workers.pins",
        (
            "what was dropped while the node was away is told",
            "        if pin in self._told:\n            self._note(pin)\n",
            "        if False:\n            self._note(pin)\n",
            "test_pins:test_a_node_that_hung_hears_of_every_pin_that_was_dropped_meanwhile",
        ),
        (
            "what it never heard of is not",
            "        if pin in self._told:\n            self._note(pin)\n",
            "        if True:\n            self._note(pin)\n",
            "test_pins:test_what_a_node_never_heard_of_need_not_be_taken_back",
        ),
        (
            "after a failure all are tried again",
            "dict.fromkeys((name, *self._due, *self._wanted))",
            "dict.fromkeys((name, *self._due))",
            "test_pins:test_a_node_that_is_away_is_told_all_that_is_still_wanted_when_it_is_back",
        ),
        (
            "so is the one that failed",
            "dict.fromkeys((name, *self._due, *self._wanted))",
            "dict.fromkeys((*self._due, *self._wanted))",
            "test_pins:test_a_pin_that_could_not_be_taken_back_is_taken_back_later",
        ),
        (
            "a node that came back is told all",
            "            self._due = {**self._due, **dict.fromkeys(self._wanted)}\n",
            "",
            "test_pins:test_a_connection_that_was_lost_unnoticed_is_made_up_for_at_the_next_word",
        ),
    ),
    *_of(
        "request.seats",
        (
            "a seat ends with its process",
            "        if seat is not None and self._beliefs.workers.holds(seat):\n            return seat\n",
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
            "        if seat is not None:\n            self._beliefs.workers.release(seat)\n",
            "",
            "test_driver_parts:test_a_request_stays_at_its_worker_and_goes_elsewhere_after_a_loss",
        ),
    ),
    *_of(
        "workers.prefill_turns",
        (
            "who was told to wait waits though its token has come",
            "        if self._goes_on:\n            self.over()\n",
            "        self.over()\n",
            "test_prefill_turns:test_a_token_that_comes_with_the_word_to_wait_ends_no_turn",
        ),
    ),
    *_of(
        "workers.pool",
        (
            "a suspect is asked at once",
            "            self._check_now[seat.worker.name].set()\n",
            "            pass\n",
            "test_pool:test_a_suspect_is_down_at_once_and_up_with_its_next_answer",
        ),
        (
            "an answer that was on its way clears nobody",
            "        if self._check_now[worker.name].is_set():\n            return",
            "        if False:\n            return",
            "test_pool:test_an_answer_that_was_on_its_way_when_the_worker_failed_does_not_clear_it",
        ),
        (
            "another process ends the one before",
            '                self._end(ended)\n                _logger.info("worker_up',
            '                _logger.info("worker_up',
            "test_decoders:test_a_process_that_was_replaced_is_lost_even_if_its_connection_stays",
        ),
        (
            "who was heard lives",
            "        if asked is not None and asked.heard:\n",
            "        if False:\n",
            "test_pool:test_a_worker_of_whom_something_was_heard_during_a_check_lives_however_late_its_answer_is",
        ),
        (
            "of a process that is gone nobody is asked",
            "        if not seat.down:  # of",
            "        if True:  # of",
            "test_pool:test_what_broke_off_at_a_process_that_is_gone_is_no_reason_to_ask",
        ),
        (
            "who waits at a worker that is down is told",
            '                self._record("worker_down", name, reason=why)\n                self._end(ended)\n',
            '                self._record("worker_down", name, reason=why)\n',
            "test_pool:test_whoever_waits_at_a_worker_is_told_at_once_and_once_when_it_is_down",
        ),
        (
            "who is silent is asked again at once",
            "            self._check_now[name].set()  # its silence was pause enough\n",
            "            pass\n",
            "test_pool:test_a_worker_is_down_once_it_has_left_so_many_checks_in_a_row_unanswered",
        ),
        (
            "a node that is away disagrees no more",
            "            self._tell_all(self.workers.node_refused(node.node, None))\n",
            "            pass\n",
            "test_pool:test_the_workers_of_a_node_that_disagrees_are_down_until_it_agrees_or_is_away",
        ),
        (
            "engines are held to the agreement",
            "self.workers.answered(worker.name, info.instance, why_not, self._clock.now())",
            "self.workers.answered(worker.name, info.instance, None, self._clock.now())",
            "test_pool:test_a_worker_that_disagrees_with_the_deployment_is_down_and_says_why",
        ),
        (
            "so are nodes",
            "self.workers.node_answered(stats, why_not)",
            "self.workers.node_answered(stats, None)",
            "test_pool:test_the_workers_of_a_node_that_disagrees_are_down_until_it_agrees_or_is_away",
        ),
    ),
    *_of(
        "request.outlook",
        (
            "a conversation is not filtered twice in a row",
            "self._filtered_last_turn = conversation is not None and conversation.last_filtered",
            "self._filtered_last_turn = False",
            "test_driver_policies:test_a_conversation_is_never_filtered_on_two_turns_in_a_row",
        ),
        (
            "a long budget is judged by what is used of it",
            "likely_tokens=beliefs.lengths.likely(request.max_tokens)",
            "likely_tokens=request.max_tokens",
            "test_driver_policies:test_a_long_budget_of_which_little_is_ever_used_is",
        ),
        (
            "relay decode's load is heeded",
            "roles=beliefs.roles()",
            "roles={role: replace(view, num_seats=0) for role, view in beliefs.roles().items()}",
            "test_driver_policies:test_a_full_relay_decode_takes_nobody_else",
        ),
        (
            "who hits at main decode takes no room at relay decode",
            "            missing -= prefixes.prefix_at(main.worker.site.node, hashes)\n",
            "            pass\n",
            "test_driver_policies:test_who_hits_at_main_decode_takes_no_room_at_relay_decode",
        ),
    ),
    *_of(
        "transfers.transfer",
        (
            "who is first in the queue is called",
            "        if following is not None:\n            following.call()\n",
            "",
            "test_transfers:test_who_gets_capacity_lets_the_next_one_ask_at_once",
        ),
        (
            "a stream that was cancelled before it began has ended all the same",
            "        if task.cancelled() or task.exception() is None:\n",
            "        if not task.cancelled():\n",
            "test_transfers:test_one_that_is_released_before_it_ran_ends",
        ),
        (
            "what is commanded before it runs is carried out when it does",
            "                self._carry_out_all()\n                await",
            "                await",
            "test_transfers:test_one_that_is_released_before_it_ran_ends",
        ),
        (
            "a crash is a failure",
            "            for command in self.delivery.receive(m.Crashed(at=self._clock.now())):\n",
            "            for command in ():\n",
            "test_transfers:test_a_transfer_that_crashes_has_failed_and_holds_nothing",
        ),
        (
            "a link owes nothing for an order that is over",
            "                self._links.ended(*self.spec.ends, order.order, self._clock.now())\n",
            "                pass\n",
            "test_transfers:test_what_has_ended_owes_the_link_nothing",
        ),
        (
            "the link hears what the source says",
            "        self._links.record(\n",
            "        (lambda *_, **__: None)(\n",
            "test_transfers:test_what_has_ended_owes_the_link_nothing",
        ),
        (
            "an order that is over is cancelled at its source",
            "            if not done:\n                await",
            "            if False:\n                await",
            "test_transfers:test_a_transfer_that_crashes_has_failed_and_holds_nothing",
        ),
        (
            "what waits ends with the transfer",
            "                for wait in self._waits.values():\n                    wait.cancel()\n",
            "",
            "test_transfers:test_the_end_does_not_wait_for_timers",
        ),
    ),
    *_of(
        "transfers.desk",
        (
            "what ends has left the queue",
            "        transfer.leave_queue()\n",
            "",
            "test_transfers:test_who_gives_up_while_it_asks_lets_the_next_one_ask",
        ),
        (
            "what ends makes the first in the queue ask",
            "        if following is not None:\n            following.call()\n",
            "",
            "test_transfers:test_what_ends_at_a_full_node_lets_the_first_one_ask_at_once",
        ),
        (
            "what arrives after its request is known",
            "            self._prefixes.landed(transfer.spec.target.node.node, transfer.spec.hashes)\n",
            "            pass\n",
            "test_transfers:test_what_arrives_after_its_request_is_known",
        ),
        (
            "of too many one is given up",
            "        self._give_up(choose_surplus(self._views(), limit=self._settings.max_detached_transfers))\n",
            "",
            "test_driver:test_only_so_many_transfers_outlive_their_requests",
        ),
    ),
    *_of(
        "request.kv_paths",
        (
            "room that nobody waits for refuses nobody",
            "not self._prefilled and not transfer.delivery.demoted\n",
            "not self._prefilled\n",
            "test_driver_room:test_an_answer_of_one_token_is_given_whatever_main_decode_has_room_for",
        ),
        (
            "a place at relay decode is one that it has room for",
            "            has_place = self.is_at_relay and not self.relay_refused\n",
            "            has_place = self.is_at_relay\n",
            "test_driver_room:test_who_comes_when_others_wait_already_is_not_even_begun",
        ),
        (
            "who has one is computed",
            "            has_place = self.is_at_relay and not self.relay_refused\n",
            "            has_place = False\n",
            "test_driver_room:test_what_relay_decode_has_a_place_for_is_computed_when_prefill_is_free_and_answers_as_soon_as_there_is_room",
        ),
    ),
    *_of(
        "service",
        (
            "what can't be served is refused at once",
            "            self._require_workers()\n            place",
            "            place",
            "test_driver:test_without_prefill_a_request_is_refused_at_once_and_served_when_it_is_back",
        ),
        (
            "a request that is over gives its place back",
            "        finally:\n            self.room.leave(place)\n",
            "        finally:\n            pass\n",
            "test_waiting_room:test_requests_beyond_the_limit_wait_and_are_answered_in_order",
        ),
        (
            "who leaves the line makes room",
            "        if not self.room.has_place(place):\n            self.room.leave(place)\n",
            "",
            "test_waiting_room:test_a_client_that_leaves_the_line_makes_room_at_once_and_takes_no_ones_turn",
        ),
        (
            "those in line outlast a restart",
            "            await self._wait_for_workers(answer, place)\n",
            "",
            "test_waiting_room:test_a_client_that_waits_for_engines_to_come_back_may_leave_at_any_time",
        ),
        (
            "those in line are told when nobody came back",
            "            if self._shared.clock.now() >= until:\n                self._require_workers()\n",
            "",
            "test_waiting_room:test_those_in_line_are_told_when_nobody_came_back_in_time",
        ),
        (
            "a router that stops ends what is open",
            "        for answer, place in self._open.items():\n            self._abandon(answer, place)\n",
            "",
            "test_driver:test_stopping_the_driver_ends_what_is_open",
        ),
        (
            "cancelled twice, it waits all the same",
            "        except asyncio.CancelledError as error:\n            cancellation = error\n",
            "        except asyncio.CancelledError:\n            raise\n",
            "test_driver:test_a_handler_cancelled_twice_still_leaves_nothing_behind",
        ),
    ),
)
