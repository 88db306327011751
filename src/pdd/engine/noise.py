"""How every engine draws a token from logits, so that all of them draw the same one at the same output position.

The noise is *stateless*: a hash of (seed, choice, position, token id) and of nothing else, so it does not matter who
computed the positions before, nor in how many pieces. All arithmetic is in float64, where the last bits in which two
float32 forward passes may differ weigh nothing beside the noise. Needs numpy only: router, scripted engine, embedded
engine and plugins share this one module.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pdd.core.ids import TokenId
from pdd.core.request import Sampling

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

SAMPLING_VERSION = 1
"""Engines of another version draw other tokens from the same logits: a hand-off between the two would change the
answer. Raise it with any change of the tokens that a seed leads to.
"""

_MASK = (1 << 64) - 1
# The increment and multipliers of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
# OOPSLA 2014, as tuned by Stafford's mix 13).
INCREMENT = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB


def gumbel_noise(*, seed: int, choice: int, position: int, token_ids: Sequence[TokenId] | Ids) -> Floats:
    """Standard Gumbel noise for each of ``token_ids`` at output ``position``.

    ``position`` counts from the first token after the prompt; ``seed`` is in [0, 2**63), ``choice`` and ``position`` in
    [0, 2**32). Any subset of the vocabulary gets the same values as the whole of it would.
    """
    words = _mix_words(stream_key(seed, choice, position) + _counters(token_ids))
    # 52 bits and a half step keep the uniform strictly inside (0, 1), so that neither logarithm meets 0.
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniform))


def choose_token(logits: npt.NDArray[np.floating], sampling: Sampling, *, position: int) -> TokenId:
    """Draws the token of output ``position`` from ``logits`` ``[vocab]``; the lowest id wins a tie."""
    if sampling.temperature == 0.0:
        return int(np.argmax(logits))
    token_ids, scores = score_tokens(logits, sampling, position=position)
    return int(token_ids[np.argmax(scores)])


def score_tokens(logits: npt.NDArray[np.floating], sampling: Sampling, *, position: int) -> tuple[Ids, Floats]:
    """The tokens that may be drawn at output ``position``, ascending, and their scores; the largest one is drawn.

    Temperature first, then top-k, then top-p on what top-k kept (renormalized), then Gumbel noise on what is left.
    Greedy scores are the logits themselves.
    """
    if sampling.temperature == 0.0:
        return np.arange(logits.size, dtype=np.int64), logits.astype(np.float64)
    distances = logits.astype(np.float64) - np.max(logits)
    with np.errstate(over="ignore"):  # a temperature next to 0 sends all but the likeliest to -inf, as it should
        scaled = distances / sampling.temperature
    token_ids = _kept_tokens(scaled, sampling)
    noise = gumbel_noise(seed=sampling.seed, choice=sampling.choice, position=position, token_ids=token_ids)
    return token_ids, scaled[token_ids] + noise


def _kept_tokens(scaled: Floats, sampling: Sampling) -> Ids:
    """The ids that top-k and top-p leave, ascending; never empty."""
    token_ids = np.arange(scaled.size, dtype=np.int64)
    if sampling.top_k is not None and sampling.top_k < token_ids.size:
        token_ids = _largest(scaled, token_ids, sampling.top_k)
    if sampling.top_p < 1.0:
        token_ids = _largest(scaled, token_ids, _nucleus_size(scaled[token_ids], sampling.top_p))
    return token_ids


def _nucleus_size(scaled: Floats, top_p: float) -> int:
    """How many of the likeliest tokens it takes until their probability reaches ``top_p``."""
    descending = np.sort(scaled)[::-1]
    weights = np.exp(descending - descending[0])
    cumulative: Floats = np.cumsum(weights)
    count = int(np.count_nonzero(cumulative < top_p * cumulative[-1])) + 1
    return min(count, scaled.size)


def _largest(scaled: Floats, token_ids: Ids, count: int) -> Ids:
    """The ``count`` of ``token_ids`` with the largest logits, ascending by id; of equal ones the lower ids."""
    values = scaled[token_ids]
    threshold = np.partition(values, values.size - count)[values.size - count]
    above = token_ids[values > threshold]
    equal = token_ids[values == threshold][: count - above.size]
    return np.sort(np.concatenate((above, equal)))


def stream_key(seed: int, choice: int, position: int) -> np.uint64:
    """One 64-bit key per (seed, choice, position); each part passes the mixer before the next is added."""
    key = _mix_int(seed + INCREMENT)
    key = _mix_int(key + (choice + 1) * INCREMENT)
    return np.uint64(_mix_int(key + (position + 1) * INCREMENT))


def _counters(token_ids: Sequence[TokenId] | Ids) -> _Words:
    return (np.asarray(token_ids, dtype=np.uint64) + np.uint64(1)) * np.uint64(INCREMENT)


def _mix_int(word: int) -> int:
    word &= _MASK
    word = ((word ^ (word >> 30)) * MULTIPLIER_1) & _MASK
    word = ((word ^ (word >> 27)) * MULTIPLIER_2) & _MASK
    return word ^ (word >> 31)


def _mix_words(words: _Words) -> _Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(MULTIPLIER_1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(MULTIPLIER_2)
    return words ^ (words >> np.uint64(31))
