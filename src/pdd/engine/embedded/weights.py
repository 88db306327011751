# pyright: basic
"""A model's weights as torch tensors, from a GGUF file or from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from pdd.core.errors import ConfigError
from pdd.engine.catalog import LlamaShape, ModelEntry, NoWeights, PackagedGguf, SeededWeights
from pdd.engine.gguf import GgufFile, open_gguf, undo_llama_permutation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer; matrices are ``[outputs, inputs]``. ``qkv`` stacks query, key and value rows."""

    attention_norm: Tensor
    qkv: Tensor
    attention_output: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """Everything. ``layers`` can be walked once: each layer is read when it is asked for, so no second copy of the model exists.

    ``embedding`` ``[vocab, hidden]`` is the output projection too.
    """

    shape: LlamaShape
    embedding: Tensor
    final_norm: Tensor
    layers: Iterator[LayerWeights]


def load_weights(entry: ModelEntry) -> ModelWeights:
    """Opens the weights of ``entry``.

    Raises:
        ConfigError: they are missing, malformed, or the model has none.
    """
    match entry.weights:
        case PackagedGguf(shape=shape) as packaged:
            return _from_gguf(open_gguf(packaged.path()), shape)
        case SeededWeights(shape=shape, seed=seed):
            return _from_seed(shape, seed)
        case NoWeights():
            raise ConfigError(f"model {entry.name!r} has no weights: the embedded engine can't run it")
        case _:
            assert_never(entry.weights)


def _from_gguf(file: GgufFile, shape: LlamaShape) -> ModelWeights:
    _check_shape(file, shape)
    return ModelWeights(
        shape=shape,
        embedding=torch.from_numpy(file.read_tensor("token_embd.weight")),
        final_norm=torch.from_numpy(file.read_tensor("output_norm.weight")),
        layers=(_gguf_layer(file, shape, index) for index in range(shape.num_layers)),
    )


def _check_shape(file: GgufFile, shape: LlamaShape) -> None:
    expected = {
        "llama.block_count": shape.num_layers,
        "llama.embedding_length": shape.hidden_size,
        "llama.feed_forward_length": shape.intermediate_size,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.vocab_size": shape.vocab_size,
    }
    for key, value in expected.items():
        if file.integer(key) != value:
            raise ConfigError(f"{file.path}: {key} is {file.integer(key)}; this model has {value}")


def _gguf_layer(file: GgufFile, shape: LlamaShape, index: int) -> LayerWeights:
    def read(name: str) -> np.ndarray:
        return file.read_tensor(f"blk.{index}.{name}.weight")

    query = undo_llama_permutation(read("attn_q"), num_heads=shape.num_heads)
    key = undo_llama_permutation(read("attn_k"), num_heads=shape.num_kv_heads)
    return LayerWeights(
        attention_norm=torch.from_numpy(read("attn_norm")),
        qkv=torch.from_numpy(np.concatenate((query, key, read("attn_v")))),
        attention_output=torch.from_numpy(read("attn_output")),
        mlp_norm=torch.from_numpy(read("ffn_norm")),
        gate=torch.from_numpy(read("ffn_gate")),
        up=torch.from_numpy(read("ffn_up")),
        down=torch.from_numpy(read("ffn_down")),
    )


def _from_seed(shape: LlamaShape, seed: int) -> ModelWeights:
    # RandomState, not Generator: numpy promises that its stream never changes, and two engines must get the same weights.
    random = np.random.RandomState(seed)

    def matrix(outputs: int, inputs: int, gain: float) -> Tensor:
        return torch.from_numpy((random.standard_normal((outputs, inputs)) * gain / inputs**0.5).astype(np.float32))

    def layer() -> LayerWeights:
        hidden, heads = shape.hidden_size, shape.num_heads * shape.head_dim
        # Gains above 1 let what a layer adds outweigh the embedding that it is added to: otherwise a model with a tied
        # embedding just repeats its last token.
        return LayerWeights(
            attention_norm=torch.ones(hidden),
            qkv=matrix(heads + 2 * shape.num_kv_heads * shape.head_dim, hidden, 1.5),
            attention_output=matrix(hidden, heads, 4.0),
            mlp_norm=torch.ones(hidden),
            gate=matrix(shape.intermediate_size, hidden, 2.0),
            up=matrix(shape.intermediate_size, hidden, 2.0),
            down=matrix(hidden, shape.intermediate_size, 4.0),
        )

    return ModelWeights(
        shape=shape,
        embedding=matrix(shape.vocab_size, shape.hidden_size, 1.0),
        final_norm=torch.ones(shape.hidden_size),
        layers=(layer() for _ in range(shape.num_layers)),
    )
