"""Keeps what users write from becoming control tokens: the text of a special token in a message stays text.

A chat template writes special tokens as text, and so can a user; in the rendered conversation nobody could tell them
apart. So messages are masked before they are rendered: each text of a special token becomes one private-use character,
which stands for that text, tokenized as ordinary text, when the rendered conversation is encoded. Private-use
characters that users write themselves are escaped. A conversation without either is encoded in one piece, exactly as
without any of this.

Texts may have megabytes. Nothing here holds the interpreter for all of one: on a thread, it leaves others their turns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tokenizers import Tokenizer

from pdd.core.ids import TokenId

_FIRST_MARK = 0xF0000
"""The first of 65,534 private-use characters: the escape, then a mark for each special token."""
_ESCAPE = chr(_FIRST_MARK)
_LONGEST_SPELLING = 4096
"""Of a special token's text as ordinary text, in tokens: none comes near."""
_WINDOW = 64 * 1024
"""Characters that are searched in one go: some milliseconds."""


class SpecialText:
    """One tokenizer's special tokens.

    They match verbatim (``normalized=False``): the catalog refuses other tokenizers.
    """

    __slots__ = ("_ids", "_longest", "_marks", "_masked", "_masking", "_tokenizer", "_window")

    def __init__(self, tokenizer: Tokenizer, *, window: int = _WINDOW) -> None:
        added = tokenizer.get_added_tokens_decoder()
        special = frozenset(index for index, token in added.items() if token.special)
        texts = sorted((added[index].content for index in special), key=lambda text: (-len(text), text))
        self._tokenizer = tokenizer
        self._window = window
        self._longest = max((2, *map(len, texts)))
        self._marks = {text: chr(_FIRST_MARK + number) for number, text in enumerate(texts, start=1)}
        bare = _without_added_tokens(tokenizer)
        self._ids = {mark: _plain_ids(bare, text, special) for text, mark in self._marks.items()}
        marks = f"{_ESCAPE}-{chr(_FIRST_MARK + len(texts))}"
        # Grouped, so that re takes out their common "<": else long runs of it cost several times as much.
        self._masking = re.compile(f"(?:{'|'.join(map(re.escape, texts))})|[{marks}]" if texts else f"[{marks}]")
        self._masked = re.compile(f"{_ESCAPE}(?P<escaped>[{marks}])|(?P<mark>[{marks}])", re.DOTALL)

    def mask(self, text: str) -> str:
        """A message's text without any text of a special token in it."""
        pieces: list[str] = []
        end = 0
        for found in self._search(self._masking, text):
            pieces += (text[end : found.start()], self._mask(found))
            end = found.end()
        return "".join((*pieces, text[end:])) if pieces else text

    def encode(self, masked: str, *, most: int) -> tuple[TokenId, ...]:
        """The IDs of masked text, with a template's special tokens in between. Blocks.

        Raises:
            TooManyTokens: they are more than ``most``.
        """
        ids: list[TokenId] = []
        for text, mark in self._pieces(masked):
            if text:
                ids += encode(self._tokenizer, text, most=most)
            ids += self._ids.get(mark, ())
            if len(ids) > most:
                raise TooManyTokens
        return tuple(ids)

    def _search(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        """As ``finditer`` finds them, which would look through all of a text in one go.

        No match has over ``_longest``.
        """
        at = 0
        while at < len(text):
            end = at + self._window
            found = pattern.search(text, at, end + self._longest)
            if found is None or found.start() >= end:
                at = end
            else:
                yield found
                at = found.end()

    def _mask(self, found: re.Match[str]) -> str:
        text = found.group()
        return self._marks.get(text) or _ESCAPE + text

    def _pieces(self, masked: str) -> Iterator[tuple[str, str]]:
        """Runs of plain text, each with the mark that ends it; the last one's is empty."""
        plain: list[str] = []
        end = 0
        for found in self._search(self._masked, masked):
            plain.append(masked[end : found.start()])
            end = found.end()
            if found["escaped"] is not None:
                plain.append(found["escaped"])
            else:
                yield "".join(plain), found["mark"]
                plain.clear()
        yield "".join(plain) + masked[end:], ""


class TooManyTokens(Exception):
    """A text has more than anybody wants. They were not taken over, since that would hold the interpreter."""


def encode(tokenizer: Tokenizer, text: str, *, most: int) -> list[TokenId]:
    """The IDs of ``text``, in which texts of special tokens are special tokens. Blocks.

    Raises:
        TooManyTokens: they are more than ``most``.
    """
    return _ids_of(tokenizer, text, most=most, add_special_tokens=False)


def encode_document(tokenizer: Tokenizer, text: str, *, most: int) -> list[TokenId]:
    """The same of a text that starts a sequence: the tokenizer puts around it what its model wants there. Blocks.

    Raises:
        TooManyTokens: as ``encode``.
    """
    return _ids_of(tokenizer, text, most=most, add_special_tokens=True)


def _ids_of(tokenizer: Tokenizer, text: str, *, most: int, add_special_tokens: bool) -> list[TokenId]:
    # As a batch of one: only batches let go of the interpreter lock, and a long text takes seconds.
    (found,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    if len(found) > most:
        raise TooManyTokens
    return found.ids


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    bare = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        bare.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        bare.pre_tokenizer = tokenizer.pre_tokenizer
    return bare


def _plain_ids(bare: Tokenizer, text: str, special: frozenset[TokenId]) -> tuple[TokenId, ...]:
    """The text of a special token as ordinary text. Some vocabularies have it as a word, too: then letter by letter."""
    ids = encode(bare, text, most=_LONGEST_SPELLING)
    if special.isdisjoint(ids):
        return tuple(ids)
    return tuple(index for letter in text for index in encode(bare, letter, most=_LONGEST_SPELLING))
