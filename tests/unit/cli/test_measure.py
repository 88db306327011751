from __future__ import annotations

import pytest

from pdd.cli.ask.measure import bound_handoff, count_extends, count_tokens, first_time, last_time, measure, record_of
from pdd.core.units import Seconds
from tests.unit.cli.recordings import MD, RLD, P, answer, direct, event, relayed, spans


def test_waits_are_counted_from_the_question_and_between_tokens():
    timings = measure(relayed())
    assert timings.ttft == 2.0
    assert timings.ttst == 2.2
    assert timings.second_token_gap == pytest.approx(0.2)
    assert timings.max_gap == pytest.approx(0.5)
    assert timings.total == 3.0


def test_tokens_of_one_chunk_have_no_gap_between_them():
    # The gaps are 0.2, 0.1, 0, 0.5, 0.1, 0.1.
    assert measure(relayed()).median_gap == pytest.approx(0.1)
    assert measure(answer(spans((1.0, P, 1, "a"), (2.0, MD, 3, "bcd")))).median_gap == 0.0


def test_the_gap_at_the_hand_off_is_from_relay_decode_to_main_decode_only():
    assert measure(relayed()).handoff_gap == pytest.approx(0.5)
    assert measure(direct()).handoff_gap is None


def test_the_longest_of_several_hand_offs_counts():
    rows = spans((1.0, P, 1, "a"), (1.1, RLD, 1, "b"), (1.3, MD, 1, "c"), (2.0, RLD, 1, "d"), (2.9, MD, 1, "e"))
    assert measure(answer(rows)).handoff_gap == pytest.approx(0.9)


def test_text_that_comes_without_tokens_does_not_hide_a_hand_off():
    rows = spans((1.0, P, 1, "a"), (1.1, RLD, 1, ""), (1.2, RLD, 0, "b"), (1.5, MD, 1, "c"))
    assert measure(answer(rows)).handoff_gap == pytest.approx(0.4)


def test_an_answer_of_one_token_has_only_a_first_token():
    timings = measure(answer(spans((1.5, P, 1, "a"))))
    assert timings.ttft == 1.5
    assert (timings.ttst, timings.max_gap, timings.median_gap, timings.second_token_gap) == (None, None, None, None)


def test_the_second_token_may_come_with_the_first():
    assert measure(answer(spans((1.5, P, 2, "ab")))).second_token_gap == 0.0


def test_tokens_are_counted_by_role():
    assert [count_tokens(relayed(), role) for role in (P, RLD, MD)] == [1, 3, 3]


def test_the_bound_of_a_hand_off_counts_what_no_earlier_batch_extended():
    bound = bound_handoff(relayed(), round_trip=Seconds(0.03), block_tokens=16)
    assert bound is not None
    # Main decode begins at position 4 and had extended 2 tokens; up to 15 of the prompt's tail come on top.
    assert bound.num_tokens == 4 - 2 + 15
    assert bound.decode == pytest.approx(0.1)
    # It took 0.08 s to extend those 2, a round trip of 0.03 s included.
    assert bound.extend == pytest.approx(0.1 + 0.025 * 17)
    assert bound.total == pytest.approx(0.03 + bound.extend + 0.1)


def test_a_batch_that_was_never_finished_is_part_of_the_final_one():
    rows = relayed().spans
    events = (event(0.0, "prefill_started"), event(2.0, "first_token"), event(2.2, "extend_started", known=2))
    bound = bound_handoff(answer(rows, *events), round_trip=Seconds(0.0), block_tokens=16)
    assert bound is not None
    assert bound.num_tokens == 4 + 15
    assert bound.extend == pytest.approx(0.1 + 2.0 / 600 * 19)


def test_without_a_hand_off_there_is_no_bound():
    assert bound_handoff(direct(), round_trip=Seconds(0.03), block_tokens=16) is None


def test_batches_count_when_they_are_done():
    assert count_extends(relayed().report.events) == 1
    assert count_extends([event(1.0, "extend_started", known=3)]) == 0


def test_events_are_found_by_name_first_and_last():
    events = [event(1.0, "a"), event(2.0, "b"), event(3.0, "a")]
    assert (first_time(events, "a"), last_time(events, "a"), first_time(events, "c")) == (1.0, 3.0, None)


def test_a_record_has_the_names_that_are_promised():
    record = record_of("relay", relayed())
    promised = ("name", "route", "ttft_s", "ttst_s", "max_itl_s", "median_itl_s", "p_tokens", "rld_tokens", "md_tokens")
    assert set(promised) | {"wan_kv_bytes", "text"} <= record.keys()
    assert record["name"] == "relay"
    assert record["text"] == "Once upon a time there was KV."
    assert (record["p_tokens"], record["rld_tokens"], record["md_tokens"]) == (1, 3, 3)
    assert record["wan_kv_bytes"] == 28_000_000
