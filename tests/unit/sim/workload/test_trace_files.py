"""What trace files may hold, what is refused by line and column, and what is counted and told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdd.core.errors import ConfigError
from pdd.sim.workload.trace.files import read_recording
from pdd.sim.workload.trace.report import Doubt, Found, TraceReport
from pdd.sim.workload.trace.rows import Row
from pdd.sim.workload.traces import read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MOMENT = "2023-11-16 18:17:03.97"


def given(folder: Path, content: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows_of(folder: Path, content: str | bytes, block_tokens: int | None = None) -> list[Row]:
    return list(read_recording(given(folder, content), block_tokens).rows)


def lengths_of(folder: Path, content: str | bytes) -> list[tuple[int, int]]:
    return [(row.input_length, row.output_length) for row in rows_of(folder, content)]


def report_of(folder: Path, content: str | bytes, block_tokens: int | None = None) -> TraceReport:
    report = read_trace(given(folder, content), block_tokens=block_tokens).report
    assert report is not None
    return report


def doubts_of(folder: Path, content: str | bytes) -> dict[Doubt, tuple[int, int]]:
    return {doubt: (found.count, found.first_line) for doubt, found in report_of(folder, content).doubts.items()}


def lines(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(each) + "\n" for each in rows)


def line(at: float, prompt: int, answer: int, ids: list[int] | None = None, **more: object) -> dict[str, object]:
    told = {"timestamp": at, "input_length": prompt, "output_length": answer, **more}
    return told if ids is None else {**told, "hash_ids": ids}


# CSV ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"{AZURE}{MOMENT},5,6\n",
        f"{AZURE}{MOMENT},5,6",
        f"{AZURE}{MOMENT},5,6\n".replace("\n", "\r\n"),
        f"{AZURE}{MOMENT},5,6\n".replace("\n", "\r"),
        f"\ufeff{AZURE}{MOMENT},5,6\n",
        f"\n{AZURE}\n{MOMENT},5,6\n\n",
        f'"TIMESTAMP","ContextTokens","GeneratedTokens"\n"{MOMENT}","5","6"\n',
        f"GeneratedTokens, ContextTokens ,TIMESTAMP\n6, 5, {MOMENT}\n",
        f"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n{MOMENT},3,5,6\n",
        f'TIMESTAMP,Note,ContextTokens,GeneratedTokens\n{MOMENT},"one, ""two""\nthree\u2028",5,6\n',
        f"{AZURE}{MOMENT},5.0,6.\n",
        f"{BURST}12.5,GPT-4,5,6,11,API log\n",
        f"{BURST}12,GPT-4,5,6,11,API log\n",
    ],
)
def test_csv_is_read_as_csv_by_the_names_of_its_columns(tmp_path, text):
    assert lengths_of(tmp_path, text) == [(5, 6)]


@pytest.mark.parametrize(
    ("moment", "seconds"),
    [
        ("2023-11-16 18:17:03.9799600", "0.9799600"),
        ("2023-11-16 18:17:04", "1.0"),
        ("2023-11-16T18:17:03Z", "0.0"),
        ("2023-11-16 18:17:03.009930+00:00", "0.009930"),
        ("2023-11-16 20:17:03.5+02:00", "0.5"),
        ("2023-11-16 11:17:03-0700", "0.0"),
        ("2023-11-16 18:17:03,25", "0.25"),
        ("20231116T181703.000000001", "0.000000001"),
    ],
)
def test_a_date_is_iso_8601_to_the_nanosecond_in_its_time_zone(tmp_path, moment, seconds):
    start, row = rows_of(
        tmp_path, f'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n"{moment}",1,1\n'
    )
    assert row.at_ns - start.at_ns == round(float(seconds) * 10**9)


def test_burst_gpt_s_sessions_are_conversations_where_they_are_named(tmp_path):
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
        "19440161.5,,2,ChatGPT,36,0,36,API log\n"
        "19440192.0,1722ac82,8,GPT-4,1779,123,1902,Conversation log\n"
    )
    first, alone, second = read_trace(given(tmp_path, text)).requests
    assert [each.arrival for each in (first, alone, second)] == [0.0, 51.5, 82.0]
    assert (alone.after, second.after) == (None, first.request_id)
    report = report_of(tmp_path, text)
    assert (report.format, report.time_unit, report.block_tokens) == ("BurstGPT", "seconds", None)
    assert report.doubts == {Doubt.EMPTY_ANSWER: Found(count=1, first_line=3)}


# JSON lines -----------------------------------------------------------------------------------------------------------


def test_json_lines_end_with_a_line_feed_and_nothing_else(tmp_path):
    text = '{"timestamp": 0, "input_length": 5, "output_length": 6, "session_id": "a\u2028b\u0085c"}\r\n\n'
    (row,) = rows_of(tmp_path, text)
    assert (row.line, row.session) == (1, "a\u2028b\u0085c")
    text += '{"timestamp": 1, "input_length": 7, "output_length": 8}'
    assert [row.line for row in rows_of(tmp_path, text)] == [1, 3]


@pytest.mark.parametrize(
    "extra", [{}, {"hash_ids": None}, {"hash_ids": []}, {"session_id": None}, {"model": {"a": [1]}}]
)
def test_what_is_not_needed_may_be_missing_or_null_and_more_may_be_there(tmp_path, extra):
    assert lengths_of(tmp_path, lines({**line(0, 5, 6), **extra})) == [(5, 6)]


def test_numbers_as_sessions_are_names(tmp_path):
    assert [
        row.session for row in rows_of(tmp_path, lines(line(0, 5, 6, session_id=7), line(0, 5, 6, session_id="")))
    ] == [
        "7",
        None,
    ]


def test_times_are_kept_to_the_nanosecond_however_far_they_are_from_0(tmp_path):
    text = lines(line(1_700_000_000_000_000_001, 1, 1), line(1_700_000_000_000_000_002, 1, 1))
    first, second = rows_of(tmp_path, text)
    assert second.at_ns - first.at_ns == 10**6


@pytest.mark.parametrize(
    ("prompt", "block_tokens", "legal"),
    [
        (1300, 512, {0, 2, 3}),
        (1024, 512, {0, 1, 2}),
        (1025, 512, {0, 2, 3}),
        (512, 512, {0, 1}),
        (1, 512, {0, 1}),
        (100, 16, {0, 6, 7}),
        (0, 512, {0}),
    ],
)
def test_hash_ids_are_as_many_as_the_blocks_one_fewer_or_none(tmp_path, prompt, block_tokens, legal):
    for count in range(9):
        text = lines(line(0, 9, 9), line(1, prompt, 9, list(range(count))))
        if count in legal:
            assert len(rows_of(tmp_path, text, block_tokens)[1].hash_ids) == count
        else:
            with pytest.raises(
                ConfigError, match=rf":2:\d+: hash_ids {count} ids for {prompt} tokens.*--trace-block-tokens"
            ):
                rows_of(tmp_path, text, block_tokens)


def test_qwen_bailian_s_blocks_are_of_16_tokens_and_its_times_seconds(tmp_path):
    text = lines(line(61.114, 40, 9, [1, 2, 3], chat_id=1, parent_chat_id=-1), line(62, 40, 9, [4, 2, 3], chat_id=2))
    report = report_of(tmp_path, text)
    assert (report.format, report.time_unit, report.block_tokens) == ("Qwen-Bailian", "seconds", 16)
    assert report.doubts == {}, "its ids name blocks' own text, wherever it stands"
    assert report_of(tmp_path, lines(line(0, 40, 9, [1, 2], chat_id=1)), 32).block_tokens == 32


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "it is empty"),
        ("\n \n", "it is empty"),
        ("time,in,out\n1,2,3\n", "not a trace: neither JSON lines with timestamp, .* nor CSV with TIMESTAMP, "),
        (
            "TIMESTAMP,ContextTokens\n",
            "CSV of the kind of Azure .*, without column GeneratedTokens; its columns: TIMESTAMP, Con",
        ),
        ("Timestamp,Request tokens\n", "CSV of the kind of BurstGPT, without column Response tokens"),
        (AZURE, "there is no request in it"),
        (f"TIMESTAMP,{AZURE}", "trace:1:1: column TIMESTAMP is there 2 times"),
        (b"\x1f\x8b\x08\x00", "compressed; unpack it first"),
        ("version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"),
        (b'{"timestamp": 0}\n{"\xe4\xbd\xa0\xff', r"trace:2:4: byte 0xff is not UTF-8"),
        (AZURE.encode("utf-16"), "trace:1:1: byte 0xff is not UTF-8"),
        ("[1, 2]\n", "a list; a trace has one request a line"),
        ('[\n{"timestamp": 0}\n]\n', "a list; a trace has one request a line"),
        ('{\n "timestamp": 0\n}\n', "one object in several lines; a trace has one request a line"),
        ('{"id": "x", "requests": [{"t": 0}]}', "as kv-cache-tester records them"),
        ('{\n"id": "x",\n"requests": [{"t": 0}]\n}', "as kv-cache-tester records them"),
        ('{"session_id": "x", "turns": []}\n', "as in GitHub Copilot's traces"),
    ],
)
def test_what_is_no_trace_is_refused_by_what_it_is(tmp_path, content, complaint):
    with pytest.raises(ConfigError, match=complaint):
        read_trace(given(tmp_path, content))


GOOD = '{"timestamp": 0, "input_length": 5, "output_length": 1}\n'


@pytest.mark.parametrize(
    ("text", "place", "complaint"),
    [
        ('{"timestamp": 0, "input_length": 5}', "1", "output_length is missing"),
        ('  {"timestamp": 0, "input_length": 5}', "3", "output_length is missing"),
        (
            '{"timestamp": 0, "input_length": -5, "output_length": 1}',
            "34",
            "input_length -5: it must be from 0 to 16777216",
        ),
        ('{"timestamp":0,"input_length":16777217,"output_length":1}', "31", "input_length 16777217: it must be"),
        ('{"timestamp":0,"input_length": "5","output_length":1}', "32", "input_length '5': it must be a whole number"),
        ('{"timestamp":0,"input_length":5.0,"output_length":1}', "31", "input_length 5.0: it must be a whole number"),
        ('{"timestamp":0,"input_length":true,"output_length":1}', "31", "input_length True: it must be a whole number"),
        ('{"timestamp":"0","input_length":5,"output_length":1}', "14", "timestamp '0': it must be a number"),
        ('{"timestamp":NaN,"input_length":5,"output_length":1}', "14", "timestamp nan: it must be a number"),
        ('{"timestamp":1e400,"input_length":5,"output_length":1}', "14", "timestamp inf: it must be a number"),
        ('{"timestamp":1e21,"input_length":5,"output_length":1}', "14", "timestamp 1e\\+21: it is too far away"),
        ('{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[-1]}', "62", "hash_ids -1: it must be from 0"),
        (
            '{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1.5]}',
            "62",
            r"hash_ids \[1.5\]: it must be a list of",
        ),
        (
            '{"hash_ids":{"history":[1]},"timestamp":0,"input_length":5,"output_length":1}',
            "13",
            "hash_ids {'history'.*a list of",
        ),
        (
            '{"a\\"}:,":"}","timestamp":0,"input_length":[],"output_length":1}',
            "44",
            r"input_length \[\]: it must be a whole",
        ),
        ('{"timestamp":0,"input_length":5 "output_length":1}', "33", "not JSON: "),
        ('{"timestamp":0,"input_length":5,"output_length":1', "50", "not JSON: "),
        ('{"timestamp":0,"input_length":5,"output_length":1} x', "52", "not JSON: "),
        (
            '{"timestamp":0,"input_length":5,"output_length":1,"x":"\\ud83d!"}',
            "56",
            r"not JSON: half of a surrogate pair, .ud83d",
        ),
        ("5", "1", "'5': it must be an object with timestamp, input_length, output_length$"),
        ('{"timestamp":' + "9" * 5000 + ',"input_length":5,"output_length":1}', "1", "not JSON that can be read"),
        ('{"x":' + "[" * 100_000, "1", "not JSON that can be read"),
    ],
)
def test_a_wrong_line_is_refused_with_line_column_field_and_value(tmp_path, text, place, complaint):
    with pytest.raises(ConfigError, match=rf"trace:2:{place}: {complaint}") as refused:
        read_trace(given(tmp_path, GOOD + text))
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("record", "place", "complaint"),
    [
        (f"{MOMENT},many,1", "2:24", "ContextTokens 'many': it must be a whole number of tokens"),
        (f"{MOMENT},-5,1", "2:24", "ContextTokens -5: it must be from 0"),
        (f"{MOMENT},5,1_0", "2:26", "GeneratedTokens '1_0': it must be a whole number"),
        (f"{MOMENT},5,", "2:26", "GeneratedTokens '': it must be"),
        (f"{MOMENT},99999999999999999999,1", "2:24", "ContextTokens 99999999999999999999: it must be"),
        ("yesterday,5,1", "2:1", "TIMESTAMP 'yesterday': it must be a date and time such as 2023-11-16"),
        ("2023-11-16 25:00:00,5,1", "2:1", "TIMESTAMP '2023-11-16 25:00:00'"),
        (f"{MOMENT},5", "2:24", "2 fields in 3 columns: TIMESTAMP, Con"),
        (f"{MOMENT},5,1,9", "2:28", "4 fields in 3 columns"),
        (f'"{MOMENT}\n",5,many', "3:5", "GeneratedTokens 'many'"),
        (f'"{MOMENT}"x,5,6', "2:1", "not CSV: "),
        ("9" * 200_000 + ",1,1", "2:1", "not CSV: field larger"),
    ],
)
def test_a_wrong_record_is_refused_with_line_column_name_and_value(tmp_path, record, place, complaint):
    with pytest.raises(ConfigError, match=rf"trace:{place}: {complaint}"):
        read_trace(given(tmp_path, f"{AZURE}{record}\n"))


@pytest.mark.parametrize("moment", ["inf", "nan", "1e400", "1_0", "", "x", "0x10"])
def test_a_number_of_seconds_is_a_plain_one(tmp_path, moment):
    with pytest.raises(ConfigError, match=r"trace:2:1: Timestamp '.*': it must be a number of seconds"):
        read_trace(given(tmp_path, f"{BURST}{moment},m,5,6,11,l\n"))


# What is counted and told ---------------------------------------------------------------------------------------------


def test_nothing_is_told_of_a_trace_that_agrees_with_itself(tmp_path):
    text = lines(line(0, 600, 50, [1, 2], session_id="s"), line(9000, 700, 50, [1, 3], session_id="s"))
    report = report_of(tmp_path, text)
    assert list(report.lines()) == []
    assert (report.format, report.time_unit, report.block_tokens) == ("Mooncake", "milliseconds", 512)


@pytest.mark.parametrize(
    ("content", "doubts"),
    [
        (lines(line(0, 9, 9), line(1, 0, 9), line(2, 0, 0)), {Doubt.EMPTY_PROMPT: (2, 2), Doubt.EMPTY_ANSWER: (1, 3)}),
        (f"{AZURE}{MOMENT},0,1\n{MOMENT},1,0\n", {Doubt.EMPTY_PROMPT: (1, 2), Doubt.EMPTY_ANSWER: (1, 3)}),
        (f"{BURST}1,m,5,6,11,l\n2,m,5,6,12,l\n3,m,5,6,,l\n", {Doubt.WRONG_TOTAL: (2, 3)}),
        (f"{AZURE}{MOMENT}Z,5,1\n{MOMENT},5,1\n{MOMENT},5,1\n", {Doubt.NO_TIME_ZONE: (2, 3)}),
        (lines(line(5, 9, 9), line(4, 9, 9), line(4, 9, 9), line(3, 9, 9)), {Doubt.BACKWARDS: (2, 2)}),
        (
            lines(line(0, 1024, 9, [1, 2], session_id="s"), line(5, 1600, 9, [1, 7, 8, 9], session_id="s")),
            {Doubt.RESTARTED: (1, 2)},
        ),
        (
            lines(line(0, 600, 500, [1, 2], session_id="s"), line(5, 700, 9, [1, 3], session_id="s")),
            {Doubt.SHORT_TURN: (1, 2)},
        ),
        (lines(line(0, 600, 500, session_id="s"), line(5, 700, 9, session_id="s")), {Doubt.SHORT_TURN: (1, 2)}),
        (
            lines(line(0, 9, 9, chat_id=1, parent_chat_id=2), line(1, 9, 9, chat_id=2, parent_chat_id=-1)),
            {Doubt.LOST_PARENT: (1, 1)},
        ),
        (
            lines(line(0, 1024, 9, [1, 2]), line(1, 1024, 9, [3, 2]), line(2, 1024, 9, [4, 2])),
            {Doubt.TWO_PREFIXES: (1, 2)},
        ),
        (lines(line(0, 1024, 9, [5, 5])), {Doubt.TWO_PREFIXES: (1, 1)}),
    ],
)
def test_each_contradiction_is_counted_with_the_line_where_it_first_is(tmp_path, content, doubts):
    assert doubts_of(tmp_path, content) == doubts
    told = list(report_of(tmp_path, content).lines())
    assert len(told) == len(doubts)
    for sentence, (count, first) in zip(told, doubts.values(), strict=True):
        assert sentence.endswith(f": {count}, the first in line {first}")
        assert sentence.startswith(str(tmp_path))
