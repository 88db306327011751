# pyright: basic
"""A model's weights as torch tensors, over the arrays of ``engine.models.tensors``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pdd.engine.catalog import ModelEntry, embedded_weights
from pdd.engine.models.sources import LlamaShape
from pdd.engine.models.tensors import LayerTensors, read_tensors


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
    """Everything. ``layers`` can be walked once: each layer is read when it is asked for, so no second copy of the
    model exists.

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
    tensors = read_tensors(embedded_weights(entry))
    return ModelWeights(
        shape=tensors.shape,
        embedding=torch.from_numpy(tensors.embedding),
        final_norm=torch.from_numpy(tensors.final_norm),
        layers=map(_layer, tensors.layers),
    )


def _layer(tensors: LayerTensors) -> LayerWeights:
    return LayerWeights(**{each.name: torch.from_numpy(getattr(tensors, each.name)) for each in fields(LayerTensors)})
