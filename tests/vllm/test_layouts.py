"""The layout that the real write operation of vLLM's CPU backend tells of, for each of its instruction sets that runs
here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pdd.plugins.vllm.layouts.choose import choose_layout
from tests.support.paged_caches import vec_positions

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("default")]  # vLLM's own warnings, as it is imported

amx = pytest.param(
    "amx", marks=pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="this CPU has no AMX")
)


def _layer(cache: Tensor, instructions: str) -> Any:
    from vllm import _custom_ops

    def update(_layer: object, keys: Tensor, values: Tensor, cache: Tensor, slots: Tensor) -> None:
        """As vLLM's CPU attention does it."""
        num_blocks, num_heads, num_tokens, _ = cache.shape
        halves = cache.view(num_blocks, num_heads, 2 * num_tokens, -1).chunk(2, dim=2)
        _custom_ops.cpu_attn_reshape_and_cache(keys, values, *halves, slots, instructions)

    return SimpleNamespace(kv_cache=cache, impl=SimpleNamespace(do_kv_cache_update=update))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 32, 32), (3, 64, 64), (8, 128, 128), (2, 32, 80)])
@pytest.mark.parametrize("instructions", ["vec", "vec16", amx])
def test_what_the_engine_wrote_is_read_and_what_is_written_lies_where_it_would_have_put_it(
    instructions: str, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    num_heads, num_tokens, head_dim = shape
    cache = torch.zeros(6, num_heads, num_tokens, 2 * head_dim, dtype=dtype)
    layer = _layer(cache, instructions)
    layout = choose_layout(
        {"model.layers.0.attn": cache},
        {"model.layers.0.attn": layer},
        num_layers=1,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        block_tokens=num_tokens,
        dtype=dtype,
    )
    is_packed = instructions == "amx" and head_dim % 32 == 0
    assert layout.label == ("packed, learned (cpu)" if is_packed else "vec (cpu)")

    blocks, length = (4, 1, 2), 2 * num_tokens + 5
    content = torch.rand(1, length, 2, num_heads, head_dim).to(dtype)
    slots = torch.tensor([blocks[token // num_tokens] * num_tokens + token % num_tokens for token in range(length)])
    layer.impl.do_kv_cache_update(layer, content[0, :, 0].contiguous(), content[0, :, 1].contiguous(), cache, slots)
    assert torch.equal(layout.read(blocks, 0, length), content)

    written = cache.clone()
    cache.zero_()
    layout.write(blocks, 0, content)
    assert torch.equal(cache, written)


def test_the_vector_kernels_keep_keys_transposed() -> None:
    """The order that the faster, strided views rest on, said in another way."""
    cache = torch.zeros(1, 2, 32, 64)
    keys, values = torch.rand(32, 2, 32), torch.rand(32, 2, 32)
    layer = _layer(cache, "vec")
    layer.impl.do_kv_cache_update(layer, keys, values, cache, torch.arange(32))
    assert torch.equal(cache.flatten()[vec_positions(32, 2, 32)], torch.stack((keys, values), dim=1))
