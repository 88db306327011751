"""Text from bytes that arrive in pieces, as early as it is certain. Pure: bytes in, text out."""

from __future__ import annotations

from codecs import utf_8_decode


class Utf8Stream:
    """One text: all pieces together are ``bytes.decode("utf-8", "replace")`` of all bytes.

    Only the beginning of a character is withheld, 3 bytes at most; what can't become one is U+FFFD at once.
    """

    __slots__ = ("_unfinished",)

    def __init__(self) -> None:
        self._unfinished = b""

    @property
    def waits(self) -> bool:
        """The bytes so far end within a character."""
        return bool(self._unfinished)

    def feed(self, data: bytes) -> str:
        """Adds ``data``; returns the text that is certain now."""
        data = self._unfinished + data
        text, num_read = utf_8_decode(data, "replace")
        self._unfinished = data[num_read:]
        if self._unfinished and _is_half_a_pair(self._unfinished):
            text += self.flush()
        return text

    def flush(self) -> str:
        """There are no more bytes: the beginning of a character becomes U+FFFD."""
        unfinished, self._unfinished = self._unfinished, b""
        return unfinished.decode("utf-8", "replace")


def _is_half_a_pair(unfinished: bytes) -> bool:
    """Python's decoder waits for surrogates, which UTF-8 does not have: some error handlers let them in."""
    return unfinished[:1] == b"\xed" and unfinished[1:] >= b"\xa0"
