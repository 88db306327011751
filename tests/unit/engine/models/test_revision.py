"""One model, one revision; another model, another."""

import json
import shutil

import numpy as np
import pytest

from pdd.core.errors import ConfigError
from pdd.engine.models.revision import derive_revision
from pdd.engine.models.safetensors import write_float32
from tests.support.published import edit_json, tiny_folder

BIG = (256, 300)


def folder_of(parent, tensors, *, files=1):
    """``tensors`` spread over so many files."""
    parent.mkdir()
    parts = [dict(list(tensors.items())[number::files]) for number in range(files)]
    names = ["model.safetensors"] if files == 1 else [f"model-{number}.safetensors" for number in range(files)]
    for name, part in zip(names, parts, strict=True):
        write_float32(parent / name, {key: value.shape for key, value in part.items()}, part.items())
    if files > 1:
        where = {key: name for name, part in zip(names, parts, strict=True) for key in part}
        (parent / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return parent


def weights(seed=0):
    random = np.random.RandomState(seed)
    return {name: random.standard_normal(BIG).astype(np.float32) for name in ("a", "b", "c")}


def test_it_does_not_depend_on_how_tensors_are_spread_over_files(tmp_path):
    whole = derive_revision(folder_of(tmp_path / "1", weights()), {})
    assert derive_revision(folder_of(tmp_path / "2", weights(), files=2), {}) == whole
    assert len(whole) == 24


def test_files_beside_those_of_the_index_do_not_count(tmp_path):
    folder = folder_of(tmp_path / "2", weights(), files=2)
    before = derive_revision(folder, {})
    shutil.copy(folder / "model-0.safetensors", folder / "consolidated.safetensors")
    assert derive_revision(folder, {}) == before


def test_other_weights_other_names_and_other_settings_have_other_revisions(tmp_path):
    first, trained, renamed, cut = weights(), weights(), weights(), weights()
    trained["b"] += 1e-6
    renamed["d"] = renamed.pop("c")
    cut["c"] = cut["c"].reshape(BIG[::-1])
    revisions = [
        derive_revision(folder_of(tmp_path / str(number), each), {"rope_theta": 1e4})
        for number, each in enumerate((first, trained, renamed, cut))
    ]
    revisions.append(derive_revision(tmp_path / "0", {"rope_theta": 1e5}))
    assert len(set(revisions)) == 5


def test_the_first_and_the_last_number_of_a_tensor_count(tmp_path):
    first, last = weights(), weights()
    first["a"][0, 0] += 1
    last["a"][-1, -1] += 1
    several = [
        derive_revision(folder_of(tmp_path / str(n), each), {}) for n, each in enumerate((weights(), first, last))
    ]
    assert len(set(several)) == 3


def test_what_tools_rewrite_does_not_count(tmp_path):
    folder = tiny_folder(tmp_path)
    before = derive_revision(folder, json.loads((folder / "config.json").read_text()))
    edit_json(folder / "config.json", torch_dtype=None, dtype="float32", transformers_version="9.9", eos_token_id=[1])
    assert derive_revision(folder, json.loads((folder / "config.json").read_text())) == before


def test_a_folder_without_safetensors_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ConfigError, match=r"no model.safetensors"):
        derive_revision(tmp_path, {})


def test_a_file_that_the_index_names_and_nobody_copied_is_refused(tmp_path):
    folder = folder_of(tmp_path / "2", weights(), files=2)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model-1.safetensors: can't be read: No such file"):
        derive_revision(folder, {})


def test_a_file_that_was_copied_in_part_is_refused(tmp_path):
    folder = folder_of(tmp_path / "1", weights())
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])
    with pytest.raises(ConfigError, match=r"'c' ends beyond the end of the file; copy the model again"):
        derive_revision(folder, {})


def test_an_index_that_is_none_is_refused(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"index.json: can't be read"):
        derive_revision(tmp_path, {})
