# pyright: basic
"""Which layout an engine's caches have: the engine is asked to write, and where things went says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from pdd.core.errors import ConfigError
from pdd.plugins.vllm.layouts.base import CacheLayout
from pdd.plugins.vllm.layouts.packed import view_packed
from pdd.plugins.vllm.layouts.paged import CacheShape, LayerCache, PagedLayout
from pdd.plugins.vllm.layouts.probe import WriteKv, check_positions, learn_positions
from pdd.plugins.vllm.layouts.strided import view_standard, view_vec

_STRIDED = {"standard": view_standard, "vec": view_vec}


class AttentionLayer(Protocol):
    """vLLM's, as in ``vllm_config.compilation_config.static_forward_context``; its ``impl`` knows how it stores K and
    V.
    """

    impl: object
    kv_cache: Tensor


def choose_layout(
    kv_caches: Mapping[str, Tensor],
    attention_layers: Mapping[str, AttentionLayer],
    *,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    block_tokens: int,
    dtype: torch.dtype,
) -> CacheLayout:
    """The layout of one rank's ``kv_caches`` as vLLM registers them, before they are in use.

    ``num_kv_heads`` are this rank's, ``block_tokens`` the scheduler's, ``dtype`` the model's.

    Raises:
        ConfigError: they hold something else, or in a way that can't be learned.
    """
    caches = _in_layer_order(kv_caches, num_layers)
    shape = CacheShape(
        block_tokens=block_tokens,
        kernel_tokens=next(iter(caches.values())).shape[2],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        device=next(iter(caches.values())).device,
    )
    for name, cache in caches.items():
        _check_cache(name, cache, shape)
    writes = {name: _write_of(name, attention_layers[name]) for name in caches}
    first = next(iter(caches))
    positions = learn_positions(caches[first], num_kv_heads, head_dim, writes[first])
    kind, view = _view_for(positions, caches[first])
    for name, cache in caches.items():
        _check_layer(view(cache), cache, shape, writes[name])
    device = shape.device.type if shape.device.type == "cpu" else f"{shape.device.type}, not yet run on a GPU"
    return PagedLayout([view(cache) for cache in caches.values()], shape, label=f"{kind} ({device})")


def _write_of(name: str, layer: AttentionLayer) -> WriteKv:
    update = getattr(layer.impl, "do_kv_cache_update", None)
    if update is None:
        raise ConfigError(
            f"layer {name}: {type(layer.impl).__name__} stores KV only within its forward pass, so how it keeps KV "
            "can't be learned; choose another --attention-backend"
        )
    return lambda keys, values, slots: update(layer, keys, values, layer.kv_cache, slots)


def _in_layer_order(kv_caches: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    numbers = {name: [int(part) for part in name.split(".") if part.isdecimal()] for name in kv_caches}
    if sorted(numbers.values()) != [[layer] for layer in range(num_layers)]:
        raise ConfigError(
            f"vLLM has KV caches for {sorted(kv_caches)}; expected one for each of the {num_layers} layers"
        )
    return {name: kv_caches[name] for name in sorted(kv_caches, key=lambda name: numbers[name])}


def _check_cache(name: str, cache: Tensor, shape: CacheShape) -> None:
    if cache.dim() != 4 or shape.block_tokens % cache.shape[2] != 0:
        raise ConfigError(
            f"layer {name}: its KV cache is {list(cache.shape)}; expected [blocks, heads, tokens, content], "
            f"and a number of tokens that divides the block size, {shape.block_tokens}"
        )
    if cache[0].numel() != cache.shape[2] * 2 * shape.num_kv_heads * shape.head_dim:
        raise ConfigError(
            f"layer {name}: a block of its KV cache is {list(cache.shape[1:])}; expected K and V of {shape.num_kv_heads} heads "
            f"of {shape.head_dim}, for {cache.shape[2]} tokens"
        )
    if cache.dtype != shape.dtype:
        raise ConfigError(
            f"layer {name}: its KV cache is {cache.dtype}, the model {shape.dtype}: KV in another type than the model's, "
            "quantized KV above all, can't be exchanged; use --kv-cache-dtype auto"
        )
    if cache.shape[2] != shape.kernel_tokens or cache.device != shape.device:
        raise ConfigError(
            f"layer {name}: its KV cache {list(cache.shape)} on {cache.device} is unlike the first layer's"
        )


def _view_for(positions: Tensor, cache: Tensor) -> tuple[str, Callable[[Tensor], LayerCache]]:
    """Strides where they do, as they are faster; else the table itself."""
    cells = torch.arange(cache[-1].numel(), device=cache.device).view(1, *cache.shape[1:])
    for kind, view in _STRIDED.items():
        where = view(cells)
        if where.keys.shape[1:] == (positions.shape[2], positions.shape[0], positions.shape[3]) and torch.equal(
            torch.stack((where.keys[0], where.values[0])).permute(2, 0, 1, 3), positions
        ):
            return kind, view
    return "packed, learned", lambda cache: view_packed(cache, positions)


def _check_layer(layer: LayerCache, cache: Tensor, shape: CacheShape, write: WriteKv) -> None:
    whole = PagedLayout([layer], replace(shape, block_tokens=shape.kernel_tokens), label="")
    check_positions(
        cache,
        shape.num_kv_heads,
        shape.head_dim,
        write,
        lambda block: whole.read([block], 0, shape.kernel_tokens)[0],
    )
