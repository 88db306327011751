# pyright: basic
"""``engine.noise`` for many rows at once, where the logits are: on vLLM's device, without waiting for it.

The same draw, step for step, in float64; on whatever device, logarithms differ in their last bit at most, and that
weighs nothing beside the noise. A row at a time in numpy would take 10 ms for a vocabulary of 128,000, and the device
would idle. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pdd.core.request import Sampling
from pdd.engine.noise import INCREMENT, MULTIPLIER_1, MULTIPLIER_2, stream_key

_ROWS_AT_ONCE = 8
"""Bounds the scratch memory, which vLLM does not know of: a row takes eight times its vocabulary's float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One token to be drawn: how, and of which output position."""

    sampling: Sampling
    position: int


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The tokens ``[rows]`` (int64) drawn from ``logits`` ``[rows, vocab]``; none of ``draws`` is greedy."""
    parts = [
        _draw_some(logits[first : first + _ROWS_AT_ONCE], draws[first : first + _ROWS_AT_ONCE])
        for first in range(0, len(draws), _ROWS_AT_ONCE)
    ]
    return torch.cat(parts)


def _draw_some(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    device = logits.device
    samplings = [draw.sampling for draw in draws]
    temperatures = _column([sampling.temperature for sampling in samplings], torch.float64, device)
    scaled = logits.to(torch.float64)
    scaled = (scaled - scaled.amax(dim=1, keepdim=True)) / temperatures
    scores = scaled + _noise(draws, logits.shape[1], device)
    if any(sampling.top_k is not None or sampling.top_p < 1.0 for sampling in samplings):
        scores = scores.masked_fill(~_kept(scaled, samplings), float("-inf"))
    return scores.argmax(dim=1)


def _kept(scaled: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """What top-k and then top-p leave, ``[rows, vocab]``; of equal ones the lower ids, hence a stable order."""
    num_tokens, device = scaled.shape[1], scaled.device
    descending, order = scaled.sort(dim=1, descending=True, stable=True)
    ranks = torch.arange(num_tokens, device=device)
    top_k = _column([min(sampling.top_k or num_tokens, num_tokens) for sampling in samplings], torch.int64, device)
    top_p = _column([sampling.top_p for sampling in samplings], torch.float64, device)
    weights = (descending - descending[:, :1]).exp().masked_fill(ranks >= top_k, 0.0)
    cumulative = weights.cumsum(dim=1)
    # A token stays if those before it don't reach top_p yet; without top-p, rounding must not end it early.
    before = torch.nn.functional.pad(cumulative[:, :-1], (1, 0))
    stays = (ranks < top_k) & ((before < top_p * cumulative[:, -1:]) | (top_p >= 1.0) | (ranks == 0))
    return torch.zeros_like(stays).scatter_(1, order, stays)


def _noise(draws: Sequence[Draw], num_tokens: int, device: torch.device) -> torch.Tensor:
    """``engine.noise.gumbel_noise`` of all tokens, ``[rows, vocab]``."""
    keys = [int(stream_key(draw.sampling.seed, draw.sampling.choice, draw.position)) for draw in draws]
    counters = torch.arange(1, num_tokens + 1, device=device) * _signed(INCREMENT)
    words = _mix(_column([_signed(key) for key in keys], torch.int64, device) + counters)
    uniform = (_shifted(words, 12).to(torch.float64) + 0.5) * 2.0**-52
    return uniform.log_().neg_().log_().neg_()


def _mix(words: torch.Tensor) -> torch.Tensor:
    """64-bit words as int64, whose products and sums wrap just as unsigned ones do."""
    words = (words ^ _shifted(words, 30)) * _signed(MULTIPLIER_1)
    words = (words ^ _shifted(words, 27)) * _signed(MULTIPLIER_2)
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """To the right, filled with zeros, not with the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)[:, None]
