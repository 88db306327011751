"""The guard that both ends of the HTTP interface put on a stream."""

from collections.abc import Sequence

import pytest

from pdd.core.errors import WorkerFailed
from pdd.core.request import FinishReason, TokenSpan
from pdd.engine.http.contract import SpanContract
from tests.unit.engine.scripted_support import generation

LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


def check(*spans: tuple[int, Sequence[int], FinishReason | None]) -> None:
    """Runs a stream that should have at most 4 tokens from position 2 on, 9 being a stop token."""
    contract = SpanContract(generation(range(10), num_prompt_tokens=8, max_tokens=4, stop=[9]))
    for first_position, tokens, reason in spans:
        contract.accept(TokenSpan(first_position=first_position, tokens=tuple(tokens), finish_reason=reason))
    contract.check_end()


@pytest.mark.parametrize(
    "spans",
    [
        [(2, [1, 1, 1, 1], LENGTH)],
        [(2, [1], None), (3, [1, 1], None), (5, [1], LENGTH)],
        [(2, [1, 1, 1, 1], None), (6, [], LENGTH)],
        [(2, [1, 9], STOP)],
        [(2, [1, 9], None), (4, [], STOP)],
        [(2, [1, 1, 1, 9], LENGTH)],
    ],
)
def test_right_streams_pass(spans: list[tuple[int, list[int], FinishReason | None]]):
    check(*spans)


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([(3, [1], None)], "position 3"),
        ([(2, [1], None), (2, [1], None)], "position 2"),
        ([(2, [1], None), (4, [1], None)], "position 4"),
        ([(2, [1] * 5, LENGTH)], "past max_tokens"),
        ([(2, [], None)], "without tokens"),
        ([(2, [9, 1], None)], "after a stop token"),
        ([(2, [9], None), (3, [1], None)], "after a stop token"),
        ([(2, [1] * 4, LENGTH), (6, [], LENGTH)], "after it had finished"),
        ([(2, [1], STOP)], "did not send"),
        ([(2, [1], LENGTH)], "for length at position 3"),
        ([(2, [1], None)], "ended at position 3"),
        ([], "ended at position 2"),
    ],
)
def test_broken_streams_do_not(spans: list[tuple[int, list[int], FinishReason | None]], reason: str):
    with pytest.raises(WorkerFailed, match=reason):
        check(*spans)
