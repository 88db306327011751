"""Scripts about a relay's phases: how each is reached and left, and what is told of it."""

from collections.abc import Callable

from pdd.core.request import Route
from tests.support.relay_play import LENGTH, MAIN, PREFILL, RELAY, STOP, Play
from tests.support.relay_scripts import Script

# How each phase is reached, in the order of a request's life ----------------------------------------------------------


def prefilling(play: Play) -> None:
    play.start(play.replicate(1, MAIN), play.replicate(2, RELAY), play.decode(3, PREFILL, 0, 1))


def held(play: Play) -> None:
    prefilling(play)
    play.on(play.held(), play.stop(3))


def awaiting_prefill(play: Play) -> None:
    prefilling(play)
    play.on(play.unavailable(3), play.cancel(1), play.cancel(2), play.timer("RECOVER", 1.0))


def awaiting_relay(play: Play) -> None:
    play.prefilled()
    play.on(play.route(Route.RELAY))


def asking_handoff(play: Play) -> None:
    play.relaying()
    play.on(play.ready(1), play.ask_handoff(2, None, 0))


def extending(play: Play) -> None:
    asking_handoff(play)
    play.on(play.catch_up(), play.extend(5, 2))


def capped(play: Play) -> None:
    play.prefilled()
    play.on(play.route(Route.RELAY, 1))
    play.on(play.ready(2), play.decode(4, RELAY, 1, 1))
    play.on(play.tokens(4, 1, 11, finish=LENGTH), play.emit(4, RELAY, 1, 11), play.cancel(2))


def awaiting_relay_again(play: Play) -> None:
    play.main_decoding()
    play.on(play.lost(4), play.cancel(1), play.replicate(5, MAIN), play.replicate(6, RELAY), play.timer("RECOVER", 1.0))


def main_starting(play: Play) -> None:
    awaiting_relay_again(play)
    play.on(play.ready(5), play.decode(7, MAIN, 2, 6))


def backing_off(play: Play) -> None:
    """Relay decode's KV is still under way: it was tried without."""
    awaiting_relay_again(play)
    play.on(play.fired("RECOVER"), play.decode(7, RELAY, 2, 6))
    play.on(play.lost(7), play.decode(8, PREFILL, 2, 6))
    play.on(play.lost(8), play.timer("RECOVER", 1.0))


REACHED: dict[str, Callable[[Play], None]] = {
    "Prefilling": prefilling,
    "Held": held,
    "AwaitingPrefill": awaiting_prefill,
    "AskingRoute": Play.prefilled,
    "AwaitingMain": Play.direct,
    "AwaitingRelay": awaiting_relay,
    "RelayDecoding": Play.relaying,
    "AskingHandoff": asking_handoff,
    "Extending": extending,
    "Capped": capped,
    "MainStarting": main_starting,
    "MainDecoding": Play.main_decoding,
    "AwaitingRelayAgain": awaiting_relay_again,
    "BackingOff": backing_off,
}
"""All but the first and the last."""


def in_every_phase(m) -> list[Play]:
    plays = [Play(m) for _ in REACHED]
    for play, (name, reach) in zip(plays, REACHED.items(), strict=True):
        reach(play)
        assert play.relay.phase == name
    return plays


# What is told ---------------------------------------------------------------------------------------------------------


def it_tells_its_phase_from_the_beginning_to_the_end(m):
    assert Play(m).relay.phase == "New"
    for play in in_every_phase(m):
        play.relay.receive(play.client_left())
        assert play.relay.phase == "Over"


def its_text_says_where_the_request_is(m):
    play = Play(m)
    assert repr(play.relay) == "<Relay New: 0 of 8 tokens, no route yet>"
    extending(play)
    assert repr(play.relay) == (
        "<Relay Extending: 2 of 8 tokens, route relay, KV to main_decode ready, KV to relay_decode ready, "
        "relay_decode decodes up to 8 (attempt 4)>"
    )


# How phases end -------------------------------------------------------------------------------------------------------


def in_every_phase_a_client_may_leave(m):
    for play in in_every_phase(m):
        assert play.relay.receive(play.client_left())[-1] == play.finish(None)
        assert play.relay.finished


def in_every_phase_the_answer_may_be_complete(m):
    for play in in_every_phase(m):
        assert play.relay.receive(play.answer_complete())[-1] == play.finish(STOP)
        assert play.relay.finished


def a_main_that_took_over_from_a_wait_and_spoke_is_replaced_as_any_other(m):
    play = Play(m)
    main_starting(play)
    play.on(play.tokens(7, 2, 12), play.emit(7, MAIN, 2, 12), play.cancel(6))
    play.on(play.lost(7), play.cancel(5), play.replicate(8, MAIN), play.replicate(9, RELAY), play.timer("RECOVER", 1.0))


def a_main_that_took_over_from_a_wait_and_is_lost_gives_back_to_it(m):
    play = Play(m)
    main_starting(play)
    play.on(play.tokens(7, 2))
    play.on(play.lost(7), play.cancel(5), play.replicate(8, MAIN))
    play.on(play.ready(6), play.decode(9, RELAY, 2, 6))


def relay_decodes_kv_ends_the_wait_for_it_while_main_starts(m):
    play = Play(m)
    main_starting(play)
    play.on(play.ready(6))
    play.on(play.lost(7), play.cancel(5), play.replicate(8, MAIN), play.decode(9, RELAY, 2, 6))


def relay_decodes_kv_that_arrives_while_main_starts_does_not_end_the_wait_for_all(m):
    play = Play(m)
    backing_off(play)
    play.on(play.ready(5), play.decode(9, MAIN, 2, 6))
    play.on(play.ready(6))
    play.on(play.lost(9), play.cancel(5), play.replicate(10, MAIN))
    play.on(play.fired("RECOVER"), play.decode(11, RELAY, 2, 6))


def all_are_tried_again_after_a_wait_that_ends_while_main_starts(m):
    play = Play(m)
    backing_off(play)
    play.on(play.ready(5), play.decode(9, MAIN, 2, 6))
    play.on(play.fired("RECOVER"))
    play.on(play.lost(9), play.cancel(5), play.replicate(10, MAIN), play.decode(11, RELAY, 2, 6))


def a_wait_for_relays_kv_that_ends_while_main_starts_forgets_nobody(m):
    play = Play(m)
    awaiting_relay_again(play)
    play.on(play.fired("RECOVER"), play.decode(7, RELAY, 2, 6))
    play.on(play.lost(7), play.decode(8, PREFILL, 2, 6))
    play.on(play.tokens(8, 2, 12), play.emit(8, PREFILL, 2, 12))
    play.on(play.lost(8), play.timer("RECOVER", 1.0))
    play.on(play.ready(5), play.decode(9, MAIN, 3, 5))
    play.on(play.fired("RECOVER"))
    play.on(play.lost(9), play.cancel(5), play.replicate(10, MAIN), play.decode(11, RELAY, 3, 5))
    play.on(play.lost(11), play.timer("RECOVER", 1.0))


def a_decoder_lost_while_a_hand_off_to_a_main_without_kv_is_asked_is_replaced_by_another(m):
    play = Play(m, max_resends=0)
    play.relaying_without_main()
    play.on(play.lost(4), play.decode(5, PREFILL, 2, 6))
    play.refuses(play.one_shot())


PHASE_SCRIPTS: tuple[Script, ...] = (
    it_tells_its_phase_from_the_beginning_to_the_end,
    its_text_says_where_the_request_is,
    in_every_phase_a_client_may_leave,
    in_every_phase_the_answer_may_be_complete,
    a_main_that_took_over_from_a_wait_and_spoke_is_replaced_as_any_other,
    a_main_that_took_over_from_a_wait_and_is_lost_gives_back_to_it,
    relay_decodes_kv_ends_the_wait_for_it_while_main_starts,
    relay_decodes_kv_that_arrives_while_main_starts_does_not_end_the_wait_for_all,
    all_are_tried_again_after_a_wait_that_ends_while_main_starts,
    a_wait_for_relays_kv_that_ends_while_main_starts_forgets_nobody,
    a_decoder_lost_while_a_hand_off_to_a_main_without_kv_is_asked_is_replaced_by_another,
)
