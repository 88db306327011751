"""How long an engine may be silent, and when a refusal by engines is final."""

from __future__ import annotations

from pdd.core.units import Seconds

LATE_PREFILL_FACTOR = 5
"""A prefill that takes so many times as long as was measured, and the patience with a decoder more, has hung: long
prompts cost more for each block, and engines compute several at once.
"""
ENOUGH_REFUSALS = 3
"""Of so many engines not all are wrong about a request that they won't take, such as one too long for the model."""


def prefill_patience(expected: Seconds | None, *, with_decoder: Seconds, most: Seconds) -> Seconds:
    """How long the first token of a prompt that has to be computed may take, if ``expected`` is what was measured of
    others.

    Of what a decoder computes in need nothing was measured, nor before the first prefill: then ``most``.
    """
    if expected is None:
        return most
    return Seconds(min(with_decoder + LATE_PREFILL_FACTOR * expected, most))


def is_refusal_final(*, by_prefill: bool, num_refused: int, all_refused: bool) -> bool:
    """Nobody is likely to take the request: prefill did not, or all that decode have refused it, or enough of them."""
    return by_prefill or all_refused or num_refused >= ENOUGH_REFUSALS
