"""Traces as CSV: lengths and arrival times, at most with sessions; which prompts share text is not known.

Columns are found by their names, in any order, among any others. Quoted fields, line ends of any kind and a byte order
mark are read as CSV has them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NoReturn, cast

from pdd.core.errors import ConfigError
from pdd.sim.workload.trace.report import Doubt, Doubts
from pdd.sim.workload.trace.rows import MOST_TIME, Format, Place, Row, TimeUnit, note_row, shown, wrong_length

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = re.compile(r"(-?[0-9]{1,30})(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_FRACTION = re.compile(r"[.,]([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """Names of columns. The first three must be there."""

    format: Format
    moment: str
    prompt: str
    answer: str
    session: str | None = None
    total: str | None = None

    @property
    def needed(self) -> tuple[str, str, str]:
        return self.moment, self.prompt, self.answer


AZURE = CsvFormat(
    format=Format(name="Azure LLM inference", unit=None),
    moment="TIMESTAMP",
    prompt="ContextTokens",
    answer="GeneratedTokens",
)
BURST_GPT = CsvFormat(
    format=Format(name="BurstGPT", unit=TimeUnit.SECONDS),
    moment="Timestamp",
    prompt="Request tokens",
    answer="Response tokens",
    session="Session ID",
    total="Total tokens",
)
CSV_FORMATS = (AZURE, BURST_GPT)


def find_csv(text: str, file: str) -> CsvFormat | None:
    """Which it is, by the names of its columns. None: it has none of them.

    Raises:
        ConfigError: some of those that are needed are missing. Says which.
    """
    header = next(_records(text, file), None)
    names = [] if header is None else _names(header)
    known = max(CSV_FORMATS, key=lambda each: len(set(names).intersection(each.needed)))
    missing = [name for name in known.needed if name not in names]
    if len(missing) == len(known.needed):
        return None
    if missing:
        kind = f"CSV of the kind of {known.format.name}"
        raise ConfigError(f"{file}: {kind}, without column {', '.join(missing)}; its columns: {', '.join(names)}")
    return known


def read_csv(text: str, known: CsvFormat, file: str, doubts: Doubts) -> Iterator[Row]:
    """One row for each record below the names of the columns.

    Raises:
        ConfigError: a record is not what it should be.
    """
    records = _records(text, file)
    header = next(records)
    columns = _Columns.of(header, known)
    zoneless: list[int] = []
    before: Row | None = None
    num_rows = 0
    for record in records:
        if len(record.fields) != columns.count:
            last = min(len(record.fields), columns.count + 1) - 1
            record.refuse(last, f"{len(record.fields)} fields in {columns.count} columns: {', '.join(_names(header))}")
        row = columns.read(record, zoneless, doubts)
        note_row(row, before, doubts)
        before, num_rows = row, num_rows + 1
        yield row
    if len(zoneless) < num_rows:
        for line in zoneless:
            doubts.add(Doubt.NO_TIME_ZONE, line)


def _names(header: _Record) -> list[str]:
    return [name.strip() for name in header.fields]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Where a file has the columns of its format. None: it has no such column."""

    known: CsvFormat
    count: int
    moment: int
    prompt: int
    answer: int
    session: int | None
    total: int | None

    @classmethod
    def of(cls, header: _Record, known: CsvFormat) -> _Columns:
        """Raises ConfigError: one is there twice."""
        names = _names(header)

        def place(name: str | None) -> int | None:
            if name is None or name not in names:
                return None
            if names.count(name) > 1:
                header.refuse(names.index(name), f"column {name} is there {names.count(name)} times")
            return names.index(name)

        moment, prompt, answer = (cast("int", place(name)) for name in known.needed)
        return cls(
            known=known,
            count=len(names),
            moment=moment,
            prompt=prompt,
            answer=answer,
            session=place(known.session),
            total=place(known.total),
        )

    def read(self, record: _Record, zoneless: list[int], doubts: Doubts) -> Row:
        """``zoneless`` gets the line if its time has no time zone."""
        at_ns, has_zone = _moment(record, self.moment, self.known)
        if not has_zone:
            zoneless.append(record.line)
        prompt = _length(record, self.prompt, self.known.prompt)
        answer = _length(record, self.answer, self.known.answer)
        if self.total is not None and record.fields[self.total].strip() != str(prompt + answer):
            doubts.add(Doubt.WRONG_TOTAL, record.line)
        session = None if self.session is None else record.fields[self.session].strip() or None
        return Row(line=record.line, at_ns=at_ns, input_length=prompt, output_length=answer, session=session)


def _length(record: _Record, index: int, name: str) -> int:
    found = _WHOLE.fullmatch(record.fields[index].strip())
    if found is None:
        record.refuse(index, f"{name} {shown(record.fields[index])}: it must be a whole number of tokens")
    wrong = wrong_length(int(found[1]))
    if wrong is not None:
        record.refuse(index, f"{name} {wrong}")
    return int(found[1])


def _moment(record: _Record, index: int, known: CsvFormat) -> tuple[int, bool]:
    text, unit = record.fields[index].strip(), known.format.unit
    try:
        if unit is None:
            return read_date(text)
        return _number(text, unit), True
    except (ValueError, OverflowError):
        example = "a date and time such as 2023-11-16 18:17:03.9799600" if unit is None else f"a number of {unit}"
        record.refuse(index, f"{known.moment} {shown(text)}: it must be {example}")


def read_date(text: str) -> tuple[int, bool]:
    """An ISO 8601 date and time as nanoseconds since 1970, and whether it has a time zone (a number has); else it is
    UTC.

    Raises:
        ValueError, OverflowError: it is none.
    """
    moment = datetime.fromisoformat(text)
    fraction = _FRACTION.search(text)  # Python reads six digits of it, and drops the others
    fraction_ns = 0 if fraction is None else int(fraction[1][:9].ljust(9, "0"))
    has_zone = moment.tzinfo is not None
    moment = moment.replace(microsecond=0, tzinfo=moment.tzinfo or UTC)
    return (moment - _EPOCH) // timedelta(seconds=1) * TimeUnit.SECONDS.ns + fraction_ns, has_zone


def _number(text: str, unit: TimeUnit) -> int:
    if _NUMBER.fullmatch(text) is None or not abs(float(text)) <= MOST_TIME:
        raise ValueError
    return round(float(text) * unit.ns)


# Records and where their fields stand ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """``raw`` is its text, which begins at ``line``."""

    file: str
    line: int
    fields: Sequence[str]
    raw: str

    def refuse(self, index: int, why: str) -> NoReturn:
        """Raises ConfigError, at the place of a field."""
        start = _start_of_field(self.raw, index)
        ahead = _lines(self.raw[:start])
        last = ahead[-1] if ahead and not ahead[-1].endswith(("\n", "\r")) else ""
        Place(self.file, self.line + len(ahead) - bool(last), len(last) + 1).refuse(why)


def _records(text: str, file: str) -> Iterator[_Record]:
    """All but blank ones."""
    lines = _lines(text)
    reader = csv.reader(lines, strict=True)
    begin = 0
    try:
        for fields in reader:
            if fields:
                yield _Record(file=file, line=begin + 1, fields=fields, raw="".join(lines[begin : reader.line_num]))
            begin = reader.line_num
    except csv.Error as error:
        Place(file, begin + 1, 1).refuse(f"not CSV: {error}")


def _lines(text: str) -> list[str]:
    """With their ends: LF, CRLF or CR, and nothing else, as ``csv`` has it."""
    return list(io.StringIO(text, newline=""))


def _start_of_field(raw: str, index: int) -> int:
    is_quoted = False
    for at, character in enumerate(raw):
        if not index:
            return at
        if character == '"':
            is_quoted = not is_quoted  # a doubled one does so twice
        elif character == "," and not is_quoted:
            index -= 1
    return len(raw)
