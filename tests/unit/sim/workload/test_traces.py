"""Traces become requests that share what the trace says is shared, in the order in which sessions went on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdd.core.errors import ConfigError
from pdd.core.units import Seconds
from pdd.sim.workload.base import expand
from pdd.sim.workload.traces import cut_at, fitting, read_trace, speed_up


def row(timestamp: float, length: int, output: int, ids: list[int], session: str | None = None) -> dict[str, object]:
    made = {"timestamp": timestamp, "input_length": length, "output_length": output, "hash_ids": ids}
    return made if session is None else {**made, "session_id": session}


def write(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in rows) + "\n")
    return path


def test_equal_hash_ids_are_equal_text(tmp_path):
    path = write(tmp_path, row(1000, 1500, 7, [1, 2, 3]), row(3000, 1300, 7, [1, 2, 4]))
    first, second = read_trace(path).requests
    assert (first.arrival, second.arrival) == (0.0, 2.0)
    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (1500, 1300)
    assert expand(first.prompt)[:1024] == expand(second.prompt)[:1024]
    assert expand(first.prompt)[1024] != expand(second.prompt)[1024]


@pytest.mark.parametrize("session", [None, "s"], ids=["unnamed", "named"])
def test_a_prompt_that_contains_an_earlier_one_goes_on_after_its_answer(tmp_path, session):
    path = write(tmp_path, row(0, 1100, 100, [1, 2, 3], session), row(5000, 2000, 10, [1, 2, 4, 5], session))
    first, second = read_trace(path).requests
    assert second.after == first.request_id
    past = expand(first.prompt) + expand(first.answer)
    assert len(past) == 1200
    assert expand(second.prompt)[:1200] == past


def test_three_turns_agree_on_a_block_that_fills_slowly(tmp_path):
    rows = [row(0, 600, 50, [1, 2], "s"), row(5000, 700, 50, [1, 3], "s"), row(9000, 1200, 5, [1, 4, 5], "s")]
    first, second, third = read_trace(write(tmp_path, *rows)).requests
    assert expand(second.prompt)[:650] == expand(first.prompt) + expand(first.answer)
    assert expand(third.prompt)[:750] == expand(second.prompt) + expand(second.answer)


def test_a_shared_system_prompt_makes_no_conversation(tmp_path):
    rows = [row(0, 600, 9, [1, 2]), row(0, 600, 9, [1, 3]), row(9, 1300, 9, [1, 4, 5]), row(9, 1300, 9, [1, 6, 7])]
    assert [request.after for request in read_trace(write(tmp_path, *rows)).requests] == [None, None, "r0", None]


def test_a_session_that_starts_over_keeps_its_order_but_no_text(tmp_path):
    path = write(tmp_path, row(0, 1024, 9, [1, 2], "s"), row(5, 1024, 9, [7, 8], "s"))
    first, second = read_trace(path).requests
    assert second.after == first.request_id
    assert not set(expand(second.prompt)) & set(expand(first.prompt) + expand(first.answer))


def test_the_last_block_may_lack_its_id_and_is_text_of_its_own_then(tmp_path):
    first, second = read_trace(write(tmp_path, row(0, 600, 5, [1]), row(1, 700, 5, [1]))).requests
    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (600, 700)
    assert expand(first.prompt)[:512] == expand(second.prompt)[:512] == (1,) * 512
    assert not set(expand(first.prompt)[512:]) & set(expand(second.prompt)[512:])


def test_blocks_of_any_length_are_played_as_long_as_they_are_said_to_be(tmp_path):
    path = write(tmp_path, row(0, 100, 5, [1, 2, 3, 4]), row(9, 100, 5, [1, 2, 3, 5]))
    first, second = read_trace(path, block_tokens=32).requests
    assert expand(first.prompt) == (1,) * 32 + (2,) * 32 + (3,) * 32 + (4,) * 4
    assert expand(second.prompt)[:96] == expand(first.prompt)[:96]


def test_what_has_no_tokens_is_played_with_one(tmp_path):
    (request,) = read_trace(write(tmp_path, row(0, 0, 0, []))).requests
    assert (request.num_prompt_tokens, request.num_answer_tokens) == (1, 1)


def test_requests_are_played_in_the_order_of_their_times(tmp_path):
    rows = [row(2000, 700, 5, [1, 3], "s"), row(0, 600, 5, [1, 2], "s"), row(1000, 9, 5, [])]
    first, second, third = read_trace(write(tmp_path, *rows)).requests
    assert [request.arrival for request in (first, second, third)] == [0.0, 1.0, 2.0]
    assert third.after == first.request_id


def test_ids_that_contradict_themselves_join_nobody(tmp_path):
    path = write(tmp_path, row(0, 1024, 9, [1, 2]), row(5, 1600, 9, [7, 2, 3, 4]))
    assert [request.after for request in read_trace(path).requests] == [None, None]


def chat(number: int, parent: int, at: float, length: int, ids: list[int]) -> dict[str, object]:
    told = {"chat_id": number, "parent_chat_id": parent, "timestamp": at, "input_length": length, "output_length": 8}
    return {**told, "type": "text", "turn": 1, "hash_ids": ids}


def test_chats_go_on_from_the_one_that_they_name_however_many_do(tmp_path):
    rows = [
        chat(5, -1, 0.5, 40, [1, 2, 3]),
        chat(9, 5, 3.25, 60, [1, 2, 4, 5]),
        chat(7, 5, 4.5, 70, [1, 2, 4, 6, 8]),
        chat(8, 77, 5.0, 20, [1, 9]),
    ]
    first, second, third, lost = read_trace(write(tmp_path, *rows)).requests
    assert [each.arrival for each in (first, second, third, lost)] == [0.0, 2.75, 4.0, 4.5]
    assert second.after == third.after == first.request_id
    assert lost.after is None
    assert expand(second.prompt)[:48] == expand(first.prompt) + expand(first.answer)


def test_more_users_begin_more_often_and_each_is_as_slow_as_before(tmp_path):
    rows = [row(0, 600, 5, [9, 8]), row(8000, 1100, 5, [1, 2, 3], "s"), row(20_000, 1600, 5, [1, 2, 4, 5], "s")]
    moments = [request.arrival for request in speed_up(read_trace(write(tmp_path, *rows)), 4.0).requests]
    assert moments == [0.0, 2.0, 14.0]


def test_what_is_too_late_or_too_long_is_left_out_with_all_that_follows(tmp_path):
    rows = [row(0, 600, 5, [1, 2], "s"), row(1000, 9000, 5, [1, *range(3, 20)], "s"), row(2000, 700, 5, [1, 4], "s")]
    workload = read_trace(write(tmp_path, *rows))
    assert len(cut_at(workload, Seconds(2.0)).requests) == 2
    assert [request.num_prompt_tokens for request in fitting(workload, 4096).requests] == [600]


def test_an_earlier_child_says_what_was_answered(tmp_path):
    rows = [chat(1, -1, 0, 16, [1]), chat(2, 1, 1, 32, [1, 2]), chat(3, 1, 2, 32, [1, 3])]
    first, *_ = read_trace(write(tmp_path, *rows)).requests
    assert expand(first.answer) == (2,) * 8


@pytest.mark.parametrize(("first", "last"), [(0, 1e12), (-1e20, 1e20)])
def test_a_trace_that_would_never_end_is_refused(tmp_path, first, last):
    with pytest.raises(ConfigError, match=r"more than a year lies between .*, read as milliseconds"):
        read_trace(write(tmp_path, row(first, 1, 1, []), row(last, 1, 1, [])))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "nothing.jsonl")
