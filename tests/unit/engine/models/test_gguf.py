import struct

import numpy as np
import pytest

from pdd.core.errors import ConfigError
from pdd.engine.models.gguf import open_gguf, undo_llama_permutation


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _file(path, tensors: list[tuple[str, tuple[int, ...], int, bytes]], *, version=3, magic=b"GGUF"):
    """Writes a GGUF file with four metadata entries; tensor shapes are given rows first."""
    entries = [
        _string("a.text") + struct.pack("<I", 8) + _string("héllo"),
        _string("a.number") + struct.pack("<II", 4, 30),
        _string("a.flag") + struct.pack("<IB", 7, 1),
        _string("a.list") + struct.pack("<IIQ", 9, 8, 2) + _string("x") + _string("y"),
    ]
    header = magic + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries)
    body = b""
    for name, shape, code, raw in tensors:
        dimensions = struct.pack(f"<{len(shape)}Q", *shape[::-1])
        header += _string(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", code, len(body))
        body += raw + b"\0" * (-len(raw) % 32)
    path.write_bytes(header + b"\0" * (-len(header) % 32) + body)
    return path


def test_metadata_of_every_used_kind_is_read(tmp_path):
    file = open_gguf(_file(tmp_path / "m.gguf", []))
    assert file.text("a.text") == "héllo"
    assert file.integer("a.number") == 30
    assert file.flag("a.flag") is True
    assert file.items("a.list") == ["x", "y"]


@pytest.mark.parametrize("method", ["text", "integer", "flag", "items"])
def test_missing_metadata_is_refused_with_its_key(tmp_path, method):
    file = open_gguf(_file(tmp_path / "m.gguf", []))
    with pytest.raises(ConfigError, match="nothing"):
        getattr(file, method)("nothing")


def test_float32_tensors_keep_their_shape_and_order(tmp_path):
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    other = np.full(4, 7, "<f4")
    tensors = [("other", (4,), 0, other.tobytes()), ("values", (2, 3), 0, values.tobytes())]
    file = open_gguf(_file(tmp_path / "m.gguf", tensors))
    np.testing.assert_array_equal(file.read_tensor("values"), values)
    np.testing.assert_array_equal(file.read_tensor("other"), other)


def test_q4_1_blocks_are_scale_times_nibble_plus_minimum(tmp_path):
    nibbles = np.random.default_rng(0).integers(0, 16, size=(2, 32), dtype=np.uint8)
    heads = np.array([[0.5, -2.0], [0.25, 1.0]], "<f2")
    raw = b"".join(
        head.tobytes() + (row[:16] | (row[16:] << 4)).tobytes() for head, row in zip(heads, nibbles, strict=True)
    )
    file = open_gguf(_file(tmp_path / "m.gguf", [("w", (1, 64), 3, raw)]))
    expected = nibbles * heads[:, :1].astype(np.float32) + heads[:, 1:].astype(np.float32)
    np.testing.assert_array_equal(file.read_tensor("w"), expected.reshape(1, 64))


def test_q8_0_blocks_are_scale_times_signed_byte(tmp_path):
    numbers = np.arange(-16, 16, dtype=np.int8)
    raw = np.array([0.125], "<f2").tobytes() + numbers.tobytes()
    file = open_gguf(_file(tmp_path / "m.gguf", [("w", (32,), 8, raw)]))
    np.testing.assert_array_equal(file.read_tensor("w"), numbers * np.float32(0.125))


def test_unsupported_types_and_unknown_names_are_refused_by_name(tmp_path):
    file = open_gguf(_file(tmp_path / "m.gguf", [("w", (32,), 14, b"\0" * 210)]))
    with pytest.raises(ConfigError, match=r"'w' has type 14"):
        file.read_tensor("w")
    with pytest.raises(ConfigError, match=r"no tensor 'v'"):
        file.read_tensor("v")


def test_a_tensor_beyond_the_end_is_refused(tmp_path):
    file = open_gguf(_file(tmp_path / "m.gguf", [("w", (1024,), 0, b"\0" * 32)]))
    with pytest.raises(ConfigError, match="beyond the end"):
        file.read_tensor("w")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, just text", b"GGUF\x03\0\0\0" + b"\xff" * 64])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"m\.gguf"):
        open_gguf(path)


def test_another_version_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="version 2"):
        open_gguf(_file(tmp_path / "m.gguf", [], version=2))


def test_a_missing_file_is_refused_as_configuration(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        open_gguf(tmp_path / "nowhere.gguf")


def test_the_llama_permutation_is_undone():
    heads, head_dim, columns = 3, 8, 5
    published = np.random.default_rng(1).normal(size=(heads * head_dim, columns)).astype(np.float32)
    halves = published.reshape(heads, 2, head_dim // 2, columns)
    in_the_file = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(published.shape)
    np.testing.assert_array_equal(undo_llama_permutation(in_the_file, num_heads=heads), published)
