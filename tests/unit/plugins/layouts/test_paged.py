"""Ranges of tokens as runs of blocks, in every physical order that vLLM knows."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pdd.plugins.vllm.layouts.packed import view_packed
from pdd.plugins.vllm.layouts.paged import CacheShape, LayerCache, PagedLayout, split_runs
from pdd.plugins.vllm.layouts.strided import view_standard, view_vec
from tests.support.paged_caches import (
    PHYSICAL_ORDERS,
    allocate,
    shuffled_positions,
    standard_positions,
    vec_positions,
)

_LAYERS, _BLOCKS, _HEADS, _TOKENS, _DIM = 2, 9, 2, 4, 3
_SHUFFLED = shuffled_positions(_TOKENS, _HEADS, _DIM, seed=7)
_KINDS: dict[str, tuple[Callable[[Tensor], LayerCache], Tensor, tuple[str, ...]]] = {
    "standard": (view_standard, standard_positions(_TOKENS, _HEADS, _DIM), tuple(PHYSICAL_ORDERS)),
    "vec": (view_vec, vec_positions(_TOKENS, _HEADS, _DIM), ("LBHNC", "BLHNC")),
    "packed": (lambda cache: view_packed(cache, _SHUFFLED), _SHUFFLED, ("LBHNC", "BLHNC")),
}
_CASES = [(kind, order) for kind, (_, _, orders) in _KINDS.items() for order in orders]


def _layout(caches: list[Tensor], kind: str, *, block_tokens: int = _TOKENS) -> PagedLayout:
    shape = CacheShape(
        block_tokens=block_tokens,
        kernel_tokens=_TOKENS,
        num_kv_heads=_HEADS,
        head_dim=_DIM,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return PagedLayout([_KINDS[kind][0](cache) for cache in caches], shape, label=kind)


def _token(caches: list[Tensor], kind: str, block: int, offset: int) -> Tensor:
    """One token's ``[layers, K|V, heads, head_dim]``, read element by element."""
    return torch.stack([cache[block].flatten()[_KINDS[kind][1][offset]] for cache in caches])


def _tokens(caches: list[Tensor], kind: str, blocks: list[int], first: int, num: int) -> Tensor:
    return torch.stack([_token(caches, kind, blocks[t // _TOKENS], t % _TOKENS) for t in range(first, first + num)], 1)


@pytest.mark.parametrize(("kind", "order"), _CASES)
@pytest.mark.parametrize("blocks", [[1, 2, 3], [5, 2, 8]], ids=["adjacent", "scattered"])
def test_any_range_of_tokens_is_read_as_it_lies_in_memory(kind: str, order: str, blocks: list[int]) -> None:
    caches = allocate((_LAYERS, _BLOCKS, _HEADS, _TOKENS, 2 * _DIM), order)
    layout = _layout(caches, kind)
    for first, end in itertools.combinations(range(len(blocks) * _TOKENS + 1), 2):
        found = layout.read(blocks, first, end - first)
        assert found.shape == (_LAYERS, end - first, 2, _HEADS, _DIM)
        assert torch.equal(found, _tokens(caches, kind, blocks, first, end - first)), (first, end)


@pytest.mark.parametrize(("kind", "order"), _CASES)
@pytest.mark.parametrize("blocks", [[1, 2, 3], [5, 2, 8]], ids=["adjacent", "scattered"])
def test_a_write_puts_its_tokens_in_place_and_touches_no_others(kind: str, order: str, blocks: list[int]) -> None:
    everything = [*blocks, *(block for block in range(_BLOCKS) if block not in blocks)]
    for first, end in itertools.combinations(range(len(blocks) * _TOKENS + 1), 2):
        caches = allocate((_LAYERS, _BLOCKS, _HEADS, _TOKENS, 2 * _DIM), order)
        before = _tokens(caches, kind, everything, 0, _BLOCKS * _TOKENS)
        content = torch.rand(_LAYERS, end - first, 2, _HEADS, _DIM)
        _layout(caches, kind).write(blocks, first, content)
        after = _tokens(caches, kind, everything, 0, _BLOCKS * _TOKENS)
        assert torch.equal(after[:, first:end], content), (first, end)
        assert torch.equal(after[:, :first], before[:, :first]), (first, end)
        assert torch.equal(after[:, end:], before[:, end:]), (first, end)


@pytest.mark.parametrize("kind", list(_KINDS))
def test_a_block_of_the_scheduler_may_be_several_of_the_kernel(kind: str) -> None:
    caches = allocate((_LAYERS, 8, _HEADS, _TOKENS, 2 * _DIM), "LBHNC")
    content = _layout(caches, kind, block_tokens=2 * _TOKENS).read([3, 1], 5, 9)
    assert torch.equal(content, _tokens(caches, kind, [6, 7, 2, 3], 5, 9))


def test_a_read_is_a_copy() -> None:
    caches = allocate((_LAYERS, _BLOCKS, _HEADS, _TOKENS, 2 * _DIM), "LBHNC")
    content = _layout(caches, "standard").read([1], 0, _TOKENS)
    before = content.clone()
    caches[0].fill_(0)
    assert torch.equal(content, before)


def test_a_range_is_at_most_three_runs_that_cover_it_in_order() -> None:
    blocks = list(range(10, 16))
    for first, end in itertools.combinations(range(len(blocks) * _TOKENS + 1), 2):
        runs = list(split_runs(blocks, _TOKENS, first, end - first))
        tokens = [(block, offset) for run in runs for block in run.blocks for offset in range(run.first, run.end)]
        assert tokens == [(blocks[token // _TOKENS], token % _TOKENS) for token in range(first, end)]
        assert len(runs) <= 3
    assert list(split_runs(blocks, _TOKENS, 5, 0)) == []
