"""Blocks as the node has them, as tensors of a rank's heads."""

from __future__ import annotations

import pytest
import torch

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType, KvFormat, TensorSpec, uniform_attention_format
from pdd.plugins.vllm.layouts.canonical import RankHeads, WireBlocks

_LAYERS, _TOKENS, _HEADS, _DIM = 2, 3, 4, 5


def _format(dtype: DType = DType.FLOAT32) -> KvFormat:
    return uniform_attention_format(
        model="m", num_layers=_LAYERS, num_kv_heads=_HEADS, head_dim=_DIM, dtype=dtype, block_tokens=_TOKENS
    )


def _wire(num_ranks: int = 1, rank: int = 0) -> WireBlocks:
    heads = RankHeads(num_kv_heads=_HEADS, num_ranks=num_ranks, rank=rank)
    return WireBlocks(_format(), heads, torch.float32, convert_dtype=False)


def _block() -> torch.Tensor:
    return torch.rand(_LAYERS, _TOKENS, 2, _HEADS, _DIM)


def test_a_block_is_written_as_the_format_says_and_read_back() -> None:
    block = _block()
    content = bytearray(_format().block_bytes)
    _wire().encode(block, memoryview(content))
    assert bytes(content) == block.numpy().astype("<f4").tobytes()
    assert torch.equal(_wire().decode(memoryview(content)), block)


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8, 16])
def test_ranks_take_their_heads_of_a_block_and_together_have_all(num_ranks: int) -> None:
    block = _block()
    content = memoryview(bytearray(block.numpy().tobytes()))
    ranks = [_wire(num_ranks, rank) for rank in range(num_ranks)]
    parts = [wire.decode(content) for wire in ranks]
    assert torch.equal(ranks[0].heads.merge(parts), block)
    for rank, part in enumerate(parts):  # vLLM gives neighbouring ranks copies of one head
        assert torch.equal(part, block[..., rank * _HEADS // num_ranks :, :][..., : max(1, _HEADS // num_ranks), :])


@pytest.mark.parametrize(("heads", "ranks"), [(3, 2), (2, 3), (4, 6)])
def test_heads_that_do_not_spread_evenly_are_refused_by_name(heads: int, ranks: int) -> None:
    with pytest.raises(ConfigError, match=f"--tensor-parallel-size is {ranks}, the model has {heads} KV heads"):
        RankHeads(num_kv_heads=heads, num_ranks=ranks, rank=0)


def test_another_dtype_is_refused_unless_conversion_was_asked_for() -> None:
    heads = RankHeads(num_kv_heads=_HEADS, num_ranks=1, rank=0)
    with pytest.raises(ConfigError, match=r'start it with --dtype bfloat16.*"convert_dtype": true'):
        WireBlocks(_format(DType.BFLOAT16), heads, torch.float32, convert_dtype=False)


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wire_dtype", list(DType))
def test_conversion_rounds_once_on_the_way_and_is_exact_where_the_target_is_wider(
    cache_dtype: torch.dtype, wire_dtype: DType
) -> None:
    heads = RankHeads(num_kv_heads=_HEADS, num_ranks=1, rank=0)
    wire = WireBlocks(_format(wire_dtype), heads, cache_dtype, convert_dtype=True)
    block = _block().to(cache_dtype)
    content = memoryview(bytearray(_format(wire_dtype).block_bytes))
    wire.encode(block, content)
    on_wire = block.to(getattr(torch, wire_dtype))
    assert bytes(content) == on_wire.view(torch.uint8).numpy().tobytes()
    assert torch.equal(wire.decode(content), on_wire.to(cache_dtype))


def _spec(*shape: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec(name="kv", shape=shape, dtype=DType.FLOAT32),)


@pytest.mark.parametrize(
    "layers",
    [(_spec(512),), (_spec(3, _HEADS, _DIM),), (_spec(2, _HEADS, _DIM), _spec(2, _HEADS, 7)), (_spec(2, 4, 5) * 2,)],
    ids=["latent", "three tensors", "layers that differ", "two tensors a layer"],
)
def test_a_format_of_anything_but_equal_layers_of_keys_and_values_is_refused(
    layers: tuple[tuple[TensorSpec, ...], ...],
) -> None:
    heads = RankHeads(num_kv_heads=_HEADS, num_ranks=1, rank=0)
    with pytest.raises(ConfigError, match="expected K and V of the same shape"):
        WireBlocks(KvFormat(model="m", block_tokens=1, layers=layers), heads, torch.float32, convert_dtype=False)


def test_a_format_with_other_heads_than_the_model_is_refused() -> None:
    heads = RankHeads(num_kv_heads=8, num_ranks=1, rank=0)
    with pytest.raises(ConfigError, match="4 KV heads, the engine's model has 8"):
        WireBlocks(_format(), heads, torch.float32, convert_dtype=False)
