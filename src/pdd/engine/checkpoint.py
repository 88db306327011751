"""Writes models as Hugging Face folders: PDD's own for engines that read nothing else, others' without their weights.

Weights are float32, exactly what the embedded engine computes with: whoever loads such a folder in float32 runs the
same model. A folder appears whole or not at all, whoever else writes it at the same time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import assert_never

import msgspec

from pdd.core.errors import ConfigError
from pdd.engine.catalog import ModelEntry
from pdd.engine.models.gguf import FloatArray
from pdd.engine.models.revision import REVISION_FILE
from pdd.engine.models.safetensors import write_float32
from pdd.engine.models.sources import HuggingFaceFolder, LlamaShape, NoWeights, PackagedGguf, SeededWeights
from pdd.engine.models.tensors import ModelTensors, read_tensors
from pdd.engine.models.text import TextAssets

_VERSION = 1
"""Raised when what this module writes changes: folders of older versions are then not used any more."""

_FILES_BESIDE_WEIGHTS = (
    *("config.json", "generation_config.json", "hf_quant_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
)


def checkpoint_folder(entry: ModelEntry, cache_root: Path) -> Path:
    """The folder of ``entry``: its own if it is one, else one below ``cache_root``, written when it isn't there yet.

    Writing blocks for seconds.

    Raises:
        ConfigError: the model has no weights, or the folder can't be written.
    """
    if isinstance(entry.weights, HuggingFaceFolder):
        return entry.weights.folder
    folder = cache_root / f"{entry.identity.replace('@', '-')}-{_VERSION}"
    if not folder.is_dir():
        _write_whole(_writer_of(entry), folder)
    return folder


def export_checkpoint(entry: ModelEntry, folder: Path) -> None:
    """Writes ``entry`` to ``folder``, which must not exist. Of a model that is a folder already, all but the weights.

    Raises:
        ConfigError: the model has no weights, or the folder exists or can't be written.
    """
    write = _writer_of(entry)
    if folder.exists():
        raise ConfigError(f"{folder}: it exists already; name a folder that does not")
    _write_whole(write, folder)


def _write_whole(write: Callable[[Path], None], folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # On the same file system, so that renaming is atomic; of two writers the later finds a full folder there and
        # yields.
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            write(temporary)
            temporary.chmod(0o755)
            if not folder.is_dir():
                _rename(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"{folder}: can't write a model there: {error}") from error


def _rename(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _writer_of(entry: ModelEntry) -> Callable[[Path], None]:
    match entry.weights:
        case PackagedGguf() | SeededWeights() as weights:
            return partial(_write, entry, weights)
        case HuggingFaceFolder(folder=source):
            return partial(_copy_without_weights, entry, source)
        case NoWeights():
            raise ConfigError(f"model {entry.name!r} has no weights: there is nothing to write")
        case _:
            assert_never(entry.weights)


def _copy_without_weights(entry: ModelEntry, source: Path, folder: Path) -> None:
    """What routers and KV nodes read. The revision stands for the weights: they can't be sampled there."""
    for name in _FILES_BESIDE_WEIGHTS:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    _, _, revision = entry.identity.partition("@")
    (folder / REVISION_FILE).write_text(f"{revision}\n", encoding="utf-8")


def _write(entry: ModelEntry, weights: PackagedGguf | SeededWeights, folder: Path) -> None:
    text = entry.load_text()
    text.tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(entry, text))
    _write_json(folder / "config.json", _config(entry, weights.shape, text))
    _write_json(folder / "generation_config.json", {"eos_token_id": sorted(text.stop_token_ids)})
    write_float32(folder / "model.safetensors", _shapes(weights.shape), _tensors(read_tensors(weights)))


def _write_json(path: Path, value: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")


def _config(entry: ModelEntry, shape: LlamaShape, text: TextAssets) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": entry.max_model_tokens,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": _token_id(text, text.bos_token),
        "eos_token_id": _token_id(text, text.eos_token),
    }


def _tokenizer_config(entry: ModelEntry, text: TextAssets) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": entry.max_model_tokens,
        "bos_token": text.bos_token,
        "eos_token": text.eos_token,
        "chat_template": text.chat_template,
        "clean_up_tokenization_spaces": False,
    }


def _token_id(text: TextAssets, token: str | None) -> int | None:
    return None if token is None else text.tokenizer.token_to_id(token)


def _shapes(shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    """Every tensor by its published name, in the order in which ``_tensors`` reads them."""
    hidden, head_dim = shape.hidden_size, shape.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    for index in range(shape.num_layers):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (shape.num_heads * head_dim, hidden),
            f"{layer}.self_attn.k_proj.weight": (shape.num_kv_heads * head_dim, hidden),
            f"{layer}.self_attn.v_proj.weight": (shape.num_kv_heads * head_dim, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, shape.num_heads * head_dim),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (shape.intermediate_size, hidden),
            f"{layer}.mlp.up_proj.weight": (shape.intermediate_size, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, shape.intermediate_size),
        }
    return shapes


def _tensors(model: ModelTensors) -> Iterator[tuple[str, FloatArray]]:
    shape = model.shape
    yield "model.embed_tokens.weight", model.embedding
    yield "model.norm.weight", model.final_norm
    for index, tensors in enumerate(model.layers):
        layer = f"model.layers.{index}"
        first_key = shape.num_heads * shape.head_dim
        first_value = first_key + shape.num_kv_heads * shape.head_dim
        yield f"{layer}.input_layernorm.weight", tensors.attention_norm
        yield f"{layer}.self_attn.q_proj.weight", tensors.qkv[:first_key]
        yield f"{layer}.self_attn.k_proj.weight", tensors.qkv[first_key:first_value]
        yield f"{layer}.self_attn.v_proj.weight", tensors.qkv[first_value:]
        yield f"{layer}.self_attn.o_proj.weight", tensors.attention_output
        yield f"{layer}.post_attention_layernorm.weight", tensors.mlp_norm
        yield f"{layer}.mlp.gate_proj.weight", tensors.gate
        yield f"{layer}.mlp.up_proj.weight", tensors.up
        yield f"{layer}.mlp.down_proj.weight", tensors.down
