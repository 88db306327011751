"""Tells a model's weights from all others', without reading all of them.

Two copies of one model have one revision wherever they lie and however their tensors are spread over files; a fine-tune
has another. What is hashed: the configuration, and of every tensor its name, type, shape and four kilobytes of its
content, spread evenly from its first byte to its last. Training, merging and quantizing change all of a tensor; who
edits single numbers by hand, between those kilobytes, gets the revision of the original.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from pdd.core.errors import ConfigError
from pdd.engine.models.safetensors import TensorBytes, read_header

_SAMPLE_BYTES = 1024
_NUM_SAMPLES = 4
_DIGITS = 24
REVISION_FILE = "pdd-revision"
"""Holds the revision of a folder that has been left without its weights."""
_INDEX = "model.safetensors.index.json"
_SINGLE_FILE = "model.safetensors"
_WITHOUT_EFFECT = frozenset(
    {"_name_or_path", "transformers_version", "use_cache", "dtype", "torch_dtype"}
    | {"bos_token_id", "eos_token_id", "pad_token_id"}
)
"""What tools rewrite when they save a model again, and no key or value depends on. Its type is in the KV format."""


def derive_revision(folder: Path, config: Mapping[str, object]) -> str:
    """24 hexadecimal digits. Reads some kilobytes of every tensor, or what stands for them.

    Raises:
        ConfigError: the folder has no safetensors, or they are damaged.
    """
    files = _weight_files(folder)
    if not files:
        return _read_revision(folder)
    essential = {key: value for key, value in config.items() if key not in _WITHOUT_EFFECT}
    tensors: dict[str, bytes] = {}
    for path in files:
        try:
            with path.open("rb") as file:
                for name, tensor in read_header(path, file).items():
                    tensors[name] = _fingerprint(file, tensor)
        except OSError as error:
            raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    content = hashlib.sha256(b"pdd-revision-v1\0" + msgspec.json.encode(essential, order="sorted"))
    for name in sorted(tensors):
        content.update(hashlib.sha256(name.encode()).digest() + tensors[name])
    return content.hexdigest()[:_DIGITS]


def _fingerprint(file: BinaryIO, tensor: TensorBytes) -> bytes:
    content = hashlib.sha256(f"{tensor.header.dtype}{list(tensor.header.shape)}\0".encode())
    size = tensor.num_bytes
    if size <= _SAMPLE_BYTES * _NUM_SAMPLES:
        windows = ((0, size),)
    else:
        last = size - _SAMPLE_BYTES
        windows = tuple((last * index // (_NUM_SAMPLES - 1), _SAMPLE_BYTES) for index in range(_NUM_SAMPLES))
    for start, length in windows:
        file.seek(tensor.offset + start)
        content.update(file.read(length))
    return content.digest()


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """What an engine loads: the files of the index if there is one. Folders often hold the weights a second time."""
    index = folder / _INDEX
    if index.is_file():
        try:
            names = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{index}: can't be read: {error}") from error
        return tuple(folder / name for name in sorted(set(names)))
    if (folder / _SINGLE_FILE).is_file():
        return (folder / _SINGLE_FILE,)
    return ()


def _read_revision(folder: Path) -> str:
    path = folder / REVISION_FILE
    if not path.is_file():
        raise ConfigError(
            f"{folder}: it has no {_SINGLE_FILE} and no {_INDEX}; weights in other formats are not served"
        )
    revision = path.read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", revision):
        raise ConfigError(f"{path}: {revision[:_DIGITS]!r} is no revision; export the folder again")
    return revision
