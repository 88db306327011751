"""PDD's own models, written as Hugging Face folders."""

import threading

import numpy as np
import pytest

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType
from pdd.engine.catalog import find_model
from pdd.engine.checkpoint import checkpoint_folder, export_checkpoint
from pdd.engine.models.safetensors import read_header, write_float32
from pdd.engine.models.tensors import read_tensors
from tests.support.published import TINY, tiny_folder


def read(folder):
    """Every tensor of a written folder."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    with path.open("rb") as file:
        return {
            name: np.frombuffer(content, "<f4", each.num_bytes // 4, each.offset).reshape(each.header.shape)
            for name, each in read_header(path, file).items()
        }


def test_the_folder_holds_what_the_embedded_engine_computes_with(tmp_path):
    written = read(tiny_folder(tmp_path))
    model = read_tensors(find_model(TINY).weights)
    np.testing.assert_array_equal(written.pop("model.embed_tokens.weight"), model.embedding)
    np.testing.assert_array_equal(written.pop("model.norm.weight"), model.final_norm)
    for index, layer in enumerate(model.layers):
        prefix = f"model.layers.{index}."
        qkv = [written.pop(f"{prefix}self_attn.{name}_proj.weight") for name in "qkv"]
        assert [len(rows) for rows in qkv] == [128, 64, 64]
        np.testing.assert_array_equal(np.concatenate(qkv), layer.qkv)
        for name, tensor in {
            "input_layernorm": layer.attention_norm,
            "self_attn.o_proj": layer.attention_output,
            "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": layer.gate,
            "mlp.up_proj": layer.up,
            "mlp.down_proj": layer.down,
        }.items():
            np.testing.assert_array_equal(written.pop(f"{prefix}{name}.weight"), tensor)
    assert not written


def test_a_written_model_has_the_shape_and_the_text_side_of_the_one_in_the_catalog(tmp_path):
    original, copy = find_model(TINY), find_model(str(tiny_folder(tmp_path)))
    assert copy.kv_format(16).layers == original.kv_format(16).layers
    assert (copy.vocab_size, copy.max_model_tokens, copy.kv_dtype) == (512, 8192, DType.FLOAT32)
    ours, theirs = original.load_text(), copy.load_text()
    assert theirs.stop_token_ids == ours.stop_token_ids
    assert (theirs.bos_token, theirs.eos_token, theirs.chat_template) == (
        *(ours.bos_token, ours.eos_token),
        ours.chat_template,
    )
    assert theirs.tokenizer.to_str() == ours.tokenizer.to_str()


def test_the_folder_is_written_once(tmp_path):
    entry = find_model(TINY)
    folder = checkpoint_folder(entry, tmp_path / "cache")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert checkpoint_folder(entry, tmp_path / "cache") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert list((tmp_path / "cache").iterdir()) == [folder]


def test_of_several_that_write_it_at_once_all_get_the_same_whole_folder(tmp_path):
    entry, found = find_model(TINY), []
    writers = [threading.Thread(target=lambda: found.append(checkpoint_folder(entry, tmp_path))) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(found) == 4
    assert list(tmp_path.iterdir()) == [found[0]]
    assert len(read(found[0])) == 2 + 2 * 9


def test_a_published_folder_is_its_own_checkpoint(tmp_path):
    folder = tiny_folder(tmp_path)
    assert checkpoint_folder(find_model(str(folder)), tmp_path / "cache") == folder


def test_without_its_weights_a_folder_is_the_same_model_to_routers_and_nodes(tmp_path):
    whole = find_model(str(tiny_folder(tmp_path)))
    export_checkpoint(whole, tmp_path / "light")
    light = find_model(str(tmp_path / "light"))
    assert not list((tmp_path / "light").glob("*.safetensors"))
    assert light.kv_format(16).fingerprint == whole.kv_format(16).fingerprint
    assert light.load_text().tokenizer.to_str() == whole.load_text().tokenizer.to_str()
    export_checkpoint(light, tmp_path / "again")
    assert find_model(str(tmp_path / "again")).identity == whole.identity


def test_where_there_are_weights_they_count_and_not_what_stood_for_them(tmp_path):
    folder = tiny_folder(tmp_path)
    identity = find_model(str(folder)).identity
    (folder / "pdd-revision").write_text("0" * 24)
    assert find_model(str(folder)).identity == identity
    (folder / "model.safetensors").unlink()
    assert find_model(str(folder)).identity == f"LlamaForCausalLM@{'0' * 24}"
    (folder / "pdd-revision").write_text("main")
    with pytest.raises(ConfigError, match=r"pdd-revision: 'main' is no revision"):
        find_model(str(folder))


def test_a_model_without_weights_is_not_written(tmp_path):
    with pytest.raises(ConfigError, match="'scripted' has no weights"):
        checkpoint_folder(find_model("scripted"), tmp_path)


def test_nothing_that_exists_is_written_over_and_no_remains_are_left(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="exists already"):
        export_checkpoint(find_model(TINY), tmp_path / "taken")
    with pytest.raises(ConfigError, match="can't write"):
        export_checkpoint(find_model(TINY), tmp_path / "taken" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("tensors", [[("a", (2, 3)), ("c", (4,))], [("a", (3, 2)), ("b", (4,))], [("a", (2, 3))]])
def test_tensors_that_are_not_those_announced_are_a_programming_error(tmp_path, tensors):
    with pytest.raises(ValueError, match=r"due|zip"):
        write_float32(
            tmp_path / "x",
            {"a": (2, 3), "b": (4,)},
            [(name, np.zeros(shape, np.float32)) for name, shape in tensors],
        )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02\0\0\0\0\0\0\0[]",
        b"\xff" * 16,
        b'\x40\0\0\0\0\0\0\0{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}',
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(ConfigError, match=r"model.safetensors: "):
        read_header(path, file)
