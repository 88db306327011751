"""Traces written by the standard library are read back as they were; whatever else a file holds is read, or refused in
words.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.errors import ConfigError
from pdd.sim.workload.base import expand
from pdd.sim.workload.trace.csv_rows import AZURE, BURST_GPT, CsvFormat
from pdd.sim.workload.trace.files import read_recording
from pdd.sim.workload.trace.rows import Recording
from pdd.sim.workload.traces import read_trace

lengths = st.integers(0, 1500)
anything = st.text(max_size=8)
names = st.text(st.characters(exclude_characters="\r", codec="utf-8"), max_size=8).map(str.strip)
"""Without a lone CR, which Python's writer of CSV leaves unquoted."""
zones = st.none() | st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=zones)  # noqa: DTZ001 - the zones are drawn
refusal = re.compile(r"^(?P<file>[^:]+)(?::(?P<line>\d+):(?P<column>\d+))?: ", re.DOTALL)


@contextmanager
def trace_file(content: str | bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        yield path


def read(content: str | bytes, block_tokens: int | None = None) -> Recording:
    with trace_file(content) as path:
        return read_recording(path, block_tokens)


# What is written is read ----------------------------------------------------------------------------------------------


@st.composite
def csv_files(draw: st.DrawFn) -> tuple[CsvFormat, list[tuple[object, int, int, str]], str]:
    known = draw(st.sampled_from([AZURE, BURST_GPT]))
    times = moments if known is AZURE else st.floats(0, 1e9) | st.integers(0, 10**9)
    rows = draw(st.lists(st.tuples(times, lengths, lengths, names), min_size=1, max_size=5))
    own = [*known.needed, *([known.session] if known.session else []), *([known.total] if known.total else [])]
    others = draw(st.lists(names.filter(lambda name: name not in own), max_size=3))
    columns = draw(st.permutations([*own, *others]))
    out = io.StringIO(newline="")
    out.write(draw(st.sampled_from(["", "\ufeff"])))
    writer = csv.DictWriter(
        out,
        fieldnames=list(range(len(columns))),
        quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
        lineterminator=draw(st.sampled_from(["\n", "\r\n"])),
    )
    writer.writerow(dict(enumerate(columns)))
    for moment, prompt, answer, session in rows:
        told = {known.moment: moment, known.prompt: prompt, known.answer: answer}
        told |= {known.session: session, known.total: prompt + answer}
        writer.writerow({place: told[name] if name in own else draw(names) for place, name in enumerate(columns)})
    return known, rows, out.getvalue()


@given(csv_files())
def test_csv_is_read_as_it_was_written(file: tuple[CsvFormat, list[tuple[object, int, int, str]], str]) -> None:
    known, rows, text = file
    found = read(text)
    assert found.format is known.format
    assert [(row.input_length, row.output_length) for row in found.rows] == [row[1:3] for row in rows]
    for row, (moment, _, _, session) in zip(found.rows, rows, strict=True):
        assert row.session == (session or None if known.session else None)
        if isinstance(moment, datetime):
            aware = moment.replace(tzinfo=moment.tzinfo or UTC)
            assert row.at_ns == (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
        else:
            assert row.at_ns == pytest.approx(moment * 10**9, rel=1e-12, abs=0.5)


others = st.none() | st.booleans() | anything | st.lists(anything, max_size=2)
_MEANT = {"timestamp", "input_length", "output_length", "hash_ids", "session_id", "chat_id", "requests", "turns"}


@st.composite
def json_files(draw: st.DrawFn) -> tuple[int, list[dict[str, object]], str]:
    block = draw(st.sampled_from([16, 64, 512]))
    rows: list[dict[str, object]] = []
    for _ in range(draw(st.integers(1, 5))):
        prompt = draw(lengths)
        full = -(-prompt // block)
        count = draw(st.sampled_from(sorted({0, max(0, full - 1), full})))
        row: dict[str, object] = {
            "timestamp": draw(st.integers(0, 10**6) | st.floats(0, 1e6)),
            "input_length": prompt,
            "output_length": draw(lengths),
            "hash_ids": draw(st.lists(st.integers(0, 20), min_size=count, max_size=count)),
            "session_id": draw(st.none() | names),
        }
        row |= draw(st.dictionaries(anything.filter(lambda name: name not in _MEANT), others, max_size=1))
        rows.append(row)
    end, ascii_only = draw(st.sampled_from(["\n", "\r\n", "\n\n"])), draw(st.booleans())
    return block, rows, "".join(json.dumps(row, ensure_ascii=ascii_only) + end for row in rows)


@given(json_files())
def test_json_lines_are_read_as_they_were_written(file: tuple[int, list[dict[str, object]], str]) -> None:
    block, rows, text = file
    found = read(text, block)
    assert found.block_tokens == block
    assert [
        (row.at_ns, row.input_length, row.output_length, list(row.hash_ids), row.session) for row in found.rows
    ] == [
        (
            round(row["timestamp"] * 10**6),
            row["input_length"],
            row["output_length"],
            row["hash_ids"],
            row["session_id"] or None,
        )
        for row in rows
    ]


@given(json_files())
def test_prompts_and_answers_are_as_long_as_they_are_said_to_be_and_share_what_their_ids_share(
    file: tuple[int, list[dict[str, object]], str],
) -> None:
    block, rows, text = file
    with trace_file(text) as path:
        workload = read_trace(path, block_tokens=block)
    ordered = sorted(rows, key=lambda row: round(row["timestamp"] * 10**6))
    names_of_requests = [request.request_id for request in workload.requests]
    assert len(workload.requests) == len(rows)
    for index, (request, row) in enumerate(zip(workload.requests, ordered, strict=True)):
        assert request.num_prompt_tokens == max(1, row["input_length"])
        assert request.num_answer_tokens == max(1, row["output_length"])
        assert request.after is None or names_of_requests.index(request.after) < index
        full = row["hash_ids"][: row["input_length"] // block]
        assert expand(request.prompt)[: block * len(full)] == tuple(each for each in full for _ in range(block))


# What can't be read is refused ----------------------------------------------------------------------------------------

SPOILT = {"timestamp": ["x", [], {}, True], "input_length": ["5", 1.5, -1, 1 << 30], "output_length": [[], False, -7]}


@given(json_files(), st.data())
def test_a_line_that_was_spoilt_is_refused_where_it_stands(
    file: tuple[int, list[dict[str, object]], str], data: st.DataObject
) -> None:
    block, _, text = file
    lines = text.split("\n")
    where = data.draw(st.sampled_from([number for number, line in enumerate(lines) if line.strip()]))
    row = json.loads(lines[where])
    name = data.draw(st.sampled_from(sorted(SPOILT)))
    row[name] = data.draw(st.sampled_from(SPOILT[name]))
    lines[where] = json.dumps(row, ensure_ascii=False)
    with pytest.raises(ConfigError, match=name) as refused:
        read("\n".join(lines), block)
    found = refusal.match(str(refused.value))
    assert found is not None
    assert int(found["line"]) == where + 1
    assert lines[where][int(found["column"]) - 1 :].startswith(json.dumps(row[name]))


@given(csv_files(), st.data())
def test_a_field_that_was_spoilt_is_refused_where_it_stands(
    file: tuple[CsvFormat, list[tuple[object, int, int, str]], str], data: st.DataObject
) -> None:
    known, _, text = file
    records = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    header = [name.strip() for name in records[0]]
    where, name = data.draw(st.integers(1, len(records) - 1)), data.draw(st.sampled_from(known.needed))
    records[where][header.index(name)] = "spoilt"
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(records)
    spoilt = out.getvalue()
    with pytest.raises(ConfigError, match=f"{name} 'spoilt'") as refused:
        read(spoilt)
    found = refusal.match(str(refused.value))
    assert found is not None
    line = list(io.StringIO(spoilt, newline=""))[int(found["line"]) - 1]
    assert line[int(found["column"]) - 1 :].startswith('"spoilt"')


@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | st.text('{}[]":,0123456789.eE+-truefalsnN \n\r\t\\ud8', max_size=100).map(lambda text: ("{" + text).encode())
    | st.text('",\n\r \t0123456789.:-+TZ\x00', max_size=100).map(
        lambda text: b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + text.encode()
    )
    | st.text('",\n\r \t0123456789.eE+-', max_size=60).map(
        lambda text: b"Timestamp,Request tokens,Response tokens\n" + text.encode()
    )
)
def test_any_bytes_are_read_or_refused_in_words(content: bytes) -> None:
    read_or_refused(content, None)


@given(json_files(), st.data())
def test_a_trace_with_some_bytes_changed_is_read_or_refused_in_words(
    file: tuple[int, list[dict[str, object]], str], data: st.DataObject
) -> None:
    content = bytearray(file[2].encode())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    read_or_refused(bytes(content), file[0])


def read_or_refused(content: bytes, block_tokens: int | None) -> None:
    with trace_file(content) as path:
        refused = None
        try:
            read_trace(path, block_tokens=block_tokens)
        except ConfigError as error:
            refused = str(error)
        assert refused is None or refusal.match(refused)
        assert refused is None or refused.startswith(str(path))
