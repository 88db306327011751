"""Words that names shall not hold: the code's vocabulary is the field's, not a metaphor's.

Names are what the code defines: functions, classes, arguments, attributes of classes, objects and modules, and the
files and folders themselves. Each is split into words at underscores and capitals; a plural is its word too.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.support.house_code import Source, arguments_of

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One forbidden word, the compounds that make another of it, and the files in which it is the field's own."""

    word: str
    allowed: frozenset[tuple[str, ...]] = frozenset()
    allowed_in: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    name: str
    path: str
    line: int


def read_words(path: Path) -> list[Word]:
    """The table of forbidden words: ``[word]``, with ``allowed`` compounds and ``allowed_in`` globs of paths."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Word(
            word=word,
            allowed=frozenset(words_of(compound) for compound in entry.get("allowed", ())),
            allowed_in=tuple(entry.get("allowed_in", ())),
        )
        for word, entry in table.items()
    ]


def words_of(name: str) -> tuple[str, ...]:
    """``PlaceOrder`` and ``place_orders`` are both place, order."""
    return tuple(_singular(each.lower()) for each in _WORD.findall(name))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def find_words(words: Iterable[Word], sources: Iterable[Source]) -> Mapping[str, tuple[str, ...]]:
    """Every name that holds a forbidden word and is none of its compounds, by word."""
    names = [(name, words_of(name.name)) for source in sources for name in names_in(source)]
    return {
        word.word: tuple(f"{name.path}:{name.line} {name.name}" for name, parts in names if _offends(word, name, parts))
        for word in words
    }


def _offends(word: Word, name: Name, parts: Sequence[str]) -> bool:
    if word.word not in parts or any(fnmatch(name.path, glob) for glob in word.allowed_in):
        return False
    covered: set[int] = set()
    for compound in word.allowed:
        for start in range(len(parts) - len(compound) + 1):
            if tuple(parts[start : start + len(compound)]) == compound:
                covered |= set(range(start, start + len(compound)))
    return any(part == word.word and at not in covered for at, part in enumerate(parts))


def names_in(source: Source) -> Iterator[Name]:
    """What this file defines, its own name and, for a package, its folder's included."""
    yield Name(name=source.module.rpartition(".")[2], path=source.path, line=1)
    for name, line in sorted(set(_defined(source)), key=lambda each: each[1]):
        if not name.startswith("__"):  # the language's own
            yield Name(name=name, path=source.path, line=line)


def _defined(source: Source) -> Iterator[tuple[str, int]]:
    for node in source.nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
                yield from ((each.arg, each.lineno) for each in arguments_of(node))
            case ast.ClassDef():
                yield node.name, node.lineno
                yield from _assigned(node.body)
            case ast.Module():
                yield from _assigned(node.body)
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
                yield node.attr, node.lineno
            case _:
                pass


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[str, int]]:
    for statement in body:
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        for target in targets:
            for node in ast.walk(target) if isinstance(target, ast.expr) else ():
                if isinstance(node, ast.Name):
                    yield node.id, node.lineno
