"""How long the sentences of Markdown pages are. Tables, headings and blocks of code hold none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_NO_PROSE = re.compile(r"\s*(?:#|\||<|\[[^\]]+\]: |={3,}|-{3,})")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx)\.", re.IGNORECASE)
_NO_END = "\0"
"""For a full stop that ends no sentence, while sentences are told apart."""
_END = re.compile(r"[.!?][\"'”)\]*_]*\s+(?=[\"'“(\[*_]*[A-Z0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    line: int
    text: str

    @property
    def num_words(self) -> int:
        """A span of code is one word, whatever is in it."""
        return sum(any(each.isalnum() for each in word) for word in self.text.split())


def sentences_of(text: str) -> Iterator[Sentence]:
    """Every sentence of a page, with the line it begins in."""
    for first_line, block in _blocks(text):
        plain = _LINK.sub(r"\1", _CODE_SPAN.sub(_one_word, block))
        plain = _ABBREVIATION.sub(lambda found: found[0].replace(".", _NO_END), plain)
        start = 0
        for end in [*(found.end() for found in _END.finditer(plain)), len(plain)]:
            words = " ".join(plain[start:end].split()).replace(_NO_END, ".")
            if words:
                yield Sentence(line=first_line + plain[:start].count("\n"), text=words)
            start = end


def _one_word(code: re.Match[str]) -> str:
    """Upper case, since it may begin a sentence; with its line ends, since lines are counted."""
    return "CODE" + "\n" * code[0].count("\n")


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and items of lists, each with its first line's number."""
    first_line, block = 1, list[str]()
    fence = ""
    for number, raw in enumerate([*text.splitlines(), ""], start=1):
        line = re.sub(r"^\s*>\s?", "", raw)
        marker = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            fence = "" if marker and marker[1].startswith(fence) else fence
            continue
        fence = marker[1] if marker else ""
        ends = bool(fence) or not line.strip() or _NO_PROSE.match(line) is not None
        item = _ITEM.match(line)
        if block and (ends or item):
            yield first_line, "\n".join(block)
            block = []
        if not ends:
            first_line = first_line if block else number
            block.append(line[item.end() :] if item else line)


def long_lines(text: str, *, columns: int, is_page: bool) -> list[int]:
    """The numbers of the lines that are longer; a page's tables can't be broken and are left out."""
    return [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if len(line) > columns and not (is_page and line.lstrip().startswith("|"))
    ]
