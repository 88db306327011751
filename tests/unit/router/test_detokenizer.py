"""One answer's decoder: what goes out when."""

import pytest
from tokenizers import Tokenizer

from pdd.engine.catalog import find_model
from pdd.engine.models.token_bytes import TokenBytes
from pdd.router.api.detokenizer import Detokenizer
from tests.support.vocabularies import ADDED, BYTES, OF_BYTE_TOKENS, OF_WORDS, SPECIAL, WORDS, tokenizer_of

WHATEVER = "\ufffd"
REAL = find_model("smollm2-135m-instruct").load_text().tokenizer


def of_words(name: str) -> Tokenizer:
    return tokenizer_of(OF_WORDS[name], WORDS)


def of_byte_tokens(name: str) -> Tokenizer:
    return tokenizer_of(OF_BYTE_TOKENS[name], (*BYTES, *WORDS))


def pieces_of(tokenizer: Tokenizer, *written: str) -> list[str]:
    """What each token makes certain, and what is left at the end."""
    detokenizer = Detokenizer(TokenBytes(tokenizer, textless=frozenset()))
    pieces = [detokenizer.push(tokenizer.token_to_id(word)) for word in written]
    rest = detokenizer.finish()
    assert detokenizer.finish() == ""
    return [*pieces, rest]


def test_a_token_that_is_the_replacement_character_is_text_like_any_other():
    detokenizer = Detokenizer(TokenBytes(REAL, textless=frozenset()))
    (token,) = REAL.encode("\ufffd", add_special_tokens=False).ids
    assert [detokenizer.push(token) for _ in range(300)] == ["\ufffd"] * 300
    assert not detokenizer.waits


def test_bytes_that_make_no_character_take_nothing_back_and_hold_nothing_up():
    spelled = ["a", "<0x7B>", "<0x82>", "▁a", "<0xE6>"]
    assert pieces_of(of_byte_tokens("llama"), *spelled) == ["a", "{", "\ufffd", " a", "", "\ufffd"]


def test_a_character_stays_one_beside_bytes_that_make_none():
    """The library's own decoding makes one U+FFFD of each byte in such a run."""
    spelled = [BYTES[byte] for byte in b"\xe4\xbd\xa0\xff"]
    assert pieces_of(of_byte_tokens("gemma"), *spelled) == ["", "", "你", "\ufffd", ""]
    tokenizer = of_byte_tokens("gemma")
    assert tokenizer.decode([tokenizer.token_to_id(token) for token in spelled]) == "\ufffd" * 4


def test_a_token_without_a_text_completes_no_character_and_breaks_none_off():
    assert pieces_of(of_byte_tokens("gemma"), "<0xC3>", SPECIAL, "<0xA9>") == ["", "", "é", ""]


def test_a_whole_character_after_the_beginning_of_one():
    assert pieces_of(of_byte_tokens("gemma"), "<0xE6>", "<0xBC>", "漢") == ["", "", "\ufffd漢", ""]


def test_the_first_text_loses_its_blank_whatever_came_before_it():
    assert pieces_of(of_byte_tokens("llama"), SPECIAL, "▁a", "▁a") == ["", "a", " a", ""]
    assert pieces_of(of_byte_tokens("llama"), "▁▁", "▁a") == [" ", " a", ""]
    assert pieces_of(of_byte_tokens("llama"), "<0x20>", "▁a") == ["", " a", ""]


def test_a_blank_that_only_another_word_makes_comes_with_that():
    assert pieces_of(of_words("bpe"), "ab</w>", "a", "é</w>") == ["ab", " a", "é", ""]


def test_an_end_that_depends_on_what_follows_waits():
    tokenizer = of_words("bpe")
    detokenizer = Detokenizer(TokenBytes(tokenizer, textless=frozenset()))
    word = tokenizer.token_to_id("a</w>b</w>")
    assert (detokenizer.push(word), detokenizer.waits) == ("a", True)
    assert (detokenizer.push(word), detokenizer.waits) == (" b a", True)
    assert (detokenizer.finish(), detokenizer.waits) == ("b", False)


@pytest.mark.parametrize("name", ["metaspace", "word_piece", "bpe", "fuse"])
def test_an_added_token_is_its_text(name):
    assert "".join(pieces_of(of_words(name), ADDED)) == ADDED


def test_no_token_costs_more_for_those_before_it():
    """The library is asked for each token of the vocabulary once, and never to decode; what waits is 3
    bytes at most.
    """
    asked = []

    class Asked:
        def __init__(self, tokenizer: Tokenizer) -> None:
            self.decoder = tokenizer.decoder
            self.get_added_tokens_decoder = tokenizer.get_added_tokens_decoder
            self._tokenizer = tokenizer

        def id_to_token(self, token: int) -> str | None:
            asked.append(token)
            return self._tokenizer.id_to_token(token)

    tokenizer = of_byte_tokens("llama")
    vocabulary = TokenBytes(Asked(tokenizer), textless=frozenset())
    for _ in range(2):
        detokenizer = Detokenizer(vocabulary)
        for token in [0xE6, 0xBC, 0xFF, 0xFF] * 2000:
            detokenizer.push(token)
    assert len(asked) == 3 + 2, "each once, and the first of an answer for itself"
