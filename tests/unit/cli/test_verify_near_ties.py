from __future__ import annotations

import math

import numpy as np
import pytest

from pdd.cli.verify.near_ties import NEAR_TIE, Rivals, rivals_at
from pdd.core.request import GREEDY, Sampling
from pdd.engine.noise import choose_token, score_tokens

SEEDED = Sampling(temperature=0.8, top_k=50, top_p=0.95, seed=3)


def test_greedy_rivals_are_the_two_largest_logits():
    rivals = rivals_at(np.array([0.5, 4.0, 1.0, 3.5]), GREEDY, position=7)
    assert rivals == Rivals(best=1, second=3, gap=0.5)


def test_of_equal_logits_the_lower_id_is_the_best():
    assert rivals_at(np.array([1.0, 4.0, 4.0]), GREEDY, position=0) == Rivals(best=1, second=2, gap=0.0)


def test_seeded_rivals_are_the_two_best_after_temperature_cuts_and_noise():
    logits = np.random.default_rng(1).normal(size=300) * 3
    for position in range(40):
        rivals = rivals_at(logits, SEEDED, position=position)
        token_ids, scores = score_tokens(logits, SEEDED, position=position)
        assert rivals.best == choose_token(logits, SEEDED, position=position)
        assert rivals.second in token_ids
        assert rivals.gap == pytest.approx(np.sort(scores)[-1] - np.sort(scores)[-2])


def test_log_probabilities_will_do_for_logits():
    logits = np.random.default_rng(2).normal(size=100)
    for sampling in (GREEDY, SEEDED):
        one, other = (rivals_at(values, sampling, position=4) for values in (logits, logits - 17.25))
        assert (one.best, one.second) == (other.best, other.second)
        assert one.gap == pytest.approx(other.gap)


def test_a_token_that_alone_may_be_drawn_has_no_rival():
    sampling = Sampling(temperature=0.8, top_k=1, top_p=1.0, seed=3)
    rivals = rivals_at(np.array([0.0, 1.0]), sampling, position=0)
    assert rivals == Rivals(best=1, second=None, gap=math.inf)
    assert rivals.why_no_near_tie(0, 1) == "it isn't one of the two best tokens for the other"


def test_a_gap_moved_by_last_bits_is_a_near_tie_and_one_of_twice_the_bound_is_none():
    assert Rivals(best=1, second=2, gap=1e-5).why_no_near_tie(2, 1) is None
    assert Rivals(best=1, second=2, gap=2 * NEAR_TIE).why_no_near_tie(2, 1) == "the two best tokens are 0.002 apart"
