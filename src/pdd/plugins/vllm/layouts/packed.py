# pyright: basic
"""Caches whose order within a block is no matter of strides (AMX tiles, for one): a table says where each element lies.

``positions`` is ``[tokens, K|V, heads, head_dim]``: the element's index in the block's ``[heads, tokens, content]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pdd.plugins.vllm.layouts.paged import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """See ``LayerCache``. ``cache`` is ``[blocks, heads, tokens, content]`` with any strides."""

    cache: Tensor
    positions: Tensor

    def gather(self, run: Run, content: Tensor) -> None:
        blocks = torch.tensor(run.blocks, dtype=torch.int64, device=self.cache.device)
        cells = self.cache.index_select(0, blocks).flatten(1)
        found = cells.index_select(1, self.positions[run.first : run.end].flatten())
        content.copy_(found.view(content.shape))

    def scatter(self, run: Run, content: Tensor) -> None:
        blocks = torch.tensor(run.blocks, dtype=torch.int64, device=self.cache.device)
        positions = self.positions[run.first : run.end].flatten()
        num_tokens, num_content = self.cache.shape[2:]
        places = (
            blocks[:, None],
            (positions // (num_tokens * num_content))[None],
            (positions // num_content % num_tokens)[None],
            (positions % num_content)[None],
        )
        self.cache.index_put_(places, content.reshape(len(run.blocks), -1))
