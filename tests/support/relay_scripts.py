"""Scripts of what happens on every route when nothing is lost: events in, exactly these commands out."""

from collections.abc import Callable
from types import ModuleType

from pdd.core.errors import LocalProtocolError
from pdd.core.request import Route
from tests.support.relay_play import END, LENGTH, MAIN, PREFILL, RELAY, STOP, Play

Script = Callable[[ModuleType], None]


def raises_local_error(call: Callable[[], object]) -> bool:
    try:
        call()
    except LocalProtocolError:
        return True
    return False


# Plans and calling order ----------------------------------------------------------------------------------------------


def a_plan_has_room_for_a_token_and_a_cap_of_at_least_one_and_its_floor(m):
    fixed = {"num_prompt_tokens": 4, "stop_token_ids": frozenset()}
    assert raises_local_error(lambda: m.RelayPlan(max_tokens=0, **fixed))
    assert raises_local_error(lambda: m.RelayPlan(max_tokens=5, relay_cap=0, **fixed))
    assert raises_local_error(lambda: m.RelayPlan(max_tokens=5, relay_cap=2, relay_floor=3, **fixed))
    for cap, floor in [(1, 0), (3, 3), (None, 3)]:
        assert m.RelayPlan(max_tokens=1, relay_cap=cap, relay_floor=floor, **fixed).relay_cap == cap


def it_is_started_once_and_before_any_event(m):
    play = Play(m)
    play.refuses(play.client_left())
    play.prefilled()
    assert raises_local_error(play.relay.start)


def it_tells_what_was_emitted_and_whether_it_is_over(m):
    play = Play(m)
    assert (play.relay.emitted, play.relay.num_emitted, play.relay.finished) == ((), 0, False)
    play.relaying()
    assert (play.relay.emitted, play.relay.num_emitted, play.relay.finished) == ((10, 11), 2, False)
    assert play.relay.known_tokens(1) == (10,)
    play.on(play.client_left(), play.stop(4), play.cancel(1), play.finish(None))
    assert play.relay.finished


def answers_to_questions_that_nobody_asked_are_refused(m):
    play = Play(m)
    play.prefilled()
    play.refuses(play.one_shot())
    play.on(play.route(Route.RELAY))
    play.refuses(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 7))
    play.refuses(play.one_shot())
    play.on(play.ready(1), play.ask_handoff(1, None, 0))
    play.on(play.catch_up(), play.extend(5, 1))
    play.refuses(play.one_shot())


def words_of_no_known_kind_are_programming_errors(m):
    play = Play(m)
    play.relaying()
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    for nonsense in ("tokens", m.TimerFired(timer="lunch"), m.HandoffChosen(mode="maybe")):
        try:
            play.relay.receive(nonsense)
        except AssertionError:
            continue
        raise ValueError(f"{nonsense} was taken")


# Prefill --------------------------------------------------------------------------------------------------------------


def without_a_prepared_relay_only_main_gets_the_prompt(m):
    play = Play(m, prepare_relay=False)
    play.start(play.replicate(1, MAIN), play.decode(2, PREFILL, 0, 1))
    play.on(play.tokens(2, 0, 10), play.emit(2, PREFILL, 0, 10), play.stop(2), play.ask_route())
    play.on(play.route(Route.RELAY), play.replicate(3, RELAY))
    play.on(play.ready(3), play.decode(4, RELAY, 1, 7))


def a_prefill_that_gives_the_stop_token_ends_the_answer_and_mains_transfer_goes_on(m):
    play = Play(m)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.tokens(3, 0, END, finish=STOP), play.emit(3, PREFILL, 0, END), play.cancel(2), play.finish(STOP))


def one_token_is_an_answer(m):
    play = Play(m, max_tokens=1)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.tokens(3, 0, 10, 11), play.emit(3, PREFILL, 0, 10), play.stop(3), play.cancel(2), play.finish(LENGTH))


def a_stop_token_as_the_only_token_allowed_is_a_stop(m):
    play = Play(m, max_tokens=1)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.tokens(3, 0, END), play.emit(3, PREFILL, 0, END), play.stop(3), play.cancel(2), play.finish(STOP))


def a_prefill_without_room_at_main_is_stopped_and_begins_again_with_the_same_transfers(m):
    play = Play(m)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.resumed())
    play.on(play.held(), play.stop(3))
    play.on(play.held())
    play.on(play.tokens(3, 0, 10, finish=LENGTH))
    play.on(play.ready(2))
    play.on(play.resumed(), play.decode(4, PREFILL, 0, 1))
    play.on(play.resumed())
    play.on(play.tokens(4, 0, 10, finish=LENGTH), play.emit(4, PREFILL, 0, 10), play.ask_route())
    play.on(play.held())
    play.on(play.route(Route.RELAY), play.decode(5, RELAY, 1, 7))
    play.on(play.held())
    play.on(play.resumed())


def a_prefill_that_waits_for_a_worker_is_neither_held_nor_resumed(m):
    play = Play(m)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.unavailable(3), play.cancel(1), play.cancel(2), play.timer("RECOVER", 1.0))
    play.on(play.held())
    play.on(play.resumed())
    play.on(play.fired("RECOVER"), play.replicate(4, MAIN), play.replicate(5, RELAY), play.decode(6, PREFILL, 0, 1))
    play.on(play.held(), play.stop(6))
    play.on(play.fired("RECOVER"))


def a_prompt_shorter_than_a_block_is_ready_before_its_first_token(m):
    play = Play(m)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.ready(1))
    play.on(play.ready(2))
    play.on(play.tokens(3, 0))
    play.on(play.tokens(3, 0, 10, finish=LENGTH), play.emit(3, PREFILL, 0, 10), play.ask_route())
    play.on(play.route(Route.DIRECT), play.decode(4, MAIN, 1, 7))


def prefill_is_not_believed_about_tokens_it_was_not_asked_for(m):
    play = Play(m)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.tokens(3, 0, 10, END, finish=STOP), play.emit(3, PREFILL, 0, 10), play.ask_route())


# P-MD -----------------------------------------------------------------------------------------------------------------


def p_md_waits_for_mains_kv_and_then_main_decodes(m):
    play = Play(m)
    play.main_decoding()
    play.on(play.tokens(4, 2, 12, 13, 14), play.emit(4, MAIN, 2, 12, 13, 14))
    play.on(play.tokens(4, 5, 15, 16, 17, finish=LENGTH), play.emit(4, MAIN, 5, 15, 16, 17), play.finish(LENGTH))


def the_prompt_that_never_arrives_is_computed_at_main(m):
    play = Play(m)
    play.direct()
    play.on(play.failed(1), play.decode(4, MAIN, 1, 7))


def events_wait_while_the_route_is_chosen(m):
    play = Play(m)
    play.prefilled()
    play.on(play.ready(1))
    play.on(play.ready(2))
    play.on(play.fired("REROUTE"))
    play.on(play.route(Route.DIRECT), play.decode(4, MAIN, 1, 7))


def p_md_asks_again_by_timer_and_stays(m):
    play = Play(m, reroute_interval=0.5)
    play.prefilled()
    play.on(play.route(Route.DIRECT), play.timer("REROUTE", 0.5))
    play.on(play.fired("REROUTE"), play.ask_route())
    play.on(play.fired("REROUTE"))
    play.on(play.route(Route.DIRECT), play.timer("REROUTE", 0.5))
    play.on(play.ready(1), play.decode(4, MAIN, 1, 7))
    play.on(play.fired("REROUTE"))


def p_md_turns_into_a_relay(m):
    play = Play(m)
    play.direct()
    play.on(play.ready(2))
    play.on(play.fired("REROUTE"), play.ask_route())
    play.on(play.route(Route.RELAY), play.decode(4, RELAY, 1, 7))
    play.on(play.fired("REROUTE"))
    play.on(play.tokens(4, 1, 11), play.emit(4, RELAY, 1, 11))
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    play.on(play.one_shot(), play.stop(4), play.decode(5, MAIN, 2, 6))


def p_md_turning_into_a_relay_finds_main_ready_meanwhile(m):
    play = Play(m)
    play.direct()
    play.on(play.fired("REROUTE"), play.ask_route())
    play.on(play.ready(1))
    play.on(play.route(Route.RELAY), play.decode(4, MAIN, 1, 7))


def p_md_that_may_not_turn_is_not_asked_again(m):
    play = Play(m, may_reroute=False)
    play.prefilled()
    play.on(play.route(Route.DIRECT))
    play.on(play.fired("REROUTE"))
    play.on(play.ready(2))
    play.on(play.ready(1), play.decode(4, MAIN, 1, 7))


def p_md_without_a_prepared_relay_sends_it_nothing(m):
    play = Play(m, prepare_relay=False)
    play.start(play.replicate(1, MAIN), play.decode(2, PREFILL, 0, 1))
    play.on(play.tokens(2, 0, 10, finish=LENGTH), play.emit(2, PREFILL, 0, 10), play.ask_route())
    play.on(play.route(Route.DIRECT), play.timer("REROUTE", 0.25))
    play.on(play.client_left(), play.cancel(1), play.finish(None))


def a_relay_that_waits_for_its_kv_is_not_asked_again(m):
    play = Play(m)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.fired("REROUTE"))


# P-RLD-MD, one-shot ---------------------------------------------------------------------------------------------------


def one_shot_stops_relay_decode_before_main_starts(m):
    play = Play(m)
    play.relaying()
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    play.on(play.tokens(4, 2, 12), play.emit(4, RELAY, 2, 12))
    play.on(play.one_shot(), play.stop(4), play.decode(5, MAIN, 3, 5))
    play.on(play.tokens(4, 3, 13))
    play.on(play.tokens(5, 3, 13), play.emit(5, MAIN, 3, 13), play.cancel(2))
    play.on(play.tokens(5, 4, END, 15), play.emit(5, MAIN, 4, END), play.stop(5), play.finish(STOP))


def main_that_is_ready_first_decodes_at_once(m):
    play = Play(m)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(1), play.decode(4, MAIN, 1, 7))
    play.on(play.ready(2))
    play.on(play.tokens(4, 1, 11), play.emit(4, MAIN, 1, 11), play.cancel(2))


def a_gap_counts_the_prompt_when_it_never_arrived(m):
    play = Play(m, max_resends=0)
    play.relaying_without_main()
    play.on(play.catch_up(), play.extend(5, 2))
    play.on(play.extended(5), play.ask_handoff(0, 12, 1))


def relay_decode_that_finishes_first_leaves_mains_transfer_going(m):
    play = Play(m)
    play.relaying()
    play.on(
        play.tokens(4, 2, 12, 13, 14, 15, 16, 17, finish=LENGTH),
        play.emit(4, RELAY, 2, 12, 13, 14, 15, 16, 17),
        play.finish(LENGTH),
    )
    play.on(play.ready(1))


def a_question_dies_with_the_decoder_it_was_about(m):
    play = Play(m, relay_cap=2)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 2))
    play.on(play.ready(1), play.ask_handoff(1, None, 0))
    play.on(
        play.tokens(4, 1, 11, 12),
        play.emit(4, RELAY, 1, 11, 12),
        play.stop(4),
        play.cancel(2),
        play.decode(5, MAIN, 3, 5),
    )
    play.refuses(play.one_shot())


# Caps and floors ------------------------------------------------------------------------------------------------------


def a_capped_relay_decode_gives_its_room_up_and_waits_for_main(m):
    play = Play(m, relay_cap=3)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 3))
    play.on(play.tokens(4, 1, 11), play.emit(4, RELAY, 1, 11))
    play.on(play.tokens(4, 2, 12, 13, finish=LENGTH), play.emit(4, RELAY, 2, 12, 13), play.cancel(2))
    play.on(play.fired("REROUTE"))
    play.on(play.fired("RECOVER"))
    play.on(play.ready(1), play.decode(5, MAIN, 4, 4))


def a_cap_beyond_the_answer_changes_nothing(m):
    play = Play(m, relay_cap=20)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 7))


def main_waits_until_the_floor_is_reached(m):
    play = Play(m, relay_floor=2, relay_cap=2)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(1))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 2))
    play.on(play.tokens(4, 1, 11), play.emit(4, RELAY, 1, 11))
    play.on(play.tokens(4, 2, 12), play.emit(4, RELAY, 2, 12), play.stop(4), play.cancel(2), play.decode(5, MAIN, 3, 5))


def a_floor_without_a_cap_delays_the_question(m):
    play = Play(m, relay_floor=2)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 7))
    play.on(play.ready(1))
    play.on(play.tokens(4, 1, 11), play.emit(4, RELAY, 1, 11))
    play.on(play.tokens(4, 2, 12), play.emit(4, RELAY, 2, 12), play.ask_handoff(3, None, 0))


def a_floor_is_nothing_to_p_md(m):
    play = Play(m, relay_floor=2)
    play.direct()
    play.on(play.ready(1), play.decode(4, MAIN, 1, 7))


def a_route_may_come_with_a_cap(m):
    play = Play(m)
    play.prefilled()
    play.on(play.route(Route.RELAY, relay_cap=2))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 2))
    play.on(play.tokens(4, 1, 11, 12, finish=LENGTH), play.emit(4, RELAY, 1, 11, 12), play.cancel(2))
    play.on(play.ready(1), play.decode(5, MAIN, 3, 5))


def a_cap_that_comes_with_the_route_is_at_least_the_floor_and_yields_to_the_plans(m):
    for floor, planned, chosen, cap in [(0, None, 0, 1), (3, None, 2, 3), (3, None, 4, 4), (0, 2, 5, 2), (2, 4, 3, 4)]:
        play = Play(m, relay_floor=floor, relay_cap=planned)
        play.prefilled()
        play.on(play.route(Route.RELAY, relay_cap=chosen))
        play.on(play.ready(2), play.decode(4, RELAY, 1, cap))


# P-RLD ----------------------------------------------------------------------------------------------------------------


def a_request_that_stays_at_relay_decode_has_its_transfer_demoted(m):
    play = Play(m, relay_cap=2)
    play.prefilled()
    play.on(play.route(Route.RELAY_ONLY, relay_cap=1), play.demote(1))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 7))
    play.on(play.failed(1))
    play.on(play.fired("REROUTE"))
    play.on(play.fired("RESEND"))
    play.on(
        play.tokens(4, 1, 11, 12, 13, 14, 15, 16, 17, finish=LENGTH),
        play.emit(4, RELAY, 1, 11, 12, 13, 14, 15, 16, 17),
        play.finish(LENGTH),
    )


def a_demoted_transfer_that_arrives_all_the_same_is_used(m):
    play = Play(m)
    play.prefilled()
    play.on(play.route(Route.RELAY_ONLY), play.demote(1))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 7))
    play.on(play.ready(1), play.ask_handoff(1, None, 0))
    play.on(play.one_shot(), play.stop(4), play.decode(5, MAIN, 1, 7))


def a_floor_holds_for_who_stays_at_relay_decode(m):
    play = Play(m, relay_floor=2)
    play.prefilled()
    play.on(play.route(Route.RELAY_ONLY), play.demote(1))
    play.on(play.ready(1))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 7))


def what_has_arrived_is_not_demoted(m):
    play = Play(m)
    play.prefilled()
    play.on(play.ready(1))
    play.on(play.route(Route.RELAY_ONLY), play.decode(4, MAIN, 1, 7))


def nothing_is_sent_to_main_before_the_route_asks_for_it(m):
    for route in (Route.RELAY, Route.DIRECT):
        play = Play(m, prepare_main=False, may_reroute=False)
        play.start(play.replicate(1, RELAY), play.decode(2, PREFILL, 0, 1))
        play.on(play.tokens(2, 0, 10, finish=LENGTH), play.emit(2, PREFILL, 0, 10), play.ask_route())
        play.on(play.route(route), play.replicate(3, MAIN))
        play.on(play.ready(3), play.decode(4, MAIN, 1, 7))


def who_stays_at_relay_decode_may_need_no_main_at_all(m):
    play = Play(m, prepare_main=False, prepare_relay=False)
    play.start(play.decode(1, PREFILL, 0, 1))
    play.on(play.tokens(1, 0, 10, finish=LENGTH), play.emit(1, PREFILL, 0, 10), play.ask_route())
    play.on(play.route(Route.RELAY_ONLY), play.replicate(2, RELAY))
    play.on(play.failed(2), play.decode(3, RELAY, 1, 7))
    play.on(play.lost(3), play.decode(4, PREFILL, 1, 7))
    play.on(play.lost(4), play.decode(5, MAIN, 1, 7))
    play.on(play.answer_complete(), play.stop(5), play.finish(STOP))


# A transfer that fails ------------------------------------------------------------------------------------------------


def a_relay_whose_kv_never_came_is_asked_for_its_route_again(m):
    play = Play(m)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.failed(2), play.ask_route())
    play.on(play.ready(2))
    play.on(play.route(Route.DIRECT), play.timer("REROUTE", 0.25))
    play.on(play.ready(1), play.decode(4, MAIN, 1, 7))
    play = Play(m)
    play.prefilled()
    play.on(play.failed(2))
    play.on(play.route(Route.RELAY), play.decode(4, RELAY, 1, 7))
    play.on(play.ready(2))


def what_one_target_could_not_take_goes_to_another_at_once(m):
    play = Play(m, max_detours=2)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.failed(1, elsewhere=True), play.replicate(4, MAIN))
    play.on(play.tokens(3, 0, 10, finish=LENGTH), play.emit(3, PREFILL, 0, 10), play.ask_route())
    play.on(play.failed(2, elsewhere=True), play.replicate(5, RELAY))
    play.on(play.route(Route.RELAY))
    play.on(play.failed(1, elsewhere=True))
    play.on(play.failed(4, elsewhere=True), play.timer("RESEND", 2.0))
    play.on(play.ready(5), play.decode(6, RELAY, 1, 7))


def main_is_sent_the_prompt_again_while_relay_decode_goes_on(m):
    play = Play(m, resend_delay=0.5, max_resends=2)
    play.relaying()
    play.on(play.failed(1), play.timer("RESEND", 0.5))
    play.on(play.tokens(4, 2, 12), play.emit(4, RELAY, 2, 12))
    play.on(play.fired("RESEND"), play.replicate(5, MAIN))
    play.on(play.fired("RESEND"))
    play.on(play.ready(1))
    play.on(play.failed(5), play.timer("RESEND", 0.5))
    play.on(play.fired("RESEND"), play.replicate(6, MAIN))
    play.on(play.ready(6), play.ask_handoff(3, None, 0))


def main_that_was_sent_the_prompt_often_enough_computes_it(m):
    play = Play(m, max_resends=1)
    play.relaying()
    play.on(play.failed(1), play.timer("RESEND", 2.0))
    play.on(play.fired("RESEND"), play.replicate(5, MAIN))
    play.on(play.failed(5), play.ask_handoff(12, None, 0))
    play.on(play.one_shot(), play.stop(4), play.decode(6, MAIN, 2, 6))
    play.on(play.fired("RESEND"))
    play.on(play.tokens(6, 2, 12), play.emit(6, MAIN, 2, 12), play.cancel(2))
    play.on(play.fired("RESEND"))


def a_relay_that_waits_for_its_kv_sends_main_the_prompt_again(m):
    play = Play(m)
    play.prefilled()
    play.on(play.failed(1))
    play.on(play.route(Route.RELAY), play.timer("RESEND", 2.0))
    play.on(play.fired("RESEND"), play.replicate(4, MAIN))
    play.on(play.ready(2), play.decode(5, RELAY, 1, 7))


def a_capped_relay_whose_main_got_nothing_lets_main_compute(m):
    play = Play(m, relay_cap=2)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 2))
    play.on(play.failed(1), play.timer("RESEND", 2.0))
    play.on(
        play.tokens(4, 1, 11, 12, finish=LENGTH),
        play.emit(4, RELAY, 1, 11, 12),
        play.cancel(2),
        play.decode(5, MAIN, 3, 5),
    )
    play.on(play.fired("RESEND"))


def when_both_transfers_fail_main_computes(m):
    play = Play(m)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.failed(1), play.timer("RESEND", 2.0))
    play.on(play.failed(2), play.ask_route())
    play.on(play.route(Route.RELAY), play.decode(4, MAIN, 1, 7))


# P-RLD-MD, catch-up ---------------------------------------------------------------------------------------------------


def catch_up_with(rounds: int) -> Script:
    def script(m: ModuleType) -> None:
        play = Play(m, max_tokens=30)
        play.prefilled()
        play.on(play.route(Route.RELAY))
        play.on(play.ready(2), play.decode(4, RELAY, 1, 29))
        play.on(play.tokens(4, 1, *range(11, 19)), play.emit(4, RELAY, 1, *range(11, 19)))
        play.on(play.ready(1), play.ask_handoff(9, None, 0))
        known, gap = 9, 9
        for index in range(rounds):
            play.on(play.catch_up(), play.extend(5 + index, known))
            play.on(play.tokens(4, known, 50, 51), play.emit(4, RELAY, known, 50, 51))
            known += 2
            play.on(play.extended(5 + index), play.ask_handoff(2, gap, index + 1))
            gap = 2
        play.on(play.one_shot(), play.stop(4), play.decode(5 + rounds, MAIN, known, 30 - known))
        play.on(play.tokens(5 + rounds, known, 70), play.emit(5 + rounds, MAIN, known, 70), play.cancel(2))

    script.__name__ = f"catch_up_of_{rounds}_rounds_extends_beside_relay_decode_and_ends_in_a_one_shot"
    return script


def relay_decode_that_finishes_during_an_extend_stops_it(m):
    play = Play(m)
    play.relaying()
    play.on(play.ready(1), play.ask_handoff(2, None, 0))
    play.on(play.catch_up(), play.extend(5, 2))
    play.on(play.tokens(5, 2, 77))
    play.on(play.tokens(4, 2, END), play.emit(4, RELAY, 2, END), play.stop(4), play.stop(5), play.finish(STOP))


def a_cap_reached_during_an_extend_lets_main_take_over(m):
    play = Play(m, relay_cap=2)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 2))
    play.on(play.ready(1), play.ask_handoff(1, None, 0))
    play.on(play.catch_up(), play.extend(5, 1))
    play.on(
        play.tokens(4, 1, 11, 12, finish=LENGTH),
        play.emit(4, RELAY, 1, 11, 12),
        play.cancel(2),
        play.stop(5),
        play.decode(6, MAIN, 3, 5),
    )
    play.on(play.extended(5))
    play.on(play.client_left(), play.stop(6), play.finish(None))


# Spans ----------------------------------------------------------------------------------------------------------------


def a_span_that_repeats_what_is_out_gives_only_what_is_new(m):
    play = Play(m)
    play.relaying()
    play.on(play.tokens(4, 1, 11))
    play.on(play.tokens(4, 0, 10, 11, 12), play.emit(4, RELAY, 2, 12))
    play.on(play.tokens(4, 0, 10))


def a_stop_token_followed_by_more_ends_the_answer_there(m):
    play = Play(m)
    play.relaying()
    play.on(
        play.tokens(4, 2, 12, END, 14, finish=LENGTH),
        play.emit(4, RELAY, 2, 12, END),
        play.finish(STOP),
    )


def a_burst_past_the_cap_is_cut_and_its_finish_is_not_the_answers(m):
    play = Play(m, relay_cap=2)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 2))
    play.on(play.tokens(4, 1, 11, 12, 13, END, finish=STOP), play.emit(4, RELAY, 1, 11, 12), play.cancel(2))
    play.on(play.ready(1), play.decode(5, MAIN, 3, 5))


def a_burst_past_the_budget_is_cut(m):
    play = Play(m, max_tokens=3)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.tokens(3, 0, 10, finish=LENGTH), play.emit(3, PREFILL, 0, 10), play.ask_route())
    play.on(play.route(Route.DIRECT), play.timer("REROUTE", 0.25))
    play.on(play.ready(1), play.decode(4, MAIN, 1, 2))
    play.on(
        play.tokens(4, 1, 11, 12, 13),
        play.emit(4, MAIN, 1, 11, 12),
        play.cancel(2),
        play.stop(4),
        play.finish(LENGTH),
    )


def an_engine_that_stops_of_its_own_accord_ends_the_answer(m):
    play = Play(m)
    play.relaying()
    play.on(play.tokens(4, 2, 12, finish=STOP), play.emit(4, RELAY, 2, 12), play.finish(STOP))
    play = Play(m)
    play.relaying()
    play.on(play.tokens(4, 2, finish=STOP), play.finish(STOP))


def an_empty_span_after_the_last_token_changes_nothing(m):
    play = Play(m, relay_cap=1)
    play.prefilled()
    play.on(play.route(Route.RELAY))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 1))
    play.on(play.tokens(4, 1, 11), play.emit(4, RELAY, 1, 11), play.stop(4), play.cancel(2))
    play.on(play.tokens(4, 2, finish=LENGTH))


# Leaving and completing -----------------------------------------------------------------------------------------------


def a_client_that_leaves_cancels_everything_at_every_moment(m):
    play = Play(m)
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))
    play.on(play.client_left(), play.stop(3), play.cancel(1), play.cancel(2), play.finish(None))
    play = Play(m)
    play.prefilled()
    play.on(play.client_left(), play.cancel(1), play.cancel(2), play.finish(None))
    play.on(play.route(Route.RELAY))
    play = Play(m, max_resends=0)
    play.relaying_without_main()
    play.on(play.catch_up(), play.extend(5, 2))
    play.on(play.client_left(), play.stop(4), play.stop(5), play.finish(None))
    play = Play(m)
    play.main_decoding()
    play.on(play.client_left(), play.stop(4), play.finish(None))
    play.on(play.client_left())


def a_completed_answer_stops_decoders_and_leaves_mains_transfer_going(m):
    play = Play(m)
    play.prefilled()
    play.on(play.answer_complete(), play.cancel(2), play.finish(STOP))
    play = Play(m)
    play.relaying()
    play.on(play.answer_complete(), play.stop(4), play.finish(STOP))
    play.on(play.tokens(4, 2, 12))
    play.on(play.answer_complete())


SCRIPTS: tuple[Script, ...] = (
    a_plan_has_room_for_a_token_and_a_cap_of_at_least_one_and_its_floor,
    it_is_started_once_and_before_any_event,
    it_tells_what_was_emitted_and_whether_it_is_over,
    answers_to_questions_that_nobody_asked_are_refused,
    words_of_no_known_kind_are_programming_errors,
    without_a_prepared_relay_only_main_gets_the_prompt,
    a_prefill_that_gives_the_stop_token_ends_the_answer_and_mains_transfer_goes_on,
    one_token_is_an_answer,
    a_stop_token_as_the_only_token_allowed_is_a_stop,
    a_prefill_without_room_at_main_is_stopped_and_begins_again_with_the_same_transfers,
    a_prefill_that_waits_for_a_worker_is_neither_held_nor_resumed,
    a_prompt_shorter_than_a_block_is_ready_before_its_first_token,
    prefill_is_not_believed_about_tokens_it_was_not_asked_for,
    p_md_waits_for_mains_kv_and_then_main_decodes,
    the_prompt_that_never_arrives_is_computed_at_main,
    events_wait_while_the_route_is_chosen,
    p_md_asks_again_by_timer_and_stays,
    p_md_turns_into_a_relay,
    p_md_turning_into_a_relay_finds_main_ready_meanwhile,
    p_md_that_may_not_turn_is_not_asked_again,
    p_md_without_a_prepared_relay_sends_it_nothing,
    a_relay_that_waits_for_its_kv_is_not_asked_again,
    one_shot_stops_relay_decode_before_main_starts,
    main_that_is_ready_first_decodes_at_once,
    a_gap_counts_the_prompt_when_it_never_arrived,
    relay_decode_that_finishes_first_leaves_mains_transfer_going,
    a_question_dies_with_the_decoder_it_was_about,
    a_capped_relay_decode_gives_its_room_up_and_waits_for_main,
    a_route_may_come_with_a_cap,
    a_cap_that_comes_with_the_route_is_at_least_the_floor_and_yields_to_the_plans,
    a_cap_beyond_the_answer_changes_nothing,
    main_waits_until_the_floor_is_reached,
    a_floor_without_a_cap_delays_the_question,
    a_floor_is_nothing_to_p_md,
    a_request_that_stays_at_relay_decode_has_its_transfer_demoted,
    a_demoted_transfer_that_arrives_all_the_same_is_used,
    a_floor_holds_for_who_stays_at_relay_decode,
    what_has_arrived_is_not_demoted,
    nothing_is_sent_to_main_before_the_route_asks_for_it,
    who_stays_at_relay_decode_may_need_no_main_at_all,
    a_relay_whose_kv_never_came_is_asked_for_its_route_again,
    what_one_target_could_not_take_goes_to_another_at_once,
    main_is_sent_the_prompt_again_while_relay_decode_goes_on,
    main_that_was_sent_the_prompt_often_enough_computes_it,
    a_relay_that_waits_for_its_kv_sends_main_the_prompt_again,
    a_capped_relay_whose_main_got_nothing_lets_main_compute,
    when_both_transfers_fail_main_computes,
    *(catch_up_with(rounds) for rounds in (1, 2, 3)),
    relay_decode_that_finishes_during_an_extend_stops_it,
    a_cap_reached_during_an_extend_lets_main_take_over,
    a_span_that_repeats_what_is_out_gives_only_what_is_new,
    a_stop_token_followed_by_more_ends_the_answer_there,
    a_burst_past_the_cap_is_cut_and_its_finish_is_not_the_answers,
    a_burst_past_the_budget_is_cut,
    an_engine_that_stops_of_its_own_accord_ends_the_answer,
    an_empty_span_after_the_last_token_changes_nothing,
    a_client_that_leaves_cancels_everything_at_every_moment,
    a_completed_answer_stops_decoders_and_leaves_mains_transfer_going,
)
