"""The yardstick for the embedded engine: the same model the usual way, batched, with nothing exact about it.

Plain linear layers, torch's scaled dot-product attention over one contiguous cache for a batch of equally long
sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pdd.engine.catalog import ModelEntry
from pdd.engine.embedded.weights import load_weights


class PlainLlama:
    """Use under ``torch.inference_mode``; ``reset`` begins a batch."""

    def __init__(self, entry: ModelEntry) -> None:
        weights = load_weights(entry)
        self.shape = weights.shape
        self._embedding, self._final_norm = weights.embedding, weights.final_norm
        self._layers = list(weights.layers)
        self._caches: list[tuple[Tensor, Tensor]] = []
        self._num_cached = 0

    def reset(self, batch: int, max_tokens: int) -> None:
        """Empty caches, ``[batch, kv_heads, max_tokens, head_dim]``."""
        size = (batch, self.shape.num_kv_heads, max_tokens, self.shape.head_dim)
        self._caches = [(torch.zeros(size), torch.zeros(size)) for _ in self._layers]
        self._num_cached = 0

    def forward(self, token_ids: Tensor) -> Tensor:
        """``[batch, tokens]`` -> the last position's logits ``[batch, vocab]``; a chunk after others sees them all."""
        shape, (batch, count) = self.shape, token_ids.shape
        start, end = self._num_cached, self._num_cached + count
        hidden = self._embedding[token_ids]
        rotary = self._rotary(start, end)
        mask = torch.ones(count, end, dtype=torch.bool).tril(start) if count > 1 else None
        for layer, (keys, values) in zip(self._layers, self._caches, strict=True):
            qkv = functional.linear(self._norm(hidden, layer.attention_norm), layer.qkv)
            heads = qkv.view(batch, count, -1, shape.head_dim).transpose(1, 2)
            query, key, value = heads.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads), 1)
            keys[:, :, start:end], values[:, :, start:end] = _rotate(key, *rotary), value
            mixed = functional.scaled_dot_product_attention(
                _rotate(query, *rotary), keys[:, :, :end], values[:, :, :end], attn_mask=mask, enable_gqa=True
            )
            hidden = hidden + functional.linear(mixed.transpose(1, 2).flatten(2), layer.attention_output)
            x = self._norm(hidden, layer.mlp_norm)
            gated = functional.silu(functional.linear(x, layer.gate)) * functional.linear(x, layer.up)
            hidden = hidden + functional.linear(gated, layer.down)
        self._num_cached = end
        return functional.linear(self._norm(hidden[:, -1], self._final_norm), self._embedding)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (self.shape.hidden_size,), weight, self.shape.norm_epsilon)

    def _rotary(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        half = torch.arange(0, self.shape.head_dim, 2, dtype=torch.float64) / self.shape.head_dim
        angles = torch.arange(start, end, dtype=torch.float64)[:, None] * self.shape.rope_theta**-half
        return torch.cat((angles.cos(),) * 2, -1).float(), torch.cat((-angles.sin(), angles.sin()), -1).float()


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((second, first), -1) * sine
