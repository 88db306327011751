# pyright: basic
"""Tries at start-up, on the real weights, that splitting a sequence changes no bit; else the engine refuses to start.

A hand-off relies on it, and it rests on properties of numerical libraries that nobody promises (see ``linear``).
"""

from __future__ import annotations

import torch

from pdd.core.errors import ConfigError
from pdd.core.kv_format import KvFormat
from pdd.engine.embedded.alone import compute_alone
from pdd.engine.embedded.model import LlamaModel

_NUM_TOKENS = 36
_PIECES = (36, 32, 5)
"""A whole prefill; a hand-off's extend of 4; small chunks, and at last a decode of 1."""


def check_exactness(model: LlamaModel, kv_format: KvFormat) -> None:
    """Computes one short sequence of arbitrary tokens in several splits and compares logits and KV bit by bit.

    Raises:
        ConfigError: they differ.
    """
    tokens = [(index * 7919 + 13) % model.shape.vocab_size for index in range(_NUM_TOKENS)]
    logits, kv = compute_alone(model, kv_format, tokens, piece=_PIECES[0])
    for piece in _PIECES[1:]:
        other_logits, other_kv = compute_alone(model, kv_format, tokens, piece=piece)
        if not (torch.equal(logits, other_logits) and torch.equal(kv, other_kv)):
            raise ConfigError(
                f"this machine computes other bits when a sequence is split (torch {torch.__version__}): relayed answers "
                "would differ from unrelayed ones, so the embedded engine does not start"
            )
