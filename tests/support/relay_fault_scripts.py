"""Scripts of every loss at every phase: who goes on, and when it is over."""

from pdd.core.request import Route
from tests.support.relay_play import LENGTH, MAIN, PREFILL, RELAY, STOP, Play
from tests.support.relay_scripts import Script

# Prefill, before the first token --------------------------------------------------------------------------------------


def a_lost_prefill_is_followed_by_another_with_transfers_of_its_own(m):
    play = Play(m, max_prefill_attempts=2)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.ready(1))
    play.on(
        play.lost(3),
        play.cancel(1),
        play.cancel(2),
        play.replicate(4, MAIN),
        play.replicate(5, RELAY),
        play.decode(6, PREFILL, 0, 1),
    )
    play.on(play.ready(2))
    play.on(play.tokens(3, 0, 10))
    play.on(play.lost(6), play.cancel(4), play.cancel(5), play.fail("prefill was lost too often"))
    assert play.relay.finished
    play.on(play.tokens(6, 0, 10))


def a_prefill_that_ends_without_its_token_is_lost(m):
    play = Play(m)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    again = play.cancel(1), play.cancel(2), play.replicate(4, MAIN), play.replicate(5, RELAY)
    play.on(play.tokens(3, 0, finish=LENGTH), *again, play.decode(6, PREFILL, 0, 1))


def a_prefill_that_leaves_a_gap_is_stopped_and_lost(m):
    play = Play(m, prepare_relay=False)
    play.start(play.replicate(1, MAIN), play.decode(2, PREFILL, 0, 1))
    play.on(play.tokens(2, 1, 10), play.stop(2), play.cancel(1), play.replicate(3, MAIN), play.decode(4, PREFILL, 0, 1))


def without_any_prefill_the_request_waits_a_moment_for_one(m):
    play = Play(m, max_prefill_waits=2, recovery_delay=0.5, max_prefill_attempts=1)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.unavailable(3), play.cancel(1), play.cancel(2), play.timer("RECOVER", 0.5))
    play.on(play.ready(1))
    play.on(play.fired("RECOVER"), play.replicate(4, MAIN), play.replicate(5, RELAY), play.decode(6, PREFILL, 0, 1))
    play.on(play.fired("RECOVER"))
    play.on(play.unavailable(6), play.cancel(4), play.cancel(5), play.timer("RECOVER", 0.5))
    play.on(play.fired("RECOVER"), play.replicate(7, MAIN), play.replicate(8, RELAY), play.decode(9, PREFILL, 0, 1))
    play.on(play.unavailable(9), play.cancel(7), play.cancel(8), play.fail("no prefill worker is up"))


def a_client_that_leaves_while_prefill_is_waited_for_leaves_nothing(m):
    play = Play(m)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.unavailable(3), play.cancel(1), play.cancel(2), play.timer("RECOVER", 1.0))
    play.on(play.client_left(), play.finish(None))
    play.on(play.fired("RECOVER"))


def a_prefill_lost_after_its_token_is_no_loss(m):
    play = Play(m)
    play.prefilled()
    play.on(play.lost(3))
    play.on(play.unavailable(3))


# Relay decode ---------------------------------------------------------------------------------------------------------


def a_relay_decode_that_is_not_up_is_replaced_by_prefill(m):
    play = Play(m, relay_cap=2)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 2))
    play.on(play.unavailable(4), play.decode(5, PREFILL, 1, 7))
    play.on(play.tokens(5, 1, 11, 12, 13), play.emit(5, PREFILL, 1, 11, 12, 13))
    play.on(play.ready(1), play.ask_handoff(4, None, 0))
    play.on(play.one_shot(), play.stop(5), play.decode(6, MAIN, 4, 4))


def a_relay_decode_lost_when_main_is_ready_lets_main_take_over(m):
    play = Play(m)
    play.relaying()
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    play.on(play.lost(4), play.decode(5, MAIN, 2, 6))
    play.refuses(play.one_shot())


def a_relay_decode_lost_during_an_extend_lets_main_take_over(m):
    play = Play(m)
    play.relaying()
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    play.on(play.catch_up(), play.extend(5, 2))
    play.on(play.lost(4), play.stop(5), play.decode(6, MAIN, 2, 6))


def a_relay_decode_lost_below_the_floor_is_replaced_by_prefill(m):
    play = Play(m, relay_floor=3)
    play.relaying()
    play.on(play.ready(1))
    play.on(play.lost(4), play.decode(5, PREFILL, 2, 6))
    play.on(play.tokens(5, 2, 12), play.emit(5, PREFILL, 2, 12))
    play.on(play.tokens(5, 3, 13), play.emit(5, PREFILL, 3, 13), play.ask_handoff(4, None, 0))


def relay_decode_and_prefill_lost_leaves_main_to_compute_the_prompt(m):
    play = Play(m)
    play.relaying()
    play.on(play.lost(4), play.decode(5, PREFILL, 2, 6))
    play.on(play.lost(5), play.decode(6, MAIN, 2, 6))
    play.on(play.ready(1))
    play.on(play.tokens(6, 2, 12), play.emit(6, MAIN, 2, 12), play.cancel(2))


def mains_kv_that_arrives_while_prefill_goes_on_is_used(m):
    play = Play(m)
    play.relaying()
    play.on(play.lost(4), play.decode(5, PREFILL, 2, 6))
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    play.on(play.lost(5), play.decode(6, MAIN, 2, 6))


# Main decode ----------------------------------------------------------------------------------------------------------


def a_main_lost_before_its_first_token_goes_to_relay_decode_without_a_cap(m):
    play = Play(m, relay_cap=1)
    play.direct()
    play.on(play.ready(2))
    play.on(play.ready(1), play.decode(4, MAIN, 1, 7))
    play.on(play.lost(4), play.cancel(1), play.replicate(5, MAIN), play.decode(6, RELAY, 1, 7))
    play.on(play.tokens(6, 1, 11), play.emit(6, RELAY, 1, 11))
    play.on(play.fired("REROUTE"))


def a_main_lost_in_mid_answer_is_replaced_by_another_main_after_a_new_hand_off(m):
    play = Play(m)
    play.main_decoding()
    play.on(play.lost(4), play.cancel(1), play.replicate(5, MAIN), play.replicate(6, RELAY), play.timer("RECOVER", 1.0))
    play.on(play.ready(6), play.decode(7, RELAY, 2, 6))
    play.on(play.tokens(7, 2, 12), play.emit(7, RELAY, 2, 12))
    play.on(play.fired("RECOVER"))
    play.on(play.ready(5), play.ask_handoff(3, None, 0))
    play.on(play.one_shot(), play.stop(7), play.decode(8, MAIN, 3, 5))
    play.on(play.tokens(8, 3, 13), play.emit(8, MAIN, 3, 13), play.cancel(6))
    play.on(
        play.tokens(8, 4, 14, 15, 16, 17, finish=LENGTH), play.emit(8, MAIN, 4, 14, 15, 16, 17), play.finish(LENGTH)
    )


def relay_decode_goes_on_without_its_kv_when_that_takes_too_long(m):
    play = Play(m)
    play.main_decoding()
    play.on(play.lost(4), play.cancel(1), play.replicate(5, MAIN), play.replicate(6, RELAY), play.timer("RECOVER", 1.0))
    play.on(play.fired("RECOVER"), play.decode(7, RELAY, 2, 6))
    play.on(play.ready(6))
    play.on(play.lost(7), play.decode(8, PREFILL, 2, 6))


def relay_decodes_kv_that_is_under_way_is_waited_for(m):
    play = Play(m)
    play.direct()
    play.on(play.ready(1), play.decode(4, MAIN, 1, 7))
    play.on(play.lost(4), play.cancel(1), play.replicate(5, MAIN), play.timer("RECOVER", 1.0))
    play.on(play.failed(2), play.decode(6, RELAY, 1, 7))


def another_main_that_has_the_kv_goes_before_relay_decode(m):
    play = Play(m)
    play.direct()
    play.on(play.ready(1), play.decode(4, MAIN, 1, 7))
    play.on(play.lost(4), play.cancel(1), play.replicate(5, MAIN), play.timer("RECOVER", 1.0))
    play.on(play.ready(5), play.decode(6, MAIN, 1, 7))
    play.on(play.fired("RECOVER"))
    play.on(play.ready(2))
    play.on(play.tokens(6, 1, 11), play.emit(6, MAIN, 1, 11), play.cancel(2))


def a_main_that_is_lost_again_and_again_is_given_up(m):
    play = Play(m, max_main_losses=1)
    play.main_decoding()
    play.on(play.lost(4), play.cancel(1), play.replicate(5, MAIN), play.replicate(6, RELAY), play.timer("RECOVER", 1.0))
    play.on(play.ready(5), play.decode(7, MAIN, 2, 6))
    play.on(play.ready(6))
    play.on(play.lost(7), play.cancel(5), play.decode(8, RELAY, 2, 6))
    play.on(play.tokens(8, 2, 12), play.emit(8, RELAY, 2, 12))
    play.on(play.lost(8), play.decode(9, PREFILL, 3, 5))
    play.on(play.tokens(9, 3, 13), play.emit(9, PREFILL, 3, 13))
    play.on(play.lost(9), play.decode(10, RELAY, 4, 4))
    play.on(play.lost(10), play.decode(11, MAIN, 4, 4))
    play.on(
        play.tokens(11, 4, 14, 15, 16, 17, finish=LENGTH),
        play.emit(11, MAIN, 4, 14, 15, 16, 17),
        play.cancel(6),
        play.finish(LENGTH),
    )


def a_main_that_is_lost_after_a_hand_off_gives_back_to_relay_decode(m):
    play = Play(m)
    play.relaying()
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    play.on(play.one_shot(), play.stop(4), play.decode(5, MAIN, 2, 6))
    play.on(play.unavailable(5), play.cancel(1), play.replicate(6, MAIN), play.decode(7, RELAY, 2, 6))
    play.on(play.failed(6), play.timer("RESEND", 2.0))
    play.on(play.fired("RESEND"), play.replicate(8, MAIN))


def a_main_lost_in_an_extend_is_sought_again_while_relay_decode_goes_on(m):
    play = Play(m)
    play.relaying()
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    play.on(play.catch_up(), play.extend(5, 2))
    play.on(play.extended(5), play.ask_handoff(0, 2, 1))
    play.on(play.catch_up(), play.extend(6, 2))
    play.on(play.lost(6), play.cancel(1), play.replicate(7, MAIN))
    play.on(play.extended(6))
    play.on(play.lost(6))
    play.on(play.tokens(4, 2, 12), play.emit(4, RELAY, 2, 12))
    play.on(play.ready(7), play.ask_handoff(3, None, 0))
    play.on(play.tokens(4, 3, 13, finish=STOP), play.emit(4, RELAY, 3, 13), play.finish(STOP))
    play.on(play.lost(6))


def a_capped_relay_waits_for_another_main_when_one_was_lost_in_an_extend(m):
    play = Play(m, relay_cap=2)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 2))
    play.on(play.ready(1), play.ask_handoff(1, None, 0))
    play.on(play.catch_up(), play.extend(5, 1))
    play.on(play.lost(5), play.cancel(1), play.replicate(6, MAIN))
    play.on(play.tokens(4, 1, 11, 12, finish=LENGTH), play.emit(4, RELAY, 1, 11, 12), play.cancel(2))
    play.on(play.failed(6), play.decode(7, MAIN, 3, 5))


def a_capped_relay_goes_on_uncapped_when_main_is_given_up(m):
    play = Play(m, relay_cap=2, max_main_losses=0)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 2))
    play.on(play.ready(1), play.ask_handoff(1, None, 0))
    play.on(play.catch_up(), play.extend(5, 1))
    play.on(play.lost(5), play.cancel(1))
    play.on(
        play.tokens(4, 1, 11, 12, finish=LENGTH),
        play.emit(4, RELAY, 1, 11, 12),
        play.cancel(2),
        play.replicate(6, RELAY),
        play.timer("RECOVER", 1.0),
    )
    play.on(play.ready(6), play.decode(7, RELAY, 3, 5))
    play.on(play.lost(7), play.decode(8, PREFILL, 3, 5))
    play.on(play.lost(8), play.decode(9, MAIN, 3, 5))


def a_decoder_lost_beside_mains_extend_of_the_whole_prompt_lets_main_take_over(m):
    play = Play(m, max_resends=0)
    play.relaying_without_main()
    play.on(play.catch_up(), play.extend(5, 2))
    play.on(play.lost(4), play.stop(5), play.decode(6, MAIN, 2, 6))


# Contradictions -------------------------------------------------------------------------------------------------------


def a_decoder_that_contradicts_what_is_out_is_stopped_and_replaced(m):
    for first, tokens in [(3, (13,)), (-1, (9, 10, 11, 12)), (-1, (11,)), (1, (66, 12)), (0, (66,)), (3, ())]:
        play = Play(m)
        play.relaying()
        play.on(play.tokens(4, first, *tokens), play.stop(4), play.decode(5, PREFILL, 2, 6))
        assert play.relay.emitted == (10, 11)


def a_decoder_that_ends_short_of_what_it_was_asked_is_replaced(m):
    play = Play(m)
    play.relaying()
    play.on(play.tokens(4, 2, 12, finish=LENGTH), play.emit(4, RELAY, 2, 12), play.decode(5, PREFILL, 3, 5))


def an_end_before_what_is_out_says_nothing_about_the_answer(m):
    for finish in (STOP, LENGTH):
        play = Play(m)
        play.relaying()
        play.on(play.tokens(4, 0, 10, finish=finish), play.decode(5, PREFILL, 2, 6))


def events_of_other_attempts_are_ignored(m):
    play = Play(m, max_resends=0)
    play.relaying()
    for attempt in (0, 1, 2, 3, 5):
        play.on(play.tokens(attempt, 2, 12))
        play.on(play.extended(attempt))
        play.on(play.lost(attempt))
        play.on(play.unavailable(attempt))
    for attempt in (2, 3, 4, 5):
        play.on(play.ready(attempt))
        play.on(play.failed(attempt))
    play.on(play.extended(4))
    play.on(play.failed(1), play.ask_handoff(12, None, 0))
    play.on(play.ready(1))
    play.on(play.catch_up(), play.extend(5, 2))
    play.on(play.extended(4))
    play.on(play.lost(3))
    play.on(play.tokens(5, 2, 12))
    play.on(play.extended(5), play.ask_handoff(0, 12, 1))


# Everybody lost -------------------------------------------------------------------------------------------------------


def lose_main(play: Play) -> None:
    """Main decode, attempt 4, is lost: main's new transfer is 5, relay decode's 6, and relay decode goes on as 7."""
    play.main_decoding()
    delay = play.settings.get("recovery_delay", 1.0)
    play.on(
        play.lost(4), play.cancel(1), play.replicate(5, MAIN), play.replicate(6, RELAY), play.timer("RECOVER", delay)
    )
    play.on(play.ready(6), play.decode(7, RELAY, 2, 6))


def when_everybody_is_lost_they_are_tried_again_a_bounded_number_of_times(m):
    play = Play(m, max_recovery_rounds=2, recovery_delay=0.75)
    lose_main(play)
    play.on(play.lost(7), play.decode(8, PREFILL, 2, 6))
    play.on(play.unavailable(8), play.timer("RECOVER", 0.75))
    play.on(play.fired("REROUTE"))
    play.on(play.lost(8))
    play.on(play.failed(5), play.timer("RESEND", 2.0))
    play.on(play.fired("RECOVER"), play.decode(9, RELAY, 2, 6))
    play.on(play.fired("RECOVER"))
    play.on(play.lost(9), play.decode(10, PREFILL, 2, 6))
    play.on(play.lost(10), play.decode(11, MAIN, 2, 6))
    play.on(play.unavailable(11), play.cancel(5), play.replicate(12, MAIN), play.timer("RECOVER", 0.75))
    play.on(play.fired("RECOVER"), play.decode(13, RELAY, 2, 6))
    play.on(play.lost(13), play.decode(14, PREFILL, 2, 6))
    play.on(play.lost(14), play.decode(15, MAIN, 2, 6))
    play.on(
        play.lost(15),
        play.cancel(12),
        play.replicate(16, MAIN),
        play.cancel(16),
        play.fail("no worker is left that could go on"),
    )


def a_recovery_timer_that_fires_late_forgets_nobody(m):
    play = Play(m)
    lose_main(play)
    play.on(play.fired("RECOVER"))
    play.on(play.lost(7), play.decode(8, PREFILL, 2, 6))
    play.on(play.lost(8), play.timer("RECOVER", 1.0))


def a_token_after_a_recovery_starts_the_count_anew(m):
    play = Play(m, max_recovery_rounds=1)
    lose_main(play)
    play.on(play.lost(7), play.decode(8, PREFILL, 2, 6))
    play.on(play.lost(8), play.timer("RECOVER", 1.0))
    play.on(play.fired("RECOVER"), play.decode(9, RELAY, 2, 6))
    play.on(play.tokens(9, 2, 12), play.emit(9, RELAY, 2, 12))
    play.on(play.lost(9), play.decode(10, PREFILL, 3, 5))
    play.on(play.lost(10), play.decode(11, MAIN, 3, 5))
    play.on(play.lost(11), play.cancel(5), play.replicate(12, MAIN), play.timer("RECOVER", 1.0))
    play.on(play.client_left(), play.cancel(12), play.finish(None))
    play.on(play.fired("RECOVER"))


def another_mains_kv_that_arrives_while_all_wait_ends_the_wait(m):
    play = Play(m)
    play.relaying()
    play.on(play.lost(4), play.decode(5, PREFILL, 2, 6))
    play.on(play.lost(5), play.decode(6, MAIN, 2, 6))
    play.on(play.lost(6), play.cancel(1), play.replicate(7, MAIN), play.timer("RECOVER", 1.0))
    play.on(play.ready(7), play.decode(8, MAIN, 2, 6))
    play.on(play.fired("RECOVER"))
    play.on(play.answer_complete(), play.stop(8), play.finish(STOP))


def relay_decodes_kv_that_arrives_while_all_wait_does_not_end_the_wait(m):
    play = Play(m)
    play.main_decoding()
    play.on(play.lost(4), play.cancel(1), play.replicate(5, MAIN), play.replicate(6, RELAY), play.timer("RECOVER", 1.0))
    play.on(play.fired("RECOVER"), play.decode(7, RELAY, 2, 6))
    play.on(play.lost(7), play.decode(8, PREFILL, 2, 6))
    play.on(play.lost(8), play.timer("RECOVER", 1.0))
    play.on(play.ready(6))
    play.on(play.fired("RECOVER"), play.decode(9, RELAY, 2, 6))


def too_many_lost_decoders_fail_the_request(m):
    play = Play(m, max_decode_attempts=2)
    play.relaying()
    play.on(play.lost(4), play.decode(5, PREFILL, 2, 6))
    play.on(play.tokens(5, 2, 12), play.emit(5, PREFILL, 2, 12))
    play.on(play.lost(5), play.cancel(1), play.fail("too many decoders were lost"))


def a_request_that_fails_during_an_extend_stops_it(m):
    play = Play(m, max_decode_attempts=1)
    play.relaying()
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    play.on(play.catch_up(), play.extend(5, 2))
    play.on(play.lost(4), play.stop(5), play.fail("too many decoders were lost"))


FAULT_SCRIPTS: tuple[Script, ...] = (
    a_lost_prefill_is_followed_by_another_with_transfers_of_its_own,
    a_prefill_that_ends_without_its_token_is_lost,
    a_prefill_that_leaves_a_gap_is_stopped_and_lost,
    without_any_prefill_the_request_waits_a_moment_for_one,
    a_client_that_leaves_while_prefill_is_waited_for_leaves_nothing,
    a_prefill_lost_after_its_token_is_no_loss,
    a_relay_decode_that_is_not_up_is_replaced_by_prefill,
    a_relay_decode_lost_when_main_is_ready_lets_main_take_over,
    a_relay_decode_lost_during_an_extend_lets_main_take_over,
    a_relay_decode_lost_below_the_floor_is_replaced_by_prefill,
    relay_decode_and_prefill_lost_leaves_main_to_compute_the_prompt,
    mains_kv_that_arrives_while_prefill_goes_on_is_used,
    a_main_lost_before_its_first_token_goes_to_relay_decode_without_a_cap,
    a_main_lost_in_mid_answer_is_replaced_by_another_main_after_a_new_hand_off,
    relay_decode_goes_on_without_its_kv_when_that_takes_too_long,
    relay_decodes_kv_that_is_under_way_is_waited_for,
    another_main_that_has_the_kv_goes_before_relay_decode,
    a_main_that_is_lost_again_and_again_is_given_up,
    a_main_that_is_lost_after_a_hand_off_gives_back_to_relay_decode,
    a_main_lost_in_an_extend_is_sought_again_while_relay_decode_goes_on,
    a_capped_relay_waits_for_another_main_when_one_was_lost_in_an_extend,
    a_capped_relay_goes_on_uncapped_when_main_is_given_up,
    a_decoder_lost_beside_mains_extend_of_the_whole_prompt_lets_main_take_over,
    a_decoder_that_contradicts_what_is_out_is_stopped_and_replaced,
    a_decoder_that_ends_short_of_what_it_was_asked_is_replaced,
    an_end_before_what_is_out_says_nothing_about_the_answer,
    events_of_other_attempts_are_ignored,
    when_everybody_is_lost_they_are_tried_again_a_bounded_number_of_times,
    a_recovery_timer_that_fires_late_forgets_nobody,
    a_token_after_a_recovery_starts_the_count_anew,
    another_mains_kv_that_arrives_while_all_wait_ends_the_wait,
    relay_decodes_kv_that_arrives_while_all_wait_does_not_end_the_wait,
    too_many_lost_decoders_fail_the_request,
    a_request_that_fails_during_an_extend_stops_it,
)
