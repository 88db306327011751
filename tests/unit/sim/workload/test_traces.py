"""Traces become requests that share what the trace says is shared, in the order in which sessions went on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdd.core.errors import ConfigError
from pdd.core.units import Seconds
from pdd.sim.workload.base import expand
from pdd.sim.workload.traces import BLOCK_TOKENS, cut_at, fitting, read_trace, speed_up


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


def test_block_counts_that_do_not_match_lengths_give_the_length(tmp_path):
    short, long = read_trace(write(tmp_path, row(0, 2000, 5, [1]), row(1, 700, 5, [2, 3, 4]))).requests
    assert (short.num_prompt_tokens, long.num_prompt_tokens) == (2000, 700)
    assert expand(short.prompt)[:BLOCK_TOKENS] == (1,) * BLOCK_TOKENS


def test_csv_traces_have_lengths_and_share_nothing(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.0319600,3180,8\n"
    )
    first, second = read_trace(path).requests
    assert second.arrival == pytest.approx(1.052)
    assert (first.num_prompt_tokens, first.num_answer_tokens) == (4808, 10)
    assert not set(expand(first.prompt)) & set(expand(second.prompt))


def test_more_users_begin_more_often_and_each_is_as_slow_as_before(tmp_path):
    rows = [row(0, 600, 5, [9, 8]), row(8000, 1100, 5, [1, 2, 3], "s"), row(20_000, 1600, 5, [1, 2, 4, 5], "s")]
    moments = [request.arrival for request in speed_up(read_trace(write(tmp_path, *rows)), 4.0).requests]
    assert moments == [0.0, 2.0, 14.0]


def test_what_is_too_late_or_too_long_is_left_out_with_all_that_follows(tmp_path):
    rows = [row(0, 600, 5, [1, 2], "s"), row(1000, 9000, 5, [1, 3], "s"), row(2000, 700, 5, [1, 4], "s")]
    workload = read_trace(write(tmp_path, *rows))
    assert len(cut_at(workload, Seconds(2.0)).requests) == 2
    assert [request.num_prompt_tokens for request in fitting(workload, 4096).requests] == [600]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a trace"),
        ("time,in,out\n1,2,3\n", "not a trace"),
        ('{"timestamp": 0, "input_length": 5}\n', ":1: .*output_length"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}\n', ":1: lengths must be positive"),
        (
            '{"timestamp": 0, "input_length": 16777217, "output_length": 1}\n',
            ":1: lengths must be positive, and at most",
        ),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1e18}\n', ":1: "),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]}\n', ":1: hash ids"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,many,1\n", ":2: .*many"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,1\n", ":2: TIMESTAMP 'yesterday': it must be like 2023"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,5\n",
            ":2: 2 columns; it must be TIMESTAMP, Con",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,5,-1\n", ":2: lengths"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,-5,1\n", ":2: lengths"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,99999999999999999999,1\n", ":2: lengths"),
        (f"TIMESTAMP,ContextTokens,GeneratedTokens\n{'9' * 200_000},1,1\n", ":2: field larger"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, text, complaint):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_trace(path)


@pytest.mark.parametrize(("first", "last"), [(0, 1e12), (-1.7e308, 1.7e308)])
def test_a_trace_that_would_never_end_is_refused(tmp_path, first, last):
    with pytest.raises(ConfigError, match="more than a year"):
        read_trace(write(tmp_path, row(first, 1, 1, []), row(last, 1, 1, [])))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "nothing.jsonl")
