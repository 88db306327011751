"""The requests that a trace's rows stand for: who goes on from whom, and which text is the same.

A request that goes on where another one ended (same session, the parent chat that it names, or its prompt contains all
of the other's full blocks, the last of which nobody had before, and has room for its answer) is sent after that one's
answer, and the answer is what the next prompt says it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pdd.core.ids import RequestId, TokenId
from pdd.core.units import Seconds
from pdd.sim.workload.base import Run, SimRequest, num_tokens
from pdd.sim.workload.conversations import keep
from pdd.sim.workload.trace.report import Doubt, Doubts
from pdd.sim.workload.trace.rows import FIRST_NEW_TOKEN, Row

_LEAST_BUDGET = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Row ``child`` goes on where row ``parent`` ended. By what it contains, or because the trace says so."""

    parent: int
    child: int
    is_stated: bool


def find_links(rows: Sequence[Row], block_tokens: int, doubts: Doubts) -> tuple[Link, ...]:
    """Of rows in the order of their times.

    Each has at most one parent; where the trace doesn't say it, one child, too.
    """
    links = tuple(_links(rows, block_tokens, doubts))
    for link in links:
        if link.is_stated:
            _note_turn(rows[link.parent], rows[link.child], block_tokens, doubts)
    return links


def _links(rows: Sequence[Row], block_tokens: int, doubts: Doubts) -> Iterator[Link]:
    open_ends: dict[int, int] = {}
    """Last full block of a row that nobody went on from -> that row."""
    known: set[int] = set()
    last_of_session: dict[str, int] = {}
    chats: dict[int, int] = {}
    for index, row in enumerate(rows):
        is_stated = row.session is not None or row.chat is not None
        if row.session is not None:
            parent = last_of_session.get(row.session)
            last_of_session[row.session] = index
        elif row.chat is not None:
            parent = None if row.parent_chat is None else chats.get(row.parent_chat)
            if parent is None and row.parent_chat is not None:
                doubts.add(Doubt.LOST_PARENT, row.line)
            chats[row.chat] = index
        else:
            parent = _take_parent(row, rows, open_ends, block_tokens)
        if parent is not None:
            yield Link(parent=parent, child=index, is_stated=is_stated)
        full = _full(row, block_tokens)
        if full and full[-1] not in known:
            open_ends[full[-1]] = index
        known.update(full)


def _full(row: Row, block_tokens: int) -> tuple[int, ...]:
    return row.hash_ids[: row.input_length // block_tokens]


def _take_parent(row: Row, rows: Sequence[Row], open_ends: dict[int, int], block_tokens: int) -> int | None:
    """The longest earlier row that ``row`` contains, with room for its answer; it is no open end any more."""
    for each in reversed(row.hash_ids):
        parent = open_ends.get(each)
        if parent is not None and row.input_length >= rows[parent].input_length + rows[parent].output_length:
            full = _full(rows[parent], block_tokens)
            if row.hash_ids[: len(full)] == full:
                return open_ends.pop(each)
    return None


def _note_turn(parent: Row, child: Row, block_tokens: int, doubts: Doubts) -> None:
    full = _full(parent, block_tokens)
    if child.hash_ids and child.hash_ids[: len(full)] != full:
        doubts.add(Doubt.RESTARTED, child.line)
    elif child.input_length < parent.input_length + parent.output_length:
        doubts.add(Doubt.SHORT_TURN, child.line)


def note_prefixes(rows: Sequence[Row], doubts: Doubts) -> None:
    """Each id that names more than one beginning of a text, once, where it first does."""
    before: dict[int, int | None] = {}
    told: set[int] = set()
    for row in rows:
        last: int | None = None
        for each in row.hash_ids:
            if before.setdefault(each, last) != last and each not in told:
                told.add(each)
                doubts.add(Doubt.TWO_PREFIXES, row.line)
            last = each


def to_requests(rows: Sequence[Row], links: Sequence[Link], block_tokens: int) -> Iterator[SimRequest]:
    """One for each row, in the order of ``rows``, which is that of their times."""
    parents = {link.child: link.parent for link in links}
    children = {link.parent: link.child for link in reversed(links)}  # whoever goes on first says what was answered
    tails = _tails(rows, children, block_tokens)
    prompts = [_prompt(row, index, tails, block_tokens) for index, row in enumerate(rows)]
    for index, row in enumerate(rows):
        child = children.get(index)
        answer_tokens = max(1, row.output_length)
        parent = parents.get(index)
        yield SimRequest(
            request_id=RequestId(f"r{index}"),
            arrival=Seconds((row.at_ns - rows[0].at_ns) / 1e9),
            prompt=prompts[index],
            answer=_answer(prompts[index], None if child is None else prompts[child], answer_tokens, index),
            max_tokens=_budget(answer_tokens),
            after=None if parent is None else RequestId(f"r{parent}"),
        )


def _tails(rows: Sequence[Row], children: Mapping[int, int], block_tokens: int) -> dict[int, int]:
    """Row -> the id of its last, partial block as the next turn names it, where that turn contains all before it.

    A trace names a partial block for what it is, and the block that it grows into differently; as text it is the same.
    Later turns are looked at first, so that a name found there is handed down.
    """
    tails: dict[int, int] = {}
    for parent in sorted(children, reverse=True):
        num_full = rows[parent].input_length // block_tokens
        ids, next_ids = rows[parent].hash_ids, rows[children[parent]].hash_ids
        if next_ids[:num_full] == ids[:num_full] and len(next_ids) > num_full and len(ids) == num_full + 1:
            is_last = len(next_ids) == num_full + 1
            tails[parent] = tails.get(children[parent], next_ids[-1]) if is_last else next_ids[num_full]
    return tails


def _prompt(row: Row, index: int, tails: Mapping[int, int], block_tokens: int) -> tuple[Run, ...]:
    ids, length = row.hash_ids, max(1, row.input_length)
    if index in tails:
        ids = (*ids[:-1], tails[index])
    runs = tuple((TokenId(each), block_tokens) for each in ids)
    missing = length - num_tokens(runs)
    return (*runs, _new_text(index, missing)) if missing > 0 else keep(runs, length)


def _answer(prompt: tuple[Run, ...], following: tuple[Run, ...] | None, length: int, index: int) -> tuple[Run, ...]:
    """What ``following``, the next turn's prompt, says after ``prompt``, if it goes on from it; else text
    of its own.
    """
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
    return (TokenId(FIRST_NEW_TOKEN + index), length)


def _budget(answer_tokens: int) -> int:
    """What a client would ask for that does not know the answer: at least 1,024 tokens, else the next power of two."""
    return max(_LEAST_BUDGET, 1 << (answer_tokens - 1).bit_length())
