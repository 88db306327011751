"""Decoders taken apart: what each token of a vocabulary is in bytes, and which decoders can't be read so."""

import pytest
from tokenizers import Regex, decoders, pre_tokenizers

from pdd.core.errors import ConfigError
from pdd.engine.models.decoder import Place, split_decoder
from pdd.engine.models.token_bytes import Spelling, TokenBytes
from tests.support.vocabularies import (
    ADDED,
    BYTE_LEVEL,
    BYTES,
    OF_BYTE_TOKENS,
    OF_WORDS,
    SPECIAL,
    UNKNOWN_ID,
    WORDS,
    byte_level_word,
    tokenizer_of,
)


def spelled(text: bytes) -> Spelling:
    return Spelling(certain=text, if_followed=b"", if_last=b"")


def test_every_byte_has_a_letter():
    letters = [byte_level_word(bytes([byte])) for byte in range(256)]
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = TokenBytes(tokenizer_of(BYTE_LEVEL["byte_level"], tuple(letters)), textless=frozenset())
    assert [vocabulary.later(byte) for byte in range(256)] == [spelled(bytes([byte])) for byte in range(256)]


def test_every_byte_has_a_token():
    vocabulary = TokenBytes(tokenizer_of(OF_BYTE_TOKENS["llama"], (*BYTES, *WORDS)), textless=frozenset())
    assert [vocabulary.later(byte) for byte in range(256)] == [spelled(bytes([byte])) for byte in range(256)]


def test_tokens_that_have_no_text_and_those_that_were_added():
    tokenizer = tokenizer_of(BYTE_LEVEL["byte_level"], ("a", "b"))
    vocabulary = TokenBytes(tokenizer, textless=frozenset({1}))
    assert vocabulary.later(0) == vocabulary.first(0) == spelled(b"a")
    for token in (1, tokenizer.token_to_id(SPECIAL), UNKNOWN_ID):
        assert vocabulary.later(token) is vocabulary.first(token) is None
    assert vocabulary.later(tokenizer.token_to_id(ADDED)) == spelled(ADDED.encode())


def test_an_added_token_in_letters_of_bytes_is_read_as_the_library_reads_it():
    tokenizer = tokenizer_of(BYTE_LEVEL["byte_level"], ("a",))
    tokenizer.add_tokens(["Café", "Café am Meer"])
    token, text = (tokenizer.token_to_id(content) for content in ("Café", "Café am Meer"))
    vocabulary = TokenBytes(tokenizer, textless=frozenset())
    assert (vocabulary.later(token), tokenizer.decode([token])) == (spelled(b"Caf\xe9"), "Caf\ufffd")
    assert vocabulary.later(text) == spelled("Café am Meer".encode())


@pytest.mark.parametrize(
    ("name", "word", "first", "later"),
    [
        ("metaspace", "▁a", spelled(b"a"), spelled(b" a")),
        ("word_piece", "a", spelled(b"a"), spelled(b" a")),
        ("word_piece", "##b", spelled(b"##b"), spelled(b"b")),
        ("word_piece", ".", spelled(b"."), spelled(b".")),
        ("none", "a", spelled(b"a"), spelled(b" a")),
        ("bpe", "ab</w>", *[Spelling(certain=b"ab", if_followed=b" ", if_last=b"")] * 2),
        ("bpe", "a</w>b</w>", *[Spelling(certain=b"a", if_followed=b" b ", if_last=b"b")] * 2),
        ("replace", "__b", spelled(b" b"), spelled(b" b")),
    ],
)
def test_a_token_is_spelled_by_where_it_stands(name, word, first, later):
    tokenizer = tokenizer_of(OF_WORDS[name], WORDS)
    vocabulary = TokenBytes(tokenizer, textless=frozenset())
    assert (vocabulary.first(WORDS.index(word)), vocabulary.later(WORDS.index(word))) == (first, later)


def test_what_happens_to_the_whole_text_is_left_for_the_text():
    decoder = split_decoder(tokenizer_of(OF_BYTE_TOKENS["replaced_in_the_text"], WORDS))
    assert (decoder.replaced, decoder.leading, decoder.num_leading) == ((("▁", " "),), " ", 1)
    assert decoder.piece_steps == ()
    assert decoder.to_bytes("▁<0x41>") == "▁<0x41>".encode()


def test_steps_follow_each_other():
    decoder = split_decoder(
        tokenizer_of(decoders.Sequence([decoders.Replace("x", "_"), decoders.Metaspace("_", "never")]), WORDS)
    )
    piece = "axb"
    for step in decoder.piece_steps:
        piece = step(piece, Place(is_first=False, is_last=False))
    assert piece == "a b"


FALLBACK, FUSE = decoders.ByteFallback(), decoders.Fuse()


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ([decoders.CTC()], "CTC"),
        ([decoders.Strip(" ", 0, 1)], '"stop":1'),
        ([FUSE, decoders.Strip(" ", 1, 1)], '"stop":1'),
        ([FUSE, decoders.Strip(" ", 1, 0), decoders.Strip("_", 1, 0)], "Strip"),
        ([FUSE, decoders.Strip(" ", 1, 0), FUSE, decoders.Strip("_", 1, 0)], "Strip"),
        ([FUSE, decoders.Strip(" ", 1, 0), decoders.Replace("_", " ")], "Replace"),
        ([FUSE, decoders.Replace("ab", "c")], "Replace"),
        ([FUSE, decoders.Replace(Regex("a"), "c")], "Regex"),
        ([FALLBACK, decoders.Strip(" ", 1, 0)], "Strip"),
        ([FALLBACK, decoders.WordPiece()], "WordPiece"),
        ([FUSE, decoders.Metaspace()], "Metaspace"),
        ([FUSE, FALLBACK], "ByteFallback"),
        ([FALLBACK, decoders.ByteLevel()], "ByteLevel"),
        ([decoders.ByteLevel(), decoders.ByteLevel()], "ByteLevel"),
        ([FUSE, decoders.BPEDecoder()], "BPEDecoder"),
    ],
)
def test_a_step_that_needs_other_tokens_is_refused_by_name(steps, named):
    with pytest.raises(ConfigError, match=rf"decoder: .*{named}.*token by token"):
        split_decoder(tokenizer_of(decoders.Sequence(steps), WORDS))
