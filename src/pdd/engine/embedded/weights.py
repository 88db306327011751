# pyright: basic
"""A model's weights as torch tensors, over the arrays of ``engine.models.tensors``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import assert_never

import torch
from torch import Tensor

from pdd.core.errors import ConfigError
from pdd.engine.catalog import ModelEntry
from pdd.engine.models.sources import LlamaShape, NoWeights, PackagedGguf, SeededWeights
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
        case PackagedGguf() | SeededWeights() as weights:
            tensors = read_tensors(weights)
        case NoWeights():
            raise ConfigError(f"model {entry.name!r} has no weights: the embedded engine can't run it")
        case _:
            assert_never(entry.weights)
    return ModelWeights(
        shape=tensors.shape,
        embedding=torch.from_numpy(tensors.embedding),
        final_norm=torch.from_numpy(tensors.final_norm),
        layers=map(_layer, tensors.layers),
    )


def _layer(tensors: LayerTensors) -> LayerWeights:
    return LayerWeights(**{each.name: torch.from_numpy(getattr(tensors, each.name)) for each in fields(LayerTensors)})
