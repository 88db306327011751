"""Stop strings in a text that arrives in pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.router.api.stops import StopScanner

ALPHABET = "ab"
TEXTS = st.text(ALPHABET, max_size=24)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Reads character by character; at the first end of a stop string, cuts before the longest that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def cut(text: str, points: list[int]) -> list[str]:
    ends = sorted({min(point, len(text)) for point in points} | {len(text)})
    starts = [0, *ends[:-1]]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


@given(text=TEXTS, stops=STOPS, points=st.lists(st.integers(0, 24)))
def test_any_splitting_releases_what_reading_character_by_character_would(text, stops, points):
    scanner = StopScanner(stops)
    released = "".join([scanner.feed(piece) for piece in cut(text, points)] + [scanner.flush()])
    assert (released, scanner.matched) == naive(text, stops)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("stops", [["aab"], ["abab"], ["aab", "ba"], ["abb", "bba"], ["ab", "aba"], ["aaab", "ab"]])
def test_every_short_text_in_small_pieces_is_read_like_character_by_character(stops, size):
    for text in map("".join, itertools.product(ALPHABET, repeat=8)):
        scanner = StopScanner(stops)
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        released = "".join([scanner.feed(piece) for piece in pieces] + [scanner.flush()])
        assert (released, scanner.matched) == naive(text, stops), text


@given(text=TEXTS, stops=STOPS)
def test_only_a_possible_beginning_of_a_stop_string_is_withheld(text, stops):
    scanner = StopScanner(stops)
    released = scanner.feed(text)
    if not scanner.matched:
        withheld = text[len(released) :]
        assert withheld == "" or any(stop.startswith(withheld) and stop != withheld for stop in stops)


def test_a_stop_string_across_pieces_is_found_and_left_out():
    scanner = StopScanner(["END"])
    assert [scanner.feed(piece) for piece in ("one E", "N", "D two")] == ["one ", "", ""]
    assert scanner.matched
    assert scanner.feed("more") == ""
    assert scanner.flush() == ""


def test_text_that_turns_out_not_to_be_a_stop_string_is_released_late():
    scanner = StopScanner(["END"])
    assert scanner.feed("E") == ""
    assert scanner.feed("N") == ""
    assert scanner.feed("x") == "ENx"
    assert not scanner.matched


def test_without_stop_strings_nothing_is_withheld():
    scanner = StopScanner([])
    assert scanner.feed("anything") == "anything"
