# pyright: basic
"""One sequence computed by itself, without scheduler, threads and node: for checks.

The numbers are the engine's own, to the bit, since that is exact however a sequence is split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdd.core.ids import TokenId
from pdd.core.kv_format import KvFormat
from pdd.engine.catalog import ModelEntry
from pdd.engine.embedded.model import LlamaModel
from pdd.engine.embedded.paged_cache import PagedCache
from pdd.engine.embedded.step import StepBuilder
from pdd.engine.embedded.weights import load_weights

_BLOCK_TOKENS = 16
_PIECE_TOKENS = 128


class LoneModel:
    """A model without an engine around it. Not for two threads at once."""

    __slots__ = ("_kv_format", "_model")

    def __init__(self, model: LlamaModel, kv_format: KvFormat) -> None:
        self._model = model
        self._kv_format = kv_format

    @classmethod
    def load(cls, entry: ModelEntry, *, max_model_tokens: int) -> Self:
        """Reads the weights; takes seconds for a real model.

        Raises:
            ConfigError: the weights are missing, or this machine has no exact path.
        """
        torch.set_num_threads(1)  # of the calling thread, as in the engine
        with torch.inference_mode():
            model = LlamaModel(
                load_weights(entry), max_model_tokens=max_model_tokens, max_step_tokens=_PIECE_TOKENS, max_batch=1
            )
        return cls(model, entry.kv_format(_BLOCK_TOKENS))

    def logits_after(self, tokens: Sequence[TokenId]) -> npt.NDArray[np.float32]:
        """The logits ``[vocab]`` of the token that follows ``tokens``, of which there is at least one."""
        torch.set_num_threads(1)
        with torch.inference_mode():
            logits, _ = compute_alone(self._model, self._kv_format, tokens, piece=_PIECE_TOKENS)
        return logits[0].numpy()


def compute_alone(
    model: LlamaModel, kv_format: KvFormat, tokens: Sequence[TokenId], *, piece: int
) -> tuple[Tensor, Tensor]:
    """The last token's logits ``[1, vocab]`` and the KV ``[layers, tokens, ...]`` of ``tokens``, ``piece``
    at a time.
    """
    num_tokens = len(tokens)
    num_blocks = -(-num_tokens // kv_format.block_tokens)
    cache = PagedCache(model.shape, kv_format, num_blocks)
    logits = torch.empty(0)
    size = min(piece, model.buckets[-1])
    for start in range(0, num_tokens, size):
        builder = StepBuilder(cache)
        part = tokens[start : start + size]
        builder.add(part, first_position=start, block_table=range(num_blocks), sampled=True)
        logits = model.forward(builder.build(model.buckets), cache)
    return logits, cache.pool.flatten(1, 2)[:, :num_tokens]
