import dataclasses

import pytest

from pdd.core.request import GREEDY, FinishReason, Generation, Role, TokenSpan


def _generation(known, num_prompt_tokens):
    return Generation(
        request_id="r",
        attempt=1,
        known_tokens=known,
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=1,
        stop_token_ids=frozenset(),
        sampling=GREEDY,
        salt="",
    )


def test_output_positions_start_after_the_prompt():
    assert _generation((1, 2, 3), 3).first_position == 0
    assert _generation((1, 2, 3, 7, 8), 3).first_position == 2


def test_a_span_ends_after_its_last_token():
    assert TokenSpan(first_position=4, tokens=(1, 2, 3)).end_position == 7
    assert TokenSpan(first_position=4, tokens=(), finish_reason=FinishReason.LENGTH).end_position == 4


def test_requests_are_values():
    with pytest.raises(dataclasses.FrozenInstanceError):
        _generation((1,), 1).attempt = 2
    assert _generation((1,), 1) == _generation((1,), 1)


def test_words_that_cross_the_wire_are_pinned():
    assert [role.value for role in Role] == ["prefill", "relay_decode", "main_decode"]
    assert [reason.value for reason in FinishReason] == ["stop", "length"]


def test_greedy_keeps_the_whole_vocabulary():
    assert (GREEDY.temperature, GREEDY.top_k, GREEDY.top_p, GREEDY.choice) == (0.0, None, 1.0, 0)
