"""Where a model's weights are, and their shape. Opens nothing."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """A decoder of the Llama family: RMS norm, rotary embedding, grouped-query attention, gated SiLU, tied
    embedding.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float
    norm_epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedGguf:
    """Weights in a GGUF file inside an installed Python package, which is located but never imported."""

    package: str
    filename: str
    shape: LlamaShape

    def path(self) -> Path:
        """Raises ConfigError when the package, or the file in it, is missing."""
        found = importlib.util.find_spec(self.package)
        for folder in (found.submodule_search_locations if found else None) or ():
            candidate = Path(folder) / self.filename
            if candidate.is_file():
                return candidate
        raise ConfigError(
            f"the weights {self.filename} of package {self.package!r} are not installed: run `make install`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededWeights:
    """Random weights, the same from the same ``seed`` everywhere; for tests."""

    seed: int
    shape: LlamaShape


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWeights:
    """A scripted model: tokens follow a rule, and its KV is ``floats_per_token`` numbers in one layer."""

    floats_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceFolder:
    """A published model: ``config.json``, safetensors, tokenizer. Its every layer caches K and V of one shape.

    ``folder`` is absolute. ``dtype`` is what the model is published to be computed in, if its configuration says so.
    """

    folder: Path
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: DType | None


Weights = PackagedGguf | SeededWeights | NoWeights | HuggingFaceFolder
