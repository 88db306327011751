"""Reads GGUF files, version 3: their metadata and the tensor types that PDD's packaged model uses, as numpy arrays.

A reader for known files, not for hostile ones: sizes are checked against the file, other types are refused by name.
The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Needs numpy only.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pdd.core.errors import ConfigError

Metadata = dict[str, "MetadataValue"]
MetadataValue = str | int | float | bool | list["MetadataValue"]
FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]

_MAGIC = b"GGUF"
_VERSION = 3
_BLOCK = 32  # values per quantization block, of every type read here
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where a tensor lies. ``shape`` is in numpy's order (rows first); ``offset`` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type_code: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """An opened file; its pages are mapped, and read only when a tensor is."""

    path: Path
    metadata: Metadata
    tensors: dict[str, TensorInfo]
    data: ByteArray

    def text(self, key: str) -> str:
        value = self.metadata.get(key)
        if not isinstance(value, str):
            raise ConfigError(f"{self.path}: metadata {key!r} is {value!r}; it must be a string")
        return value

    def integer(self, key: str) -> int:
        value = self.metadata.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{self.path}: metadata {key!r} is {value!r}; it must be an integer")
        return value

    def flag(self, key: str) -> bool:
        value = self.metadata.get(key)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.path}: metadata {key!r} is {value!r}; it must be a boolean")
        return value

    def items(self, key: str) -> list[MetadataValue]:
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise ConfigError(f"{self.path}: metadata {key!r} is missing or not an array")
        return value

    def read_tensor(self, name: str) -> FloatArray:
        """The tensor ``name`` in float32, a fresh array.

        Raises:
            ConfigError: there is none of that name, it lies beyond the file's end, or its type is not supported.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ConfigError(f"{self.path}: there is no tensor {name!r}")
        decoder = _DECODERS.get(info.type_code)
        if decoder is None:
            raise ConfigError(f"{self.path}: tensor {name!r} has type {info.type_code}; readable: {sorted(_DECODERS)}")
        block_bytes, block_values, decode = decoder
        num_blocks = math.prod(info.shape) // block_values
        raw = self.data[info.offset : info.offset + num_blocks * block_bytes]
        if raw.size != num_blocks * block_bytes:
            raise ConfigError(f"{self.path}: tensor {name!r} ends beyond the end of the file")
        return decode(raw.reshape(num_blocks, block_bytes)).reshape(info.shape)


def open_gguf(path: Path) -> GgufFile:
    """Maps the file and parses everything but the tensors.

    Raises:
        ConfigError: the file can't be read, or is not a GGUF file of version 3.
    """
    try:
        with path.open("rb") as file:
            return _parse(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, struct.error, IndexError, KeyError) as error:
        raise ConfigError(f"{path}: not a readable GGUF file ({error})") from error


def undo_llama_permutation(weight: FloatArray, *, num_heads: int) -> FloatArray:
    """Restores the row order of a Llama query or key projection ``[num_heads * head_dim, hidden]``.

    GGUF interleaves the two halves of each head because its rotary embedding turns neighbouring pairs; ours, like
    the published weights, turns a dimension together with the one half a head away.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


class _Cursor:
    """Walks the file's header."""

    __slots__ = ("_buffer", "position")

    def __init__(self, buffer: mmap.mmap, position: int) -> None:
        self._buffer = buffer
        self.position = position

    def scalar(self, code: str) -> int:
        (value,) = struct.unpack_from(code, self._buffer, self.position)
        self.position += struct.calcsize(code)
        return value

    def string(self) -> str:
        size = self.scalar("<Q")
        start = self.position
        self.position = start + size
        return self._buffer[start : self.position].decode()

    def value(self, type_code: int) -> MetadataValue:
        if type_code == _STRING:
            return self.string()
        if type_code == _ARRAY:
            return self._array()
        return self.scalar(_SCALARS[type_code])

    def _array(self) -> list[MetadataValue]:
        item_type = self.scalar("<I")
        size = self.scalar("<Q")
        return [self.value(item_type) for _ in range(size)]


def _parse(path: Path, buffer: mmap.mmap) -> GgufFile:
    if buffer[: len(_MAGIC)] != _MAGIC:
        raise ConfigError(f"{path}: not a GGUF file")
    cursor = _Cursor(buffer, len(_MAGIC))
    version = cursor.scalar("<I")
    if version != _VERSION:
        raise ConfigError(f"{path}: GGUF version {version}; readable: {_VERSION}")
    num_tensors, num_entries = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata: Metadata = {}
    for _ in range(num_entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("<I"))
    described = [_tensor_info(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    base = _round_up(cursor.position, alignment if isinstance(alignment, int) else 32)
    tensors = {
        info.name: TensorInfo(name=info.name, shape=info.shape, type_code=info.type_code, offset=base + info.offset)
        for info in described
    }
    data = np.frombuffer(buffer, np.uint8)
    return GgufFile(path=path, metadata=metadata, tensors=tensors, data=data)


def _tensor_info(cursor: _Cursor) -> TensorInfo:
    name = cursor.string()
    num_dimensions = cursor.scalar("<I")
    shape = tuple(cursor.scalar("<Q") for _ in range(num_dimensions))[::-1]  # the file lists the fastest first
    return TensorInfo(name=name, shape=shape, type_code=cursor.scalar("<I"), offset=cursor.scalar("<Q"))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _decode_f32(raw: ByteArray) -> FloatArray:
    return raw.reshape(-1).copy().view("<f4")


def _decode_q4_1(raw: ByteArray) -> FloatArray:
    """Scale, minimum (float16 each), then 16 bytes: low nibbles are the first 16 values, high nibbles the last 16."""
    head = np.ascontiguousarray(raw[:, :4]).view("<f2").astype(np.float32)
    nibbles = raw[:, 4:]
    values = np.empty((len(raw), _BLOCK), np.float32)
    values[:, :16] = nibbles & 0x0F
    values[:, 16:] = nibbles >> 4
    values *= head[:, :1]
    values += head[:, 1:]
    return values


def _decode_q8_0(raw: ByteArray) -> FloatArray:
    """Scale (float16), then 32 signed bytes."""
    scale = np.ascontiguousarray(raw[:, :2]).view("<f2").astype(np.float32)
    return raw[:, 2:].view(np.int8) * scale


_Decoder = tuple[int, int, Callable[[ByteArray], FloatArray]]

# type code -> bytes per block, values per block, decoder
_DECODERS: dict[int, _Decoder] = {
    0: (4, 1, _decode_f32),
    3: (20, _BLOCK, _decode_q4_1),
    8: (34, _BLOCK, _decode_q8_0),
}
