"""Bytes become text as early as they can, however they are cut."""

import pytest
from hypothesis import given

from pdd.router.api.utf8 import Utf8Stream
from tests.support.odd_bytes import certain_text, cut_bytes, whole_text


@given(cut_bytes())
def test_text_is_out_as_soon_as_it_is_certain_and_all_of_it_is_the_whole_decoding(pieces):
    stream, data, text = Utf8Stream(), b"", ""
    for piece in pieces:
        data += piece
        text += stream.feed(piece)
        assert text == certain_text(data)
        assert stream.waits == (text != whole_text(data))
    assert text + stream.flush() == whole_text(data)
    assert not stream.waits


@pytest.mark.parametrize("code", [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF])
def test_a_character_waits_for_its_last_byte(code):
    *beginning, last = chr(code).encode()
    stream = Utf8Stream()
    assert [stream.feed(bytes([byte])) for byte in beginning] == [""] * len(beginning)
    assert stream.feed(bytes([last])) == chr(code)


@pytest.mark.parametrize(
    "data",
    [b"\x80", b"\xc0\x80", b"\xe0\x9f", b"\xed\xa0", b"\xf0\x8f", b"\xf4\x90", b"\xf5", b"\xff", b"\xe6\xbca"],
    ids=bytes.hex,
)
def test_what_can_become_no_character_waits_for_nothing(data):
    stream = Utf8Stream()
    assert "".join(stream.feed(bytes([byte])) for byte in data) == whole_text(data)
    assert not stream.waits
