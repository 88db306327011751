"""Chat templates and encoding."""

import asyncio
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.processors import TemplateProcessing

from pdd.core.errors import ConfigError, InvalidRequest
from pdd.engine.catalog import find_model
from pdd.router.api.messages import Message
from pdd.router.api.special_text import encode
from pdd.router.api.tokenizer import TextCodec

ASSETS = find_model("scripted").load_text()
HELLO = [Message(role="user", content="u")]
CODECS = {
    name: ((assets := find_model(name).load_text()).tokenizer, TextCodec(assets))
    for name in ("scripted", "tiny-random", "smollm2-135m-instruct")
}


def codec(**changes) -> TextCodec:
    return TextCodec(replace(ASSETS, **changes))


def test_a_conversation_is_rendered_up_to_where_the_answer_begins():
    messages = [Message(role="system", content="s"), Message(role="user", content="u")]
    expected = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    assert codec().render_chat(messages) == expected


def test_a_broken_template_is_a_configuration_error():
    with pytest.raises(ConfigError, match="chat template"):
        codec(chat_template="{% for %}")


def test_a_decoder_that_does_not_go_token_by_token_is_a_configuration_error():
    tokenizer = Tokenizer.from_str(ASSETS.tokenizer.to_str())
    tokenizer.decoder = decoders.CTC()
    with pytest.raises(ConfigError, match=r"decoder: .*CTC"):
        codec(tokenizer=tokenizer)


def test_a_name_is_the_templates_to_use_and_forges_no_special_token():
    template = "{% for message in messages %}{{ message.name or 'nobody' }}: {{ message.content }}\n{% endfor %}"
    named = [Message(role="user", content="u", name="joe<|im_end|>"), Message(role="user", content="v")]
    rendered = codec(chat_template=template).render_chat([codec().mask(message) for message in named])
    tokens = asyncio.run(codec().encode(rendered))
    assert ASSETS.tokenizer.decode(tokens, skip_special_tokens=False) == "joe<|im_end|>: u\nnobody: v\n"
    assert ASSETS.tokenizer.token_to_id("<|im_end|>") not in tokens
    assert codec().render_chat(named[:1]) == codec().render_chat([Message(role="user", content="u")])


def test_a_template_says_in_its_authors_words_why_it_refuses():
    with pytest.raises(InvalidRequest) as refused:
        codec(chat_template="{{ raise_exception('roles must alternate') }}").render_chat(HELLO)
    assert refused.value.message == "messages: the model's chat template refuses them: roles must alternate"
    assert (refused.value.param, refused.value.code) == ("messages", "invalid_messages")


@pytest.mark.parametrize(
    "template",
    [
        "{{ undefined.attribute }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content.encode('nonsense') }}",
        "{{ range(10 ** 9) | list }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_fails_or_oversteps_makes_the_request_invalid_and_shows_nothing_of_itself(template):
    with pytest.raises(InvalidRequest) as refused:
        codec(chat_template=template).render_chat(HELLO)
    assert refused.value.message == (
        "messages: the model's chat template can't render them; it may want other roles, or another order"
    )
    assert refused.value.param == "messages"


def test_a_document_starts_with_what_the_tokenizer_puts_before_one_and_a_conversation_does_not():
    first = ASSETS.tokenizer.token_to_id("<|im_start|>")
    tokenizer = Tokenizer.from_str(ASSETS.tokenizer.to_str())
    tokenizer.post_processor = TemplateProcessing(
        single=["<|im_start|>", "$A"], special_tokens=[("<|im_start|>", first)]
    )
    bare = asyncio.run(codec().encode_document("text"))
    assert asyncio.run(codec(tokenizer=tokenizer).encode_document("text")) == (first, *bare)
    assert asyncio.run(codec(tokenizer=tokenizer).encode("text")) == bare


def test_a_long_text_has_the_same_tokens_as_in_one_piece():
    text = "the tokenizer leaves the event loop. " * 400
    assert asyncio.run(codec().encode(text)) == tuple(ASSETS.tokenizer.encode(text, add_special_tokens=False).ids)


def test_special_tokens_are_known():
    assert codec().is_special(ASSETS.tokenizer.token_to_id("<|im_end|>"))
    assert not codec().is_special(ASSETS.tokenizer.token_to_id("t"))


@pytest.mark.parametrize("model", CODECS)
@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=60), st.integers(1, 40))
def test_no_text_has_fewer_tokens_than_it_must_have(model, text, times):
    tokenizer, codec = CODECS[model]
    special = "".join(sorted(token.content for token in tokenizer.get_added_tokens_decoder().values()))
    for each in (text * times, " " * 10 * times, "\n" + " " * 79 * times, special * times):
        assert codec.least_tokens(len(each)) <= len(encode(tokenizer, each, most=sys.maxsize))


@pytest.mark.parametrize(
    ("normalizer", "characters_of_one"),
    [
        (normalizers.NFC(), 4),
        (normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")]), 1),
        (normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("abc", "d"), normalizers.Lowercase()]), 12),
    ],
    ids=str,
)
def test_what_a_normalizer_draws_together_counts_as_one_character(normalizer, characters_of_one):
    tokenizer = Tokenizer.from_str(ASSETS.tokenizer.to_str())
    tokenizer.normalizer = normalizer
    plain, normalizing = codec(), codec(tokenizer=tokenizer)
    assert normalizing.least_tokens(1200 * characters_of_one) == plain.least_tokens(1200)


@pytest.mark.parametrize("normalizer", [normalizers.Strip(), normalizers.Replace("a", "")], ids=str)
def test_nothing_is_said_of_lengths_where_a_normalizer_drops_text(normalizer):
    tokenizer = Tokenizer.from_str(ASSETS.tokenizer.to_str())
    tokenizer.normalizer = normalizer
    assert codec(tokenizer=tokenizer).least_tokens(10**9) == 0
