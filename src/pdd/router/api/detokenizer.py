"""Decodes an answer token by token: what can't change any more goes out at once."""

from __future__ import annotations

from pdd.core.ids import TokenId
from pdd.engine.models.token_bytes import TokenBytes
from pdd.router.api.utf8 import Utf8Stream


class Detokenizer:
    """One answer. All pieces together are the decoding of all tokens, those without a text left out.

    What waits is the beginning of a character, and what some decoders write only where another token follows. A token
    costs what its own bytes cost, whatever came before it.
    """

    __slots__ = ("_if_followed", "_if_last", "_is_empty", "_num_leading", "_utf8", "_vocabulary")

    def __init__(self, vocabulary: TokenBytes) -> None:
        self._vocabulary = vocabulary
        self._is_empty = True
        self._utf8 = Utf8Stream()
        self._if_followed = self._if_last = b""
        self._num_leading = vocabulary.decoder.num_leading

    @property
    def waits(self) -> bool:
        """Not all that the tokens so far say is out: they end in the middle of a character."""
        return self._utf8.waits or bool(self._if_last)

    def push(self, token: TokenId) -> str:
        """The text that ``token`` makes certain; often empty."""
        spelling = self._vocabulary.first(token) if self._is_empty else self._vocabulary.later(token)
        if spelling is None:
            return ""
        self._is_empty = False
        characters = self._utf8.feed(self._if_followed + spelling.certain)
        self._if_followed, self._if_last = spelling.if_followed, spelling.if_last
        return self._as_text(characters)

    def finish(self) -> str:
        """The rest after the last token: the beginning of a character becomes U+FFFD."""
        characters = self._utf8.feed(self._if_last) + self._utf8.flush()
        self._if_followed = self._if_last = b""
        return self._as_text(characters)

    def _as_text(self, characters: str) -> str:
        for old, new in self._vocabulary.decoder.replaced:
            characters = characters.replace(old, new)
        return self._without_leading(characters) if self._num_leading else characters

    def _without_leading(self, characters: str) -> str:
        """Takes off what a text must not begin with, until it has begun with something else or enough is off."""
        rest = characters.lstrip(self._vocabulary.decoder.leading)
        num_off = min(len(characters) - len(rest), self._num_leading)
        self._num_leading = self._num_leading - num_off if num_off == len(characters) else 0
        return characters[num_off:]
