# pyright: basic
"""The forward pass of a Llama-family decoder over one step's packed rows, in float32, exact under any split.

Everything but attention treats rows one by one: norms, rotary embedding and activations are elementwise or per row, on
contiguous tensors (torch's strided loops round differently), and products are ``ExactLinear``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pdd.engine.embedded.attention import Segment, attend
from pdd.engine.embedded.linear import ExactLinear, ExactPath, bucket_of, choose_path, row_buckets
from pdd.engine.embedded.paged_cache import PagedCache
from pdd.engine.embedded.weights import LayerWeights, ModelWeights
from pdd.engine.models.sources import LlamaShape


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One step's rows, sequences one after the other.

    ``token_ids`` and ``positions`` are padded to a row bucket; ``slots`` says where the KV of the real rows goes;
    logits are computed for ``sampled_rows`` only.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    segments: tuple[Segment, ...]
    sampled_rows: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention_norm: Tensor
    qkv: ExactLinear
    attention_output: ExactLinear
    mlp_norm: Tensor
    gate: ExactLinear
    up: ExactLinear
    down: ExactLinear


class LlamaModel:
    """Weights prepared for ``forward``; immutable after construction."""

    __slots__ = (
        "_buckets",
        "_cosine",
        "_embedding",
        "_final_norm",
        "_head",
        "_head_buckets",
        "_layers",
        "_sine",
        "shape",
    )

    def __init__(self, weights: ModelWeights, *, max_model_tokens: int, max_step_tokens: int, max_batch: int) -> None:
        """Chooses an exact path for every weight shape.

        Raises:
            ConfigError: there is none on this machine.
        """
        self.shape = weights.shape
        self._buckets = row_buckets(max_step_tokens)
        paths: dict[tuple[int, ...], ExactPath] = {}
        self._layers = [_prepare(layer, paths, self._buckets) for layer in weights.layers]
        self._embedding = weights.embedding
        self._final_norm = weights.final_norm
        self._head_buckets = row_buckets(max_batch)
        self._head = _exact(weights.embedding, paths, self._head_buckets)
        self._cosine, self._sine = _rotary_tables(weights.shape, max_model_tokens)

    @property
    def buckets(self) -> Sequence[int]:
        """Row counts that a step may have."""
        return self._buckets

    def forward(self, step: StepInput, cache: PagedCache) -> Tensor:
        """Writes the KV of all rows into ``cache``; logits ``[len(sampled_rows), vocab]``, fresh."""
        hidden = self._embedding.index_select(0, step.token_ids)
        rotary = self._cosine.index_select(0, step.positions), self._sine.index_select(0, step.positions)
        for index, layer in enumerate(self._layers):
            query = self._query(index, hidden, step=step, cache=cache, rotary=rotary)
            hidden = hidden + layer.attention_output(attend(cache, index, query, step.segments))
            hidden = hidden + self._mlp(layer, hidden)
        return self._logits(hidden, step.sampled_rows)

    def _query(
        self, index: int, hidden: Tensor, *, step: StepInput, cache: PagedCache, rotary: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Writes keys and values of the real rows into the cache; the scaled queries ``[rows, heads * head_dim]``."""
        shape, layer = self.shape, self._layers[index]
        num_rotated = shape.num_heads + shape.num_kv_heads
        qkv = layer.qkv(self._norm(hidden, layer.attention_norm)).view(hidden.shape[0], -1, shape.head_dim)
        rotated = _rotate(qkv[:, :num_rotated], *rotary)
        num_real = step.slots.shape[0]
        slots = cache.layer_slots(index)
        slots[:, 0].index_copy_(0, step.slots, rotated[:num_real, shape.num_heads :])
        slots[:, 1].index_copy_(0, step.slots, qkv[:num_real, num_rotated:])
        return rotated[:, : shape.num_heads].reshape(hidden.shape[0], -1) * shape.head_dim**-0.5

    def _mlp(self, layer: _Layer, hidden: Tensor) -> Tensor:
        x = self._norm(hidden, layer.mlp_norm)
        return layer.down(functional.silu(layer.gate(x)).mul_(layer.up(x)))

    def _logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        count = rows.shape[0]
        if not count:
            return hidden.new_empty((0, self.shape.vocab_size))
        padded = functional.pad(rows, (0, bucket_of(self._head_buckets, count) - count))
        return self._head(self._norm(hidden.index_select(0, padded), self._final_norm))[:count]

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (self.shape.hidden_size,), weight, self.shape.norm_epsilon)


def _prepare(layer: LayerWeights, paths: dict[tuple[int, ...], ExactPath], rows: Sequence[int]) -> _Layer:
    return _Layer(
        attention_norm=layer.attention_norm,
        qkv=_exact(layer.qkv, paths, rows),
        attention_output=_exact(layer.attention_output, paths, rows),
        mlp_norm=layer.mlp_norm,
        gate=_exact(layer.gate, paths, rows),
        up=_exact(layer.up, paths, rows),
        down=_exact(layer.down, paths, rows),
    )


def _exact(weight: Tensor, paths: dict[tuple[int, ...], ExactPath], rows: Sequence[int]) -> ExactLinear:
    """The path is tried once per shape: which kernel runs depends on the shape, not on the values."""
    key = tuple(weight.shape)
    if key not in paths:
        paths[key], linear = choose_path(weight, rows)
        return linear
    return ExactLinear(weight, paths[key])


def _rotary_tables(shape: LlamaShape, max_model_tokens: int) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine, ``[positions, 1, head_dim]``; computed in float64, then rounded once."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    angles = torch.arange(max_model_tokens, dtype=torch.float64)[:, None] * shape.rope_theta**-half
    cosine, sine = angles.cos(), angles.sin()
    return (
        torch.cat((cosine, cosine), -1).float().unsqueeze(1),
        torch.cat((-sine, sine), -1).float().unsqueeze(1),
    )


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of ``x [rows, heads, head_dim]``; dimension i turns with dimension i + head_dim / 2."""
    first, second = x.chunk(2, -1)
    return (x * cosine).add_(torch.cat((second, first), -1).mul_(sine))
