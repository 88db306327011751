# pyright: basic
"""Tries at start-up, on the real weights, that splitting a sequence changes no bit; else the engine refuses to start.

A hand-off relies on it, and it rests on properties of numerical libraries that nobody promises (see ``linear``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pdd.core.errors import ConfigError
from pdd.core.kv_format import KvFormat
from pdd.engine.embedded.model import LlamaModel
from pdd.engine.embedded.paged_cache import PagedCache
from pdd.engine.embedded.step import StepBuilder

_NUM_TOKENS = 36
_PIECES = (36, 32, 5)
"""A whole prefill; a hand-off's extend of 4; small chunks, and at last a decode of 1."""


def check_exactness(model: LlamaModel, kv_format: KvFormat) -> None:
    """Computes one short sequence in several splits and compares logits and KV bit by bit.

    Raises:
        ConfigError: they differ.
    """
    logits, kv = _compute(model, kv_format, _PIECES[0])
    for piece in _PIECES[1:]:
        other_logits, other_kv = _compute(model, kv_format, piece)
        if not (torch.equal(logits, other_logits) and torch.equal(kv, other_kv)):
            raise ConfigError(
                f"this machine computes other bits when a sequence is split (torch {torch.__version__}): relayed answers "
                "would differ from unrelayed ones, so the embedded engine does not start"
            )


def _compute(model: LlamaModel, kv_format: KvFormat, piece: int) -> tuple[Tensor, Tensor]:
    """The last token's logits and the KV ``[layers, tokens, ...]`` of a sequence of arbitrary tokens, computed in pieces."""
    num_blocks = -(-_NUM_TOKENS // kv_format.block_tokens)
    cache = PagedCache(model.shape, kv_format, num_blocks)
    tokens = [(index * 7919 + 13) % model.shape.vocab_size for index in range(_NUM_TOKENS)]
    logits = torch.empty(0)
    size = min(piece, model.buckets[-1])
    for start in range(0, _NUM_TOKENS, size):
        builder = StepBuilder(cache)
        part = tokens[start : start + size]
        builder.add(part, first_position=start, block_table=range(num_blocks), sampled=True)
        logits = model.forward(builder.build(model.buckets), cache)
    return logits, cache.pool.flatten(1, 2)[:, :_NUM_TOKENS]
