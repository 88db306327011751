"""The tensors of PDD's own models as float32 numpy arrays, from a GGUF file or from a seed: the one place that defines
them.

The embedded engine computes with them, and ``checkpoint`` writes them for others. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pdd.core.errors import ConfigError
from pdd.engine.models.gguf import FloatArray, GgufFile, open_gguf, undo_llama_permutation
from pdd.engine.models.sources import LlamaShape, PackagedGguf, SeededWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """One decoder layer; matrices are ``[outputs, inputs]``. ``qkv`` stacks query, key and value rows."""

    attention_norm: FloatArray
    qkv: FloatArray
    attention_output: FloatArray
    mlp_norm: FloatArray
    gate: FloatArray
    up: FloatArray
    down: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """Everything. ``layers`` can be walked once: each layer is read when it is asked for, so no second copy of the
    model exists.

    ``embedding`` ``[vocab, hidden]`` is the output projection too.
    """

    shape: LlamaShape
    embedding: FloatArray
    final_norm: FloatArray
    layers: Iterator[LayerTensors]


def read_tensors(weights: PackagedGguf | SeededWeights) -> ModelTensors:
    """Opens a model's tensors.

    Raises:
        ConfigError: they are missing or malformed.
    """
    match weights:
        case PackagedGguf(shape=shape):
            return _from_gguf(open_gguf(weights.path()), shape)
        case SeededWeights(shape=shape, seed=seed):
            return _from_seed(shape, seed)


def _from_gguf(file: GgufFile, shape: LlamaShape) -> ModelTensors:
    _check_shape(file, shape)
    return ModelTensors(
        shape=shape,
        embedding=file.read_tensor("token_embd.weight"),
        final_norm=file.read_tensor("output_norm.weight"),
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


def _gguf_layer(file: GgufFile, shape: LlamaShape, index: int) -> LayerTensors:
    def read(name: str) -> FloatArray:
        return file.read_tensor(f"blk.{index}.{name}.weight")

    query = undo_llama_permutation(read("attn_q"), num_heads=shape.num_heads)
    key = undo_llama_permutation(read("attn_k"), num_heads=shape.num_kv_heads)
    return LayerTensors(
        attention_norm=read("attn_norm"),
        qkv=np.concatenate((query, key, read("attn_v"))),
        attention_output=read("attn_output"),
        mlp_norm=read("ffn_norm"),
        gate=read("ffn_gate"),
        up=read("ffn_up"),
        down=read("ffn_down"),
    )


def _from_seed(shape: LlamaShape, seed: int) -> ModelTensors:
    # RandomState, not Generator: numpy promises that its stream never changes, and two engines must get the same
    # weights.
    random = np.random.RandomState(seed)

    def matrix(outputs: int, inputs: int, gain: float) -> FloatArray:
        return (random.standard_normal((outputs, inputs)) * gain / inputs**0.5).astype(np.float32)

    def ones() -> FloatArray:
        return np.ones(shape.hidden_size, np.float32)

    def layer() -> LayerTensors:
        hidden, heads = shape.hidden_size, shape.num_heads * shape.head_dim
        # Gains above 1 let what a layer adds outweigh the embedding that it is added to: otherwise a model with a tied
        # embedding just repeats its last token.
        return LayerTensors(
            attention_norm=ones(),
            qkv=matrix(heads + 2 * shape.num_kv_heads * shape.head_dim, hidden, 1.5),
            attention_output=matrix(hidden, heads, 4.0),
            mlp_norm=ones(),
            gate=matrix(shape.intermediate_size, hidden, 2.0),
            up=matrix(shape.intermediate_size, hidden, 2.0),
            down=matrix(hidden, shape.intermediate_size, 4.0),
        )

    return ModelTensors(
        shape=shape,
        embedding=matrix(shape.vocab_size, shape.hidden_size, 1.0),
        final_norm=ones(),
        layers=(layer() for _ in range(shape.num_layers)),
    )
