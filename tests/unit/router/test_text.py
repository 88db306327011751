"""From spans of tokens to text: the same however tokens are grouped, stop strings included."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pdd.core.request import FinishReason
from pdd.engine.catalog import find_model
from pdd.router.api.text import AnswerText
from pdd.router.api.tokenizer import TextCodec
from tests.support.vocabularies import byte_level_word

ASSETS = find_model("scripted").load_text()
CODEC = TextCodec(ASSETS)
VOCAB_SIZE = find_model("scripted").vocab_size
# Whole characters, single bytes of characters, special tokens: what models emit at high temperatures.
TOKENS = st.lists(
    st.one_of(
        st.integers(0, VOCAB_SIZE - 1),
        st.sampled_from(ASSETS.tokenizer.encode("aé漢😀<|im_end|>", add_special_tokens=False).ids),
    ),
    max_size=30,
)
STOPS = st.lists(st.sampled_from(["a", "é", "漢", "😀a", "aé漢", "\ufffd", "t", "ta"]), max_size=3)


def group(tokens, points):
    ends = sorted({min(point, len(tokens)) for point in points} | {len(tokens)})
    return [tokens[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def read(spans, stops):
    """What the client sees of these spans, and the answer that is left."""
    answer = AnswerText(CODEC.detokenizer(), stops)
    shown = []
    for span in spans:
        shown.append(answer.push(span).text)
        if answer.stopped:
            break
    shown.append(answer.finish())
    assert "".join(shown) == answer.text
    return answer


@given(tokens=TOKENS, stops=STOPS, points=st.lists(st.integers(0, 30)))
def test_grouping_changes_neither_text_nor_usage_nor_what_is_remembered(tokens, stops, points):
    whole, grouped = read([[token] for token in tokens], stops), read(group(tokens, points), stops)
    assert (grouped.text, grouped.num_tokens, grouped.stopped) == (whole.text, whole.num_tokens, whole.stopped)
    assert grouped.answer_tokens(ended_by=None) == whole.answer_tokens(ended_by=None)


@given(tokens=TOKENS)
def test_without_stop_strings_the_text_is_the_decoding_of_all_tokens(tokens):
    assert read([tokens], []).text == ASSETS.tokenizer.decode(tokens, skip_special_tokens=True)


@given(tokens=TOKENS, stops=STOPS)
def test_the_text_ends_before_the_first_stop_string(tokens, stops):
    answer = read([tokens], stops)
    full = ASSETS.tokenizer.decode(tokens, skip_special_tokens=True)
    assert full.startswith(answer.text)
    assert not any(stop in answer.text for stop in stops)
    assert answer.stopped == any(stop in full for stop in stops)


@given(tokens=TOKENS, stops=STOPS)
def test_remembered_tokens_are_the_first_ones_and_spell_the_beginning_of_the_text(tokens, stops):
    answer = read([tokens], stops)
    kept = answer.answer_tokens(ended_by=None)
    assert list(kept.tokens) == tokens[: len(kept.tokens)]
    decoded = ASSETS.tokenizer.decode(list(kept.tokens), skip_special_tokens=True)
    assert decoded == answer.text[: kept.num_characters]
    if not answer.stopped:
        assert list(kept.tokens) == tokens
        assert kept.num_characters == len(answer.text)


def test_usage_counts_tokens_up_to_the_one_that_completes_the_stop_string():
    tokens = ASSETS.tokenizer.encode("xyzEND!!", add_special_tokens=False).ids
    answer = AnswerText(CODEC.detokenizer(), ["END"])
    piece = answer.push(tokens)
    assert (piece.text, piece.num_tokens, answer.num_tokens) == ("xyz", len(tokens) - 2, len(tokens) - 2)
    assert answer.finish_reason(FinishReason.LENGTH) is FinishReason.STOP


def test_a_character_waits_for_its_last_byte_and_an_unfinished_one_is_replaced_at_the_end():
    first, *others = ASSETS.tokenizer.encode("漢", add_special_tokens=False).ids
    answer = AnswerText(CODEC.detokenizer(), [])
    assert answer.push([first]).text == ""
    assert answer.push(others).text == "漢"
    assert answer.push([first]).text == ""
    assert answer.finish() == "\ufffd"
    assert answer.finish_reason(FinishReason.LENGTH) is FinishReason.LENGTH


def test_a_stop_string_can_be_completed_by_the_final_flush():
    first = ASSETS.tokenizer.encode("漢", add_special_tokens=False).ids[0]
    answer = AnswerText(CODEC.detokenizer(), ["\ufffd"])
    assert answer.push([first]).text == ""
    assert answer.finish() == ""
    assert answer.stopped


@pytest.mark.parametrize("spelled", ["\ufffd".encode(), b"\xff", b"\xc0"], ids=bytes.hex)
def test_a_stop_string_of_replacement_characters_is_seen_at_its_last_one(spelled):
    letters = ASSETS.tokenizer.get_vocab()
    token_ids = [letters[byte_level_word(bytes([byte]))] for byte in spelled]
    answer = AnswerText(CODEC.detokenizer(), ["\ufffd" * 5])
    piece = answer.push(token_ids * 60)
    assert (piece.text, piece.num_tokens, answer.stopped) == ("", 5 * len(spelled), True)


@given(tokens=TOKENS)
def test_an_answer_is_remembered_up_to_a_character_that_is_none(tokens):
    """Tokens may end there as at any other character."""
    assume("END" not in ASSETS.tokenizer.decode(tokens))
    invalid = ASSETS.tokenizer.get_vocab()[byte_level_word(b"\xff")]
    answer = AnswerText(CODEC.detokenizer(), ["END"])
    answer.push([*tokens, invalid, *ASSETS.tokenizer.encode("END", add_special_tokens=False).ids])
    kept = answer.answer_tokens(ended_by=None)
    assert kept.tokens == (*tokens, invalid)
    assert kept.num_characters == len(answer.text)


@pytest.mark.parametrize("special", sorted(ASSETS.stop_token_ids))
def test_the_token_that_ended_an_answer_is_not_remembered(special):
    tokens = ASSETS.tokenizer.encode("yes", add_special_tokens=False).ids
    answer = read([[*tokens, special]], [])
    assert answer.text == "yes"
    assert answer.last_token == special
    assert answer.answer_tokens(ended_by=special).tokens == tuple(tokens)
    assert answer.answer_tokens(ended_by=None).tokens == (*tokens, special)
