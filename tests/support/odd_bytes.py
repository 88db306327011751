"""Bytes that are text, nearly text or no text at all, cut anywhere; and which of their text is certain."""

from hypothesis import strategies as st

_PARTS = (
    *(character.encode() for character in "aé漢😀\ufffd"),
    *(b"\xe6\xbc", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xed", b"\xf4"),  # beginnings of characters
    *(b"\x80", b"\xbf", b"\xff"),  # bytes that begin none
    *(b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80"),  # overlong
    *(b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80"),  # surrogates; beyond the last
)
_BEGINNINGS = frozenset(
    chr(code).encode()[:size]
    for code in range(0x80, 0x110000, 64)  # the last byte counts 64 characters
    if not 0xD800 <= code < 0xE000
    for size in range(1, len(chr(code).encode()))
)


@st.composite
def cut_bytes(draw: st.DrawFn) -> list[bytes]:
    """Pieces of at least one byte."""
    data = b"".join(draw(st.lists(st.one_of(st.sampled_from(_PARTS), st.binary(max_size=3)), max_size=12)))
    cuts = draw(st.sets(st.integers(1, max(1, len(data) - 1)))) if draw(st.booleans()) else range(1, len(data))
    ends = sorted(cut for cut in cuts if cut < len(data))
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)] if data else []


def certain_text(data: bytes) -> str:
    """What ``data`` says whatever follows it: all but the beginning of a character at its end."""
    unfinished = next((data[-size:] for size in (1, 2, 3) if data[-size:] in _BEGINNINGS), b"")
    return whole_text(data.removesuffix(unfinished))


def whole_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
