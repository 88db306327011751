"""Prompts for checks: slices of packaged English prose, dialogue and code, chosen by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from pdd.core.ids import TokenId

SHORTEST_TOKENS = 20
LONGEST_TOKENS = 800
_TEXTS = ("demo.txt", "ferry.txt", "ledger_code.txt", "orchard.txt", "questions.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt, as token IDs."""

    number: int
    token_ids: tuple[TokenId, ...]


def make_prompts(
    encode: Callable[[str], Sequence[TokenId]], *, count: int, seed: int, longest: int = LONGEST_TOKENS
) -> tuple[Prompt, ...]:
    """``count`` prompts of 20 to ``longest`` tokens, as many short ones as long ones (evenly spread by logarithm)."""
    chosen = random.Random(seed)  # noqa: S311 (test data, no secret)
    tokens = [token for name in _TEXTS for token in encode(_read(name))]
    lengths = [_length((index + chosen.random()) / count, longest) for index in range(count)]
    chosen.shuffle(lengths)
    return tuple(
        Prompt(number=number, token_ids=_slice(tokens, chosen.randrange(len(tokens)), length))
        for number, length in enumerate(lengths, start=1)
    )


def _read(name: str) -> str:
    return (files("pdd.cli") / "texts" / name).read_text(encoding="utf-8")


def _length(share: float, longest: int) -> int:
    shortest = min(SHORTEST_TOKENS, longest)
    return round(shortest * (longest / shortest) ** share)


def _slice(tokens: Sequence[TokenId], begin: int, length: int) -> tuple[TokenId, ...]:
    """Goes on at the beginning where the texts end."""
    return tuple(tokens[(begin + index) % len(tokens)] for index in range(length))
