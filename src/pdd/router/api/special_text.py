"""Keeps what users write from becoming control tokens: the text of a special token in a message stays text.

A chat template writes special tokens as text, and so can a user; in the rendered conversation nobody could tell them
apart. So messages are masked before they are rendered: each text of a special token becomes one private-use character,
which stands for that text, tokenized as ordinary text, when the rendered conversation is encoded. Private-use characters that
users write themselves are escaped. A conversation without either is encoded in one piece, exactly as without any of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tokenizers import Tokenizer

from pdd.core.ids import TokenId

_FIRST_MARK = 0xF0000
"""The first of 65,534 private-use characters: the escape, then a mark for each special token."""
_ESCAPE = chr(_FIRST_MARK)


class SpecialText:
    """One tokenizer's special tokens. They match verbatim (``normalized=False``): the catalog refuses other tokenizers."""

    __slots__ = ("_ids", "_marks", "_masked", "_masking", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        special = frozenset(index for index, token in added.items() if token.special)
        texts = sorted((added[index].content for index in special), key=lambda text: (-len(text), text))
        self._tokenizer = tokenizer
        self._marks = {text: chr(_FIRST_MARK + number) for number, text in enumerate(texts, start=1)}
        bare = _without_added_tokens(tokenizer)
        self._ids = {mark: _plain_ids(bare, text, special) for text, mark in self._marks.items()}
        marks = f"{_ESCAPE}-{chr(_FIRST_MARK + len(texts))}"
        # Grouped, so that re takes out their common "<": else long runs of it cost several times as much.
        self._masking = re.compile(f"(?:{'|'.join(map(re.escape, texts))})|[{marks}]" if texts else f"[{marks}]")
        self._masked = re.compile(f"{_ESCAPE}(?P<escaped>[{marks}])|(?P<mark>[{marks}])", re.DOTALL)

    def mask(self, text: str) -> str:
        """A message's text without any text of a special token in it."""
        return self._masking.sub(self._mask, text)

    def encode(self, masked: str) -> tuple[TokenId, ...]:
        """The IDs of masked text, with a template's special tokens in between. Blocks."""
        ids: list[TokenId] = []
        for text, mark in self._pieces(masked):
            if text:
                ids += encode(self._tokenizer, text)
            ids += self._ids.get(mark, ())
        return tuple(ids)

    def _mask(self, found: re.Match[str]) -> str:
        text = found.group()
        return self._marks.get(text) or _ESCAPE + text

    def _pieces(self, masked: str) -> Iterator[tuple[str, str]]:
        """Runs of plain text, each with the mark that ends it; the last one's is empty."""
        plain: list[str] = []
        end = 0
        for found in self._masked.finditer(masked):
            plain.append(masked[end : found.start()])
            end = found.end()
            if found["escaped"] is not None:
                plain.append(found["escaped"])
            else:
                yield "".join(plain), found["mark"]
                plain.clear()
        yield "".join(plain) + masked[end:], ""


def encode(tokenizer: Tokenizer, text: str) -> tuple[TokenId, ...]:
    """The IDs of ``text``, in which texts of special tokens are special tokens. Blocks."""
    # As a batch of one: only batches let go of the interpreter lock, and a long text takes seconds.
    return tuple(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def encode_document(tokenizer: Tokenizer, text: str) -> tuple[TokenId, ...]:
    """The same of a text that starts a sequence: the tokenizer puts around it what its model wants there. Blocks."""
    return tuple(tokenizer.encode_batch_fast([text], add_special_tokens=True)[0].ids)


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    bare = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        bare.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        bare.pre_tokenizer = tokenizer.pre_tokenizer
    return bare


def _plain_ids(bare: Tokenizer, text: str, special: frozenset[TokenId]) -> tuple[TokenId, ...]:
    """The text of a special token as ordinary text. Some vocabularies have it as a word, too: then letter by letter."""
    ids = encode(bare, text)
    if special.isdisjoint(ids):
        return ids
    return tuple(index for letter in text for index in encode(bare, letter))
