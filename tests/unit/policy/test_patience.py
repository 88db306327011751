"""How long a prompt may take, and when nobody is asked any more."""

from __future__ import annotations

import pytest

from pdd.core.units import Seconds
from pdd.policy.patience import ENOUGH_REFUSALS, LATE_PREFILL_FACTOR, is_refusal_final, prefill_patience


def patience(expected: float | None) -> float:
    known = None if expected is None else Seconds(expected)
    return prefill_patience(known, with_decoder=Seconds(10.0), most=Seconds(60.0))


def test_patience_with_a_prefill_is_several_times_what_was_measured_on_top_of_that_with_a_decoder() -> None:
    assert (patience(0.0), patience(2.0)) == (10.0, 10.0 + 2.0 * LATE_PREFILL_FACTOR)


def test_patience_with_a_prefill_is_bounded() -> None:
    assert patience(1000.0) == 60.0


def test_before_any_prefill_was_measured_patience_is_as_long_as_it_may_be() -> None:
    assert patience(None) == 60.0


@pytest.mark.parametrize(
    ("by_prefill", "num_refused", "all_refused", "final"),
    [
        (True, 1, False, True),
        (False, 1, False, False),
        (False, 1, True, True),
        (False, ENOUGH_REFUSALS - 1, False, False),
        (False, ENOUGH_REFUSALS, False, True),
    ],
)
def test_what_prefill_or_all_that_decode_or_enough_of_them_refuse_is_asked_of_nobody_else(
    by_prefill: bool, num_refused: int, all_refused: bool, final: bool
) -> None:
    assert is_refusal_final(by_prefill=by_prefill, num_refused=num_refused, all_refused=all_refused) is final
