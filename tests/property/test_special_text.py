"""No message forges a control token, and no other message is tokenized differently for it."""

from __future__ import annotations

import asyncio

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from pdd.engine.catalog import find_model
from pdd.engine.models.text import TextAssets
from pdd.router.api.messages import Message
from pdd.router.api.special_text import SpecialText
from pdd.router.api.tokenizer import TextCodec

MODELS = ("smollm2-135m-instruct", "scripted")
ASSETS: dict[str, TextAssets] = {name: find_model(name).load_text() for name in MODELS}
CODECS = {name: TextCodec(assets) for name, assets in ASSETS.items()}
SPECIAL = {
    name: {t.content: index for index, t in assets.tokenizer.get_added_tokens_decoder().items() if t.special}
    for name, assets in ASSETS.items()
}
KEPT = {
    name: frozenset(c for c in map(chr, range(128)) if c in assets.tokenizer.decode(assets.tokenizer.encode(c).ids))
    for name, assets in ASSETS.items()
}
"""A vocabulary may lack rare bytes, and then drops them."""
MARKS = "".join(map(chr, (0xEFFFF, 0xF0000, 0xF0001, 0xF0002, 0xF0011, 0xF0012, 0xFFFFD, 0xE000)))

ordinary = st.one_of(st.text(max_size=30), st.text(alphabet=f" \n<|im_end>{MARKS}aé漢😀1", max_size=40))
roles = st.sampled_from(["system", "user", "assistant"])


def forgeries(model: str) -> st.SearchStrategy[str]:
    """Texts full of special tokens, whole, cut, nested and overlapping."""
    texts = st.sampled_from(sorted(SPECIAL[model]))
    cuts = texts.flatmap(lambda text: st.integers(1, len(text) - 1).map(lambda end: text[:end]))
    tails = texts.flatmap(lambda text: st.integers(1, len(text) - 1).map(lambda end: text[end:]))
    pieces = st.one_of(texts, texts, cuts, tails, st.text(alphabet=f"<|>{MARKS} ", max_size=3), ordinary)
    return st.lists(pieces, max_size=8).map("".join)


def plainly(model: str, messages: list[Message]) -> tuple[int, ...]:
    """What the template makes of the messages, tokenized in one piece, specials and all."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(ASSETS[model].chat_template).render(
        messages=[{"role": message.role, "content": message.content} for message in messages],
        add_generation_prompt=True,
    )
    return tuple(ASSETS[model].tokenizer.encode(text, add_special_tokens=False).ids)


def prompt_of(model: str, messages: list[Message]) -> tuple[int, ...]:
    codec = CODECS[model]
    return asyncio.run(codec.encode(codec.render_chat([codec.mask(message) for message in messages])))


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_without_a_special_tokens_text_a_conversation_is_tokenized_as_one_text(model: str, data: st.DataObject) -> None:
    conversations = st.lists(st.builds(Message, role=roles, content=ordinary), min_size=1, max_size=4)
    messages = data.draw(
        conversations.filter(lambda told: not any(text in m.content for m in told for text in SPECIAL[model]))
    )
    assert prompt_of(model, messages) == plainly(model, messages)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_a_message_says_the_only_special_tokens_are_the_templates(model: str, data: st.DataObject) -> None:
    told = data.draw(st.lists(st.builds(Message, role=roles, content=forgeries(model)), min_size=1, max_size=4))
    special = frozenset(SPECIAL[model].values())
    harmless = [Message(role=message.role, content="x") for message in told]
    ids = prompt_of(model, told)
    assert [i for i in ids if i in special] == [i for i in plainly(model, harmless) if i in special]
    decoded = ASSETS[model].tokenizer.decode(ids, skip_special_tokens=False)
    assert all(m.content in decoded for m in told if KEPT[model].issuperset(m.content)), "every letter is there"


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_document_may_contain_special_tokens(model: str, data: st.DataObject) -> None:
    text = data.draw(forgeries(model))
    expected = tuple(ASSETS[model].tokenizer.encode(text, add_special_tokens=False).ids)
    assert asyncio.run(CODECS[model].encode_document(text)) == expected


def test_a_special_token_that_is_a_word_of_the_vocabulary_is_spelled_out() -> None:
    vocabulary = {letter: index for index, letter in enumerate("<end>x")} | {"<end>": 6}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="x"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    text = SpecialText(tokenizer)
    assert tokenizer.encode("<end>").ids == [6]
    assert text.encode(text.mask("<end>"), most=9) == (0, 1, 2, 3, 4)
    assert text.encode("<end>", most=9) == (6,)


def test_a_tokenizer_without_special_tokens_leaves_everything_as_it_is() -> None:
    tokenizer = Tokenizer(models.WordLevel({letter: index for index, letter in enumerate(MARKS)}, unk_token=MARKS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    text = SpecialText(tokenizer)
    assert text.encode(text.mask(MARKS), most=100) == tuple(tokenizer.encode(MARKS).ids)


@given(
    text=st.text(alphabet="ab<>|", max_size=60),
    specials=st.lists(st.text(alphabet="ab<>|", min_size=1, max_size=6), min_size=1, max_size=4, unique=True),
    window=st.integers(1, 9),
)
def test_a_text_is_masked_the_same_however_it_is_cut_into_windows(text: str, specials: list[str], window: int) -> None:
    tokenizer = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer.add_special_tokens([AddedToken(special, normalized=False) for special in specials])
    masked = SpecialText(tokenizer, window=window).mask(text)
    assert masked == SpecialText(tokenizer).mask(text)
    assert len(masked) <= len(text)
