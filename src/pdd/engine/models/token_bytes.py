"""What each token of a vocabulary adds to a text, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from tokenizers import Tokenizer

from pdd.core.ids import TokenId
from pdd.engine.models.decoder import Place, split_decoder

_ONLY = Place(is_first=True, is_last=True)
_FIRST = Place(is_first=True, is_last=False)
_INNER = Place(is_first=False, is_last=False)
_LAST = Place(is_first=False, is_last=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """One token's bytes: the ``certain`` ones, then those that depend on whether another token follows.

    Few decoders have such.
    """

    certain: bytes
    if_followed: bytes
    if_last: bytes


class TokenBytes:
    """One vocabulary. ``first(token)`` spells the first token that has a text, ``later(token)`` one after it; None has
    none.

    A token is spelled when it first occurs, and kept: vocabularies are large, and most of a large one never occurs.
    """

    __slots__ = ("_special_texts", "_textless", "_tokenizer", "decoder", "first", "later")

    def __init__(self, tokenizer: Tokenizer, *, textless: frozenset[TokenId]) -> None:
        """``textless`` have no text, as special tokens and unknown IDs have none.

        Raises:
            ConfigError: as ``split_decoder``.
        """
        self.decoder = split_decoder(tokenizer)
        added = tokenizer.get_added_tokens_decoder().values()
        self._special_texts = frozenset(token.content for token in added if token.special)
        self._textless = textless
        self._tokenizer = tokenizer
        self.first = partial(self._spell, _FIRST, _ONLY)
        self.later = cache(partial(self._spell, _INNER, _LAST))

    def _spell(self, followed: Place, last: Place, token: TokenId) -> Spelling | None:
        written = None if token in self._textless else self._tokenizer.id_to_token(token)
        if written is None or written in self._special_texts:
            return None
        if_followed, if_last = self._piece_at(followed, written), self._piece_at(last, written)
        to_bytes = self.decoder.to_bytes
        if if_followed == if_last:
            return Spelling(certain=to_bytes(if_last), if_followed=b"", if_last=b"")
        return _divided(to_bytes(if_followed), to_bytes(if_last))

    def _piece_at(self, place: Place, piece: str) -> str:
        for step in self.decoder.piece_steps:
            piece = step(piece, place)
        return piece


def _divided(if_followed: bytes, if_last: bytes) -> Spelling:
    """What both begin with is certain."""
    pairs = enumerate(zip(if_followed, if_last, strict=False))
    size = next((at for at, (one, other) in pairs if one != other), min(len(if_followed), len(if_last)))
    return Spelling(certain=if_last[:size], if_followed=if_followed[size:], if_last=if_last[size:])
