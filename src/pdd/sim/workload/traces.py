"""Recorded traffic: reads request traces into workloads.

Two formats, told apart by their first line. *JSON lines* of ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``
(one per 512 tokens of prompt; equal ids mean equal text up to there) and, if known, ``session_id``. *CSV* with the columns
``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``: lengths only, so nothing is shared.

A request that goes on where another one ended (same session, or its prompt contains all of the other's full blocks, the
last of which nobody had before, and has room for its answer) is sent after that one's answer, and the answer is what the next prompt says it was.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from pdd.core.errors import ConfigError
from pdd.core.ids import RequestId, TokenId
from pdd.core.units import Seconds
from pdd.sim.workload.base import Run, SimRequest, Workload, num_tokens
from pdd.sim.workload.conversations import keep

BLOCK_TOKENS = 512
"""What one ``hash_id`` stands for."""
_FIRST_NEW_TOKEN = 1 << 30
"""Text without a hash id gets token IDs from here on; hash ids lie below."""
_LEAST_BUDGET = 1024
_MOST_TOKENS = 1 << 24
"""Of a prompt or an answer: beyond every model, and what one machine can still spell out."""
_LONGEST = Seconds(366 * 86_400.0)
"""From a trace's first request to its last: every second of it is simulated."""
_CSV_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a trace; times in milliseconds."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """Row ``child`` goes on where row ``parent`` ended."""

    parent: int
    child: int


def read_trace(path: Path) -> Workload:
    """All requests of a trace, in order of arrival, the first at 0 s.

    Raises:
        ConfigError: no such file, or a line that is not what it should be.
    """
    rows = sorted(_read_rows(path), key=lambda row: row.timestamp)
    if not rows:
        raise ConfigError(f"{path}: there is no request in it")
    if not (rows[-1].timestamp - rows[0].timestamp) / 1e3 <= _LONGEST:
        raise ConfigError(f"{path}: more than a year lies between its first request and its last")
    return Workload(name=path.stem, requests=tuple(_to_requests(rows)))


def speed_up(workload: Workload, factor: float) -> Workload:
    """Conversations begin ``factor`` times as often; within each, time goes on as before: more users, not faster ones."""
    began: dict[RequestId, float] = {}
    faster: list[SimRequest] = []
    for request in workload.requests:
        start = request.arrival if request.after is None else began[request.after]
        began[request.request_id] = start
        arrival = Seconds(start / factor + request.arrival - start)
        faster.append(replace(request, arrival=arrival))
    return replace(workload, requests=tuple(sorted(faster, key=lambda request: request.arrival)))


def cut_at(workload: Workload, end: Seconds) -> Workload:
    """What arrives before ``end``."""
    return replace(workload, requests=tuple(request for request in workload.requests if request.arrival < end))


def fitting(workload: Workload, max_model_tokens: int) -> Workload:
    """Without the conversations that have a turn too long for the model."""
    kept: dict[RequestId, SimRequest] = {}
    for request in workload.requests:
        fits = request.num_prompt_tokens + request.max_tokens <= max_model_tokens
        if fits and (request.after is None or request.after in kept):
            kept[request.request_id] = request
    return replace(workload, requests=tuple(kept.values()))


def _read_rows(path: Path) -> list[_Row]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'it must be UTF-8 text'}") from error
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        return [_parse_json(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if tuple(first.lstrip("\ufeff").split(",")) == _CSV_COLUMNS:
        return list(_parse_csv(path, lines))
    raise ConfigError(f"{path}: not a trace: neither JSON lines nor CSV with the columns {', '.join(_CSV_COLUMNS)}")


def _parse_json(path: Path, number: int, line: str) -> _Row:
    try:
        row = msgspec.json.decode(line, type=_Row)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}:{number}: {error}") from error
    return _checked(path, number, row)


def _parse_csv(path: Path, lines: Sequence[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines[1:], start=2):
        try:
            fields = next(csv.reader((line,)))
            if len(fields) != len(_CSV_COLUMNS):
                raise ConfigError(f"{path}:{number}: {len(fields)} columns; it must be {', '.join(_CSV_COLUMNS)}")
            moment, context, generated = fields
            timestamp, input_length = _seconds(moment) * 1e3, int(context) or 1
            row = _Row(timestamp=timestamp, input_length=input_length, output_length=int(generated))
        except (ValueError, csv.Error) as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
        yield _checked(path, number, row)


def _checked(path: Path, number: int, row: _Row) -> _Row:
    if not (1 <= row.input_length <= _MOST_TOKENS and 0 <= row.output_length <= _MOST_TOKENS):
        raise ConfigError(f"{path}:{number}: lengths must be positive, and at most {_MOST_TOKENS} tokens")
    if not all(0 <= each < _FIRST_NEW_TOKEN for each in row.hash_ids):
        raise ConfigError(f"{path}:{number}: hash ids must be from 0 to {_FIRST_NEW_TOKEN - 1}")
    return row


def _seconds(moment: str) -> float:
    """Of a date with seven digits of fraction, one more than Python reads; the time zone does not matter."""
    whole, _, fraction = moment.partition(".")
    try:
        return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")
    except ValueError as error:
        raise ValueError(f"TIMESTAMP {moment!r}: it must be like 2023-11-16 18:17:03.9799600") from error


def _to_requests(rows: Sequence[_Row]) -> Iterator[SimRequest]:
    links = tuple(_find_links(rows))
    parents = {link.child: link.parent for link in links}
    children = {link.parent: link.child for link in links}
    tails = _tails(rows, children)
    prompts = [_prompt(row, index, tails) for index, row in enumerate(rows)]
    for index, row in enumerate(rows):
        child = children.get(index)
        answer_tokens = max(1, row.output_length)
        parent = parents.get(index)
        yield SimRequest(
            request_id=RequestId(f"r{index}"),
            arrival=Seconds((row.timestamp - rows[0].timestamp) / 1e3),
            prompt=prompts[index],
            answer=_answer(prompts[index], None if child is None else prompts[child], answer_tokens, index),
            max_tokens=_budget(answer_tokens),
            after=None if parent is None else RequestId(f"r{parent}"),
        )


def _find_links(rows: Sequence[_Row]) -> Iterator[_Link]:
    """Each row has at most one parent and one child."""
    open_ends: dict[int, int] = {}
    """Last full block of a row that nobody went on from -> that row."""
    known: set[int] = set()
    last_of_session: dict[str, int] = {}
    for index, row in enumerate(rows):
        if row.session_id is None:
            parent = _take_parent(row, rows, open_ends)
        else:
            parent = last_of_session.get(row.session_id)
            last_of_session[row.session_id] = index
        if parent is not None:
            yield _Link(parent=parent, child=index)
        full = row.hash_ids[: row.input_length // BLOCK_TOKENS]
        if full and full[-1] not in known:
            open_ends[full[-1]] = index
        known.update(full)


def _take_parent(row: _Row, rows: Sequence[_Row], open_ends: dict[int, int]) -> int | None:
    """The longest earlier row that ``row`` contains, with room for its answer; it is no open end any more."""
    for each in reversed(row.hash_ids):
        parent = open_ends.get(each)
        if parent is not None and row.input_length >= rows[parent].input_length + rows[parent].output_length:
            return open_ends.pop(each)
    return None


def _tails(rows: Sequence[_Row], children: Mapping[int, int]) -> dict[int, int]:
    """Row -> the id of its last, partial block as the next turn names it, where that turn contains all before it.

    A trace names a partial block for what it is, and the block that it grows into differently; as text it is the same.
    Later turns are looked at first, so that a name found there is handed down.
    """
    tails: dict[int, int] = {}
    for parent in sorted(children, reverse=True):
        num_full = rows[parent].input_length // BLOCK_TOKENS
        ids, next_ids = rows[parent].hash_ids, rows[children[parent]].hash_ids
        if next_ids[:num_full] == ids[:num_full] and len(next_ids) > num_full and len(ids) == num_full + 1:
            is_last = len(next_ids) == num_full + 1
            tails[parent] = tails.get(children[parent], next_ids[-1]) if is_last else next_ids[num_full]
    return tails


def _prompt(row: _Row, index: int, tails: Mapping[int, int]) -> tuple[Run, ...]:
    ids = row.hash_ids
    if index in tails:
        ids = (*ids[:-1], tails[index])
    runs = tuple((TokenId(each), BLOCK_TOKENS) for each in ids)
    missing = row.input_length - num_tokens(runs)
    return (*runs, _new_text(index, missing)) if missing > 0 else keep(runs, row.input_length)


def _answer(prompt: tuple[Run, ...], following: tuple[Run, ...] | None, length: int, index: int) -> tuple[Run, ...]:
    """What ``following``, the next turn's prompt, says after ``prompt``, if it goes on from it; else text of its own."""
    prompt_tokens = num_tokens(prompt)
    if following is not None and num_tokens(following) >= prompt_tokens + length:
        head = keep(following, prompt_tokens)
        if head == prompt:
            return _after(keep(following, prompt_tokens + length), prompt_tokens)
    return (_new_text(index, length),)


def _after(runs: Iterable[Run], length: int) -> tuple[Run, ...]:
    """What comes after the first ``length`` tokens."""
    rest: list[Run] = []
    for token, repeats in runs:
        if repeats > length:
            rest.append((token, repeats - length))
        length = max(0, length - repeats)
    return tuple(rest)


def _new_text(index: int, length: int) -> Run:
    return (TokenId(_FIRST_NEW_TOKEN + index), length)


def _budget(answer_tokens: int) -> int:
    """What a client would ask for that does not know the answer: at least 1,024 tokens, else the next power of two."""
    return max(_LEAST_BUDGET, 1 << (answer_tokens - 1).bit_length())
