import hashlib

import numpy as np
import pytest

from pdd.core.request import GREEDY, Sampling
from pdd.engine.noise import SAMPLING_VERSION, _mix_int, choose_token, gumbel_noise, score_tokens


def _sampling(*, temperature=1.0, top_k=None, top_p=1.0, seed=7, choice=0) -> Sampling:
    return Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, choice=choice)


def test_the_mixer_is_the_published_splitmix64():
    increment = 0x9E3779B97F4A7C15
    assert _mix_int(increment) == 0xE220A8397B1DCDAF
    assert _mix_int(2 * increment) == 0x6E789E6AA1B965F4


@pytest.mark.parametrize(
    ("seed", "choice", "position", "token_id", "expected"),
    [
        (0, 0, 0, 0, -0.71439511776756826),
        (0, 0, 0, 1, -1.0977226395059996),
        (0, 0, 0, 49151, 0.0090542714717104199),
        (2**63 - 1, 3, 1000, 7, 1.0197465861534705),
    ],
)
def test_pinned_values_hold_because_every_seeded_answer_depends_on_them(seed, choice, position, token_id, expected):
    noise = gumbel_noise(seed=seed, choice=choice, position=position, token_ids=[token_id])
    assert noise == pytest.approx([expected], rel=1e-14)


def test_engines_of_one_version_draw_the_same_tokens():
    logits = np.sin(np.arange(512) * 0.37) * 4
    options = [
        _sampling(temperature=t, top_k=k, top_p=p, seed=9) for t in (0.5, 2.0) for k in (None, 40) for p in (0.9, 1.0)
    ]
    drawn = [choose_token(logits, sampling, position=position) for sampling in options for position in range(100)]
    digest = hashlib.sha256(np.asarray(drawn, dtype="<u4").tobytes()).hexdigest()[:16]
    assert (SAMPLING_VERSION, digest) == (1, "e0a65cda2bdfdb21"), "other draws are another version"


def test_a_subset_of_the_vocabulary_gets_the_same_noise_as_the_whole():
    whole = gumbel_noise(seed=3, choice=1, position=9, token_ids=np.arange(1000))
    part = gumbel_noise(seed=3, choice=1, position=9, token_ids=[999, 5, 17])
    assert part.tolist() == whole[[999, 5, 17]].tolist()


@pytest.mark.parametrize("changed", [{"seed": 4}, {"choice": 2}, {"position": 10}])
def test_each_part_of_the_key_changes_the_noise(changed):
    key = {"seed": 3, "choice": 1, "position": 9}
    ids = np.arange(64)
    assert not np.any(gumbel_noise(**key, token_ids=ids) == gumbel_noise(**(key | changed), token_ids=ids))


def test_swapping_choice_and_position_is_another_key():
    ids = np.arange(64)
    first = gumbel_noise(seed=0, choice=1, position=2, token_ids=ids)
    assert not np.any(first == gumbel_noise(seed=0, choice=2, position=1, token_ids=ids))


def test_noise_is_finite_with_the_mean_and_variance_of_a_standard_gumbel():
    noise = np.concatenate([gumbel_noise(seed=1, choice=0, position=p, token_ids=np.arange(4096)) for p in range(64)])
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=0.02)


def _draws(logits, count: int, seed: int = 11) -> np.ndarray:
    sampling = _sampling(seed=seed)
    return np.array([choose_token(logits, sampling, position=position) for position in range(count)])


def test_drawn_tokens_follow_the_softmax_by_a_chi_square_test():
    probabilities = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    count = 6000
    observed = np.bincount(_draws(np.log(probabilities), count), minlength=5)
    statistic = ((observed - count * probabilities) ** 2 / (count * probabilities)).sum()
    assert statistic < 18.47  # the 99.9 % quantile at 4 degrees of freedom


def test_adjacent_positions_are_independent_by_a_chi_square_test():
    draws = _draws(np.zeros(4), 8000)
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (draws[:-1], draws[1:]), 1)
    expected = pairs.sum(1, keepdims=True) * pairs.sum(0, keepdims=True) / pairs.sum()
    assert ((pairs - expected) ** 2 / expected).sum() < 27.88  # the 99.9 % quantile at 9 degrees of freedom


def test_adjacent_seeds_are_independent_by_a_chi_square_test():
    logits = np.zeros(4)
    pairs = np.zeros((4, 4))
    for seed in range(0, 8000, 2):
        first, second = (choose_token(logits, _sampling(seed=seed + step), position=0) for step in (0, 1))
        pairs[first, second] += 1
    expected = pairs.sum(1, keepdims=True) * pairs.sum(0, keepdims=True) / pairs.sum()
    assert ((pairs - expected) ** 2 / expected).sum() < 27.88


def test_greedy_takes_the_lowest_id_among_the_largest():
    assert choose_token(np.array([1.0, 5.0, 5.0, 2.0], np.float32), GREEDY, position=0) == 1


def test_top_k_1_is_greedy_whatever_the_noise_and_the_lowest_id_survives_a_tie():
    logits = np.array([1.0, 5.0, 5.0, 2.0], np.float32)
    assert {choose_token(logits, _sampling(top_k=1), position=p) for p in range(50)} == {1}


def test_top_k_keeps_exactly_the_k_likeliest():
    logits = np.linspace(0, 1, 10)
    assert {choose_token(logits, _sampling(top_k=3), position=p) for p in range(300)} == {7, 8, 9}


def test_a_top_k_beyond_the_vocabulary_changes_nothing():
    logits = np.linspace(0, 1, 10)
    for position in range(50):
        assert choose_token(logits, _sampling(top_k=99), position=position) == choose_token(
            logits, _sampling(), position=position
        )


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = np.log(np.array([0.05, 0.5, 0.3, 0.15]))
    assert {choose_token(logits, _sampling(top_p=0.79), position=p) for p in range(300)} == {1, 2}
    assert {choose_token(logits, _sampling(top_p=0.81), position=p) for p in range(300)} == {1, 2, 3}


def test_a_tiny_top_p_still_keeps_the_likeliest_token():
    logits = np.log(np.array([0.1, 0.2, 0.7]))
    assert {choose_token(logits, _sampling(top_p=1e-9), position=p) for p in range(50)} == {2}


def test_top_p_counts_within_what_top_k_kept():
    # Of 0.4, 0.3, 0.3 top-k 2 keeps 0.4 and 0.3 (the lower id), that is 0.57 and 0.43 of what is left.
    logits = np.log(np.array([0.3, 0.3, 0.4]))
    assert {choose_token(logits, _sampling(top_k=2, top_p=0.55), position=p) for p in range(100)} == {2}
    assert {choose_token(logits, _sampling(top_k=2, top_p=0.6), position=p) for p in range(100)} == {0, 2}


def test_temperature_sharpens_or_flattens():
    logits = np.array([0.0, 1.0])
    cold = sum(choose_token(logits, _sampling(temperature=0.1), position=p) for p in range(400))
    hot = sum(choose_token(logits, _sampling(temperature=10.0), position=p) for p in range(400))
    assert cold == 400
    assert 150 < hot < 260


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-30])
def test_next_to_no_temperature_takes_one_of_the_likeliest(temperature):
    logits = np.array([1.0, 3.0, -2.0, 3.0])
    sampling = Sampling(temperature=temperature, top_k=None, top_p=1.0, seed=5)
    assert {choose_token(logits, sampling, position=position) for position in range(64)} == {1, 3}


def test_differences_in_the_last_bits_of_float32_do_not_change_the_draw():
    generator = np.random.default_rng(5)
    logits = (generator.normal(size=2000) * 3).astype(np.float32)
    nudged = logits + generator.normal(size=2000).astype(np.float32) * np.float32(1e-6)
    for position in range(200):
        assert choose_token(logits, _sampling(), position=position) == choose_token(
            nudged, _sampling(), position=position
        )


@pytest.mark.parametrize("sampling", [GREEDY, _sampling(), _sampling(temperature=0.7, top_k=40, top_p=0.9)])
def test_the_token_with_the_best_score_is_the_one_drawn(sampling):
    logits = (np.random.default_rng(6).normal(size=500) * 3).astype(np.float32)
    for position in range(50):
        token_ids, scores = score_tokens(logits, sampling, position=position)
        assert int(token_ids[np.argmax(scores)]) == choose_token(logits, sampling, position=position)


def test_only_tokens_that_may_be_drawn_have_scores():
    token_ids, scores = score_tokens(np.linspace(0, 1, 10), _sampling(top_k=3), position=4)
    assert token_ids.tolist() == [7, 8, 9]
    assert scores.shape == (3,)


def test_greedy_scores_are_the_logits():
    logits = np.array([1.0, 5.0, 2.0], np.float32)
    token_ids, scores = score_tokens(logits, GREEDY, position=0)
    assert (token_ids.tolist(), scores.tolist()) == ([0, 1, 2], [1.0, 5.0, 2.0])
