"""The layout that an engine's own writes tell of."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pdd.core.errors import ConfigError
from pdd.plugins.vllm.layouts.base import CacheLayout
from pdd.plugins.vllm.layouts.choose import choose_layout
from tests.support.paged_caches import (
    PHYSICAL_ORDERS,
    Keep,
    MadeUpLayer,
    allocate,
    shuffled_positions,
    standard_positions,
    vec_positions,
)

_BLOCKS, _HEADS, _TOKENS, _DIM = 5, 2, 8, 16


def _engine(
    positions: Tensor, *, order: str = "LBHNC", dtype: torch.dtype = torch.float32, keep: Keep = lambda values: values
) -> dict[str, MadeUpLayer]:
    caches = allocate((2, _BLOCKS, _HEADS, _TOKENS, 2 * _DIM), order, dtype)
    names = [f"model.layers.{number}.self_attn.attn" for number in range(2)]
    return {
        name: MadeUpLayer(kv_cache=cache, positions=positions, keep=keep)
        for name, cache in zip(names, caches, strict=True)
    }


def _choose(layers: dict[str, Any], **changes: Any) -> CacheLayout:
    facts: dict[str, Any] = {
        "num_layers": 2,
        "num_kv_heads": _HEADS,
        "head_dim": _DIM,
        "block_tokens": _TOKENS,
        "dtype": torch.float32,
    }
    return choose_layout({name: layer.kv_cache for name, layer in layers.items()}, layers, **(facts | changes))


def _check_round_trip(layers: dict[str, MadeUpLayer], layout: CacheLayout) -> None:
    """What the engine wrote is read, and what is written lies where the engine would have put it."""
    dtype = next(iter(layers.values())).kv_cache.dtype
    blocks, num_tokens = [4, 1], 2 * _TOKENS - 3
    content = torch.rand(2, num_tokens, 2, _HEADS, _DIM).to(dtype)
    slots = torch.tensor([blocks[token // _TOKENS] * _TOKENS + token % _TOKENS for token in range(num_tokens)])
    for layer, new in zip(layers.values(), content, strict=True):
        layer.do_kv_cache_update(layer, new[:, 0], new[:, 1], layer.kv_cache, slots)
    assert torch.equal(layout.read(blocks, 0, num_tokens), content)
    before = [layer.kv_cache.clone() for layer in layers.values()]
    for layer in layers.values():
        layer.kv_cache[blocks[0]] = 0
    layout.write(blocks, 0, content)
    assert all(torch.equal(layer.kv_cache, cache) for layer, cache in zip(layers.values(), before, strict=True))


@pytest.mark.parametrize("order", list(PHYSICAL_ORDERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_standard_order_is_found_whatever_the_order_in_memory(order: str, dtype: torch.dtype) -> None:
    layers = _engine(standard_positions(_TOKENS, _HEADS, _DIM), order=order, dtype=dtype)
    layout = _choose(layers, dtype=dtype)
    assert layout.label == "standard (cpu)"
    _check_round_trip(layers, layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_cpu_kernels_order_is_found(dtype: torch.dtype) -> None:
    layers = _engine(vec_positions(_TOKENS, _HEADS, _DIM), dtype=dtype)
    layout = _choose(layers, dtype=dtype)
    assert layout.label == "vec (cpu)"
    _check_round_trip(layers, layout)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("order", ["LBHNC", "BLHNC"])
def test_any_other_permutation_within_a_block_is_learned(seed: int, order: str) -> None:
    layers = _engine(shuffled_positions(_TOKENS, _HEADS, _DIM, seed=seed), order=order, dtype=torch.bfloat16)
    layout = _choose(layers, dtype=torch.bfloat16)
    assert layout.label == "packed, learned (cpu)"
    _check_round_trip(layers, layout)


def test_keys_and_values_in_head_slots_of_their_own_are_learned() -> None:
    cells = torch.arange(2 * _TOKENS * _HEADS * _DIM).view(2, _TOKENS, _HEADS, _DIM)
    layers = _engine(cells.transpose(0, 1).contiguous())
    layout = _choose(layers)
    assert layout.label == "packed, learned (cpu)"
    _check_round_trip(layers, layout)


def test_asking_the_engine_leaves_no_trace() -> None:
    layers = _engine(vec_positions(_TOKENS, _HEADS, _DIM))
    before = [layer.kv_cache.clone() for layer in layers.values()]
    _choose(layers)
    assert all(torch.equal(layer.kv_cache, cache) for layer, cache in zip(layers.values(), before, strict=True))


def test_layers_are_in_the_order_of_their_numbers_not_of_their_names() -> None:
    layers = _engine(standard_positions(_TOKENS, _HEADS, _DIM))
    first, second = layers.values()
    layout = _choose({"model.layers.1.attn": first, "model.layers.0.attn": second})
    assert torch.equal(layout.read([0], 0, 1)[1, 0, 0], first.kv_cache[0, :, 0, :_DIM])


def test_blocks_of_the_scheduler_may_be_longer_than_the_kernels() -> None:
    layout = _choose(_engine(vec_positions(_TOKENS, _HEADS, _DIM)), block_tokens=2 * _TOKENS)
    assert layout.block_tokens == 2 * _TOKENS


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (lambda values: values * 0.5, "changes the values"),
        (lambda values: values + 0.25, "changes the values"),
        (lambda values: values * float("nan"), "changes the values"),
        (lambda values: values.round() // 16 * 16, "not every value has one place"),
        (lambda values: values if values.numel() == _TOKENS * 2 * _HEADS * _DIM else -values, "depends on what is written"),
    ],
    ids=["scaled", "shifted", "not a number", "quantized", "otherwise for a few tokens"],
)  # fmt: skip
def test_an_engine_that_keeps_something_else_than_the_values_is_refused(keep: Keep, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        _choose(_engine(standard_positions(_TOKENS, _HEADS, _DIM), keep=keep))


def test_values_that_share_a_place_are_refused() -> None:
    positions = standard_positions(_TOKENS, _HEADS, _DIM)
    positions[0, 0, 0, 0] = positions[0, 0, 0, 1]
    with pytest.raises(ConfigError, match="not every value has one place of its own"):
        _choose(_engine(positions))


def test_one_layer_that_is_kept_unlike_the_others_is_refused() -> None:
    layers = _engine(standard_positions(_TOKENS, _HEADS, _DIM))
    list(layers.values())[1].positions = vec_positions(_TOKENS, _HEADS, _DIM)
    with pytest.raises(ConfigError, match="can't be exchanged"):
        _choose(layers)


def test_packed_blocks_that_are_not_dense_are_refused() -> None:
    with pytest.raises(ConfigError, match="not dense"):
        _choose(_engine(shuffled_positions(_TOKENS, _HEADS, _DIM, seed=0), order="LBNHC"))


def _facts(**changes: Any) -> dict[str, Any]:
    return changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (_facts(dtype=torch.bfloat16), "layer model.layers.0.self_attn.attn: its KV cache is torch.float32, the model torch.bfloat16"),
        (_facts(num_layers=3), "expected one for each of the 3 layers"),
        (_facts(num_layers=1), "expected one for each of the 1 layers"),
        (_facts(block_tokens=12), "divides the block size, 12"),
        (_facts(num_kv_heads=3), "a block of its KV cache is [2, 8, 32]; expected K and V of 3 heads of 16, for 8 tokens"),
    ],
    ids=["dtype", "too few layers", "too many layers", "block size", "heads"],
)  # fmt: skip
def test_a_cache_of_something_else_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        _choose(_engine(standard_positions(_TOKENS, _HEADS, _DIM)), **changes)


def test_a_quantized_cache_is_refused_by_name() -> None:
    layer = MadeUpLayer(
        kv_cache=torch.zeros(_BLOCKS, _HEADS, _TOKENS, 2 * _DIM, dtype=torch.float8_e4m3fn),
        positions=standard_positions(_TOKENS, _HEADS, _DIM),
    )
    with pytest.raises(ConfigError, match="use --kv-cache-dtype auto"):
        _choose({"model.layers.0.attn": layer}, num_layers=1)


def test_a_cache_without_four_axes_is_refused() -> None:
    layer = MadeUpLayer(kv_cache=torch.zeros(_BLOCKS, _TOKENS, 2 * _DIM), positions=torch.zeros(0))
    with pytest.raises(ConfigError, match=r"expected \[blocks, heads, tokens, content\]"):
        _choose({"model.layers.0.attn": layer}, num_layers=1)


def test_an_implementation_that_writes_only_while_it_computes_is_refused_by_name() -> None:
    layer = SimpleNamespace(kv_cache=torch.zeros(_BLOCKS, _HEADS, _TOKENS, 2 * _DIM), impl=SimpleNamespace())
    with pytest.raises(ConfigError, match="choose another --attention-backend"):
        _choose({"model.layers.0.attn": layer}, num_layers=1)
