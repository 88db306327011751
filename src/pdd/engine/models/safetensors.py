"""The safetensors file format: eight bytes of length, a JSON header that says where each tensor lies, then raw bytes.

Described at https://huggingface.co/docs/safetensors. Needs numpy only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import SEEK_END
from math import prod
from pathlib import Path
from typing import BinaryIO

import msgspec

from pdd.core.errors import ConfigError
from pdd.engine.models.gguf import FloatArray

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8
_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


class TensorHeader(msgspec.Struct, frozen=True):
    """What a file says of one tensor. ``data_offsets`` count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBytes:
    """One tensor's place in a file: ``offset`` counts from the file's beginning."""

    header: TensorHeader
    offset: int

    @property
    def num_bytes(self) -> int:
        start, end = self.header.data_offsets
        return end - start


def read_header(path: Path, file: BinaryIO) -> dict[str, TensorBytes]:
    """Every tensor of an open file by its name.

    Raises:
        ConfigError: it is not a safetensors file, or ends too early.
        OSError: it can't be read.
    """
    start = file.read(_LENGTH.size)
    length = int.from_bytes(start, "little")
    if len(start) < _LENGTH.size or length > _MAX_HEADER_BYTES:
        raise ConfigError(f"{path}: not a safetensors file")
    try:
        raw = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        headers = {name: msgspec.json.decode(value, type=TensorHeader) for name, value in raw.items()}
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not a safetensors file ({error})") from error
    base = _LENGTH.size + length
    size = file.seek(0, SEEK_END)
    for name, header in headers.items():
        first, end = header.data_offsets
        if not 0 <= first <= end <= size - base:
            raise ConfigError(f"{path}: tensor {name!r} ends beyond the end of the file; copy the model again")
    return {name: TensorBytes(header=header, offset=base + header.data_offsets[0]) for name, header in headers.items()}


def write_float32(path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, FloatArray]]) -> None:
    """Writes ``tensors``, which come one by one in the order of ``shapes``, so that they need not all be in memory.

    Raises:
        ValueError: one has another name or shape than ``shapes`` says.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (start, end)}
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with path.open("xb") as file:
        file.write(_LENGTH.pack(len(encoded)) + encoded)
        for (name, tensor), (expected, shape) in zip(tensors, shapes.items(), strict=True):
            if name != expected or tensor.shape != shape:
                raise ValueError(f"tensor {name!r} {tensor.shape} comes where {expected!r} {shape} is due")
            file.write(tensor.astype("<f4", order="C", copy=False).data)
