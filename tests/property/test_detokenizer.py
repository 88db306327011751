"""Answers of every kind of vocabulary: no later than needed, and together what the tokens' bytes say.

The reference is Python's decoding of all bytes, and where these are text all through, the library's decoding of all
tokens.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pdd.engine.models.token_bytes import TokenBytes
from pdd.router.api.detokenizer import Detokenizer
from tests.support.odd_bytes import certain_text, cut_bytes, whole_text
from tests.support.vocabularies import (
    ADDED,
    BLANK,
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

WORD_TOKENIZERS = {name: tokenizer_of(decoder, WORDS) for name, decoder in OF_WORDS.items()}
BYTE_TOKENIZERS = {name: tokenizer_of(decoder, (*BYTES, *WORDS)) for name, decoder in OF_BYTE_TOKENS.items()}
TEXTLESS = (SPECIAL, None)


def detokenizer_of(tokenizer: Tokenizer) -> Detokenizer:
    return Detokenizer(TokenBytes(tokenizer, textless=frozenset()))


def ids_of(tokenizer: Tokenizer, written: list[str | None]) -> list[int]:
    """None is an ID that the vocabulary does not have."""
    return [UNKNOWN_ID if word is None else tokenizer.token_to_id(word) for word in written]


def read(tokenizer: Tokenizer, ids: list[int]) -> tuple[list[str], str]:
    """What each token makes certain, and the rest."""
    detokenizer = detokenizer_of(tokenizer)
    return [detokenizer.push(token) for token in ids], detokenizer.finish()


def as_byte_tokens(data: bytes) -> list[str]:
    return [BYTES[byte] for byte in data]


def check_against_bytes(tokenizer: Tokenizer, tokens: list[tuple[int, bytes]]) -> None:
    detokenizer, data, text = detokenizer_of(tokenizer), b"", ""
    for token, spelled in tokens:
        data += spelled
        text += detokenizer.push(token)
        assert text == certain_text(data)
        assert detokenizer.waits == (text != whole_text(data))
    assert text + detokenizer.finish() == whole_text(data)


@given(pieces=cut_bytes(), at=st.integers(0, 20))
def test_byte_level_tokens_are_their_bytes_however_these_are_cut(pieces, at):
    words = dict.fromkeys(map(byte_level_word, pieces), None) or {"a": None}
    tokenizer = tokenizer_of(BYTE_LEVEL["byte_level"], tuple(words))
    tokens = [(tokenizer.token_to_id(byte_level_word(piece)), piece) for piece in pieces]
    tokens.insert(at, (tokenizer.token_to_id(SPECIAL), b""))
    check_against_bytes(tokenizer, tokens)
    ids = [token for token, _ in tokens]
    assert whole_text(b"".join(pieces)) == tokenizer.decode(ids, skip_special_tokens=True)


WORDS_AS_BYTES = {word: word.encode() for word in ("a", "ab", "é", "漢", "🎉", "\ufffd", ".", ADDED)}


@given(st.lists(st.one_of(st.sampled_from([*WORDS_AS_BYTES, *TEXTLESS]), cut_bytes().map(b"".join)), max_size=12))
def test_byte_tokens_are_their_bytes_wherever_they_stand(written):
    tokenizer = BYTE_TOKENIZERS["gemma"]
    tokens = []
    for part in written:
        if isinstance(part, bytes):
            tokens += [(tokenizer.token_to_id(BYTES[byte]), bytes([byte])) for byte in part]
        else:
            tokens += zip(ids_of(tokenizer, [part]), [WORDS_AS_BYTES.get(part, b"")], strict=True)
    check_against_bytes(tokenizer, tokens)


@pytest.mark.parametrize("name", WORD_TOKENIZERS)
@given(written=st.lists(st.sampled_from([*WORDS, ADDED, *TEXTLESS]), max_size=12))
def test_words_read_as_the_library_reads_all_of_them(name, written):
    tokenizer = WORD_TOKENIZERS[name]
    ids = ids_of(tokenizer, written)
    pieces, rest = read(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids, skip_special_tokens=True)


CHARACTERS = [as_byte_tokens(character.encode()) for character in ("a", " ", "é", "漢", "🎉", "\n")]


@pytest.mark.parametrize("name", BYTE_TOKENIZERS)
@given(
    written=st.lists(
        st.one_of(st.sampled_from(CHARACTERS), st.sampled_from([*WORDS, ADDED, *TEXTLESS]).map(lambda word: [word])),
        max_size=12,
    )
)
def test_words_and_characters_in_bytes_read_as_the_library_reads_all_of_them(name, written):
    tokenizer = BYTE_TOKENIZERS[name]
    ids = ids_of(tokenizer, [word for part in written for word in part])
    pieces, rest = read(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", BYTE_TOKENIZERS)
def test_a_blanks_mark_in_bytes_is_a_blank_where_the_library_makes_it_one(name):
    tokenizer = BYTE_TOKENIZERS[name]
    ids = ids_of(tokenizer, ["a", *as_byte_tokens(BLANK.encode()), "b"])
    pieces, rest = read(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids)


@given(pieces=cut_bytes(), num_blanks=st.integers(0, 3))
def test_a_blank_at_the_start_is_stripped_from_byte_level_text(pieces, num_blanks):
    words = tuple(dict.fromkeys(map(byte_level_word, [b" ", *pieces])))
    tokenizer = tokenizer_of(BYTE_LEVEL["byte_level_strip"], words)
    ids = [*[0] * num_blanks, *(words.index(byte_level_word(piece)) for piece in pieces)]
    released, rest = read(tokenizer, ids)
    assert "".join(released) + rest == tokenizer.decode(ids, skip_special_tokens=True)
