"""The text side of a published folder."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, normalizers

from pdd.core.errors import ConfigError, InvalidRequest
from pdd.engine.catalog import find_model
from pdd.router.api.messages import Message
from pdd.router.api.tokenizer import TextCodec
from tests.support.published import edit_json, tiny_folder


@pytest.fixture
def folder(tmp_path):
    return tiny_folder(tmp_path)


def text_of(folder):
    return find_model(str(folder)).load_text()


def render(folder):
    return TextCodec(text_of(folder)).render_chat([Message(role="user", content="u")])


def test_every_end_that_a_file_names_ends_an_answer(folder):
    edit_json(folder / "config.json", eos_token_id=7)
    edit_json(folder / "generation_config.json", eos_token_id=[8, 9])
    eos = text_of(folder).tokenizer.token_to_id("<|im_end|>")
    assert text_of(folder).stop_token_ids == {7, 8, 9, eos}


def test_what_ends_an_answer_has_no_text_even_where_the_tokenizer_thinks_so(folder):
    letter = text_of(folder).tokenizer.token_to_id("t")
    edit_json(folder / "generation_config.json", eos_token_id=letter)
    assert TextCodec(text_of(folder)).is_special(letter)


def test_a_model_that_names_no_end_is_refused(folder):
    for name in ("config.json", "tokenizer_config.json"):
        edit_json(folder / name, eos_token_id=None, eos_token=None)
    (folder / "generation_config.json").unlink()
    with pytest.raises(ConfigError, match="eos_token_id"):
        text_of(folder)


def test_an_end_that_is_no_id_is_refused(folder):
    edit_json(folder / "generation_config.json", eos_token_id="</s>")
    with pytest.raises(ConfigError, match=r"generation_config.json: eos_token_id is '</s>'"):
        text_of(folder)


def test_a_template_in_a_file_of_its_own_goes_first(folder):
    (folder / "chat_template.jinja").write_text("from the file: {{ messages[0].content }}")
    assert render(folder) == "from the file: u"


def test_of_several_templates_the_default_one_is_used(folder):
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
    edit_json(folder / "tokenizer_config.json", chat_template=several)
    assert render(folder) == "default"


def test_a_model_without_a_template_refuses_chats(folder):
    edit_json(folder / "tokenizer_config.json", chat_template=None)
    with pytest.raises(InvalidRequest, match="no chat template; use /v1/completions"):
        render(folder)


def test_tokens_may_be_written_as_objects(folder):
    edit_json(folder / "tokenizer_config.json", bos_token={"content": "<|im_start|>", "lstrip": False})
    assert text_of(folder).bos_token == "<|im_start|>"


def test_a_prompt_is_never_cut_or_filled_up(folder):
    tokenizer = text_of(folder).tokenizer
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert len(text_of(folder).tokenizer.encode("0123456789").ids) == 10


def test_special_tokens_that_are_matched_in_normalized_text_are_refused(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_special_tokens([AddedToken("<extra>", special=True, normalized=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"'<extra>'.*\"normalized\": false"):
        text_of(folder)


def test_a_decoder_that_does_not_go_token_by_token_is_refused_by_file_and_step(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.decoder = decoders.CTC()
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r'tokenizer.json: decoder: .*"type":"CTC"'):
        text_of(folder)


@pytest.mark.parametrize(("content", "why"), [(None, "no such file"), ("{}", "not a readable tokenizer")])
def test_a_tokenizer_that_is_missing_or_broken_is_refused(folder, content, why):
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=f"tokenizer.json: .*{why}"):
        text_of(folder)


def test_what_published_templates_lean_on_is_there(folder):
    template = (
        "{% for message in messages %}{% if tools is none %}{{ {'a': '<é>'} | tojson }}{% break %}{% endif %}{% endfor %}"
        "{{ strftime_now('%Y') | length }}"
    )
    (folder / "chat_template.jinja").write_text(template)
    assert render(folder) == json.dumps({"a": "<é>"}, ensure_ascii=False) + "4"
