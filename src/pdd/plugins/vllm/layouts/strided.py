# pyright: basic
"""Caches in which every element of K and V lies at a stride, whatever the order of the axes: all but the packed ones.

Such a layer is two *views* ``[blocks, heads, tokens, head_dim]`` of its memory, one of K and one of V. vLLM 0.32
registers every layer as ``[blocks, heads, tokens, 2 * head_dim]``, but that is only the shape that its backends share:

- *standard*, in FlashAttention, FlashInfer, Triton and FlexAttention: the last axis is K, then V. In memory heads may come
  before tokens or after, and other layers between the blocks; the strides say.
- *vec*, the vector kernels of the CPU backend: per block and head first all K, transposed, then all V.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pdd.plugins.vllm.layouts.paged import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class StridedLayer:
    """See ``LayerCache``."""

    keys: Tensor
    values: Tensor

    def gather(self, run: Run, content: Tensor) -> None:
        for which, view in enumerate((self.keys, self.values)):
            tokens = view[:, :, run.first : run.end]
            found = tokens[run.adjacent] if run.adjacent else tokens.index_select(0, _index(run, view))
            content[:, :, which].copy_(found.transpose(1, 2))

    def scatter(self, run: Run, content: Tensor) -> None:
        for which, view in enumerate((self.keys, self.values)):
            tokens = view[:, :, run.first : run.end]
            new = content[:, :, which].transpose(1, 2)
            if run.adjacent:
                tokens[run.adjacent].copy_(new)
            else:
                tokens.index_copy_(0, _index(run, view), new)


def view_standard(cache: Tensor) -> StridedLayer:
    """``cache`` is ``[blocks, heads, tokens, K|V]``."""
    head_dim = cache.shape[3] // 2
    return StridedLayer(keys=cache[..., :head_dim], values=cache[..., head_dim:])


def view_vec(cache: Tensor) -> StridedLayer:
    """Per block and head K is ``[head_dim, tokens]``, then V ``[tokens, head_dim]``.

    ``cache``'s last two axes are dense.
    """
    num_blocks, num_heads, num_tokens, content = cache.shape
    head_dim = content // 2
    halves = cache.view(num_blocks, num_heads, 2, num_tokens * head_dim)
    return StridedLayer(
        keys=halves[:, :, 0].unflatten(2, (head_dim, num_tokens)).transpose(2, 3),
        values=halves[:, :, 1].unflatten(2, (num_tokens, head_dim)),
    )


def _index(run: Run, view: Tensor) -> Tensor:
    return torch.tensor(run.blocks, dtype=torch.int64, device=view.device)
