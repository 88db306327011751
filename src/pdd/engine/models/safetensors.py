"""The safetensors file format: eight bytes of length, a JSON header that says where each tensor lies, then raw bytes.

Described at https://huggingface.co/docs/safetensors. Needs numpy only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import msgspec

from pdd.engine.models.gguf import FloatArray

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8


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
