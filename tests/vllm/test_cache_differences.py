"""Engines that keep KV differently exchange it all the same: other block lengths, other element types if asked for."""

from __future__ import annotations

import pytest

from pdd.cli.deploy.forking import ForkServers
from tests.support.vllm_engines import Answer, Play, Turn, answers_of

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(300)]

_PROMPTS = tuple(tuple((index * step + 5) % 500 for index in range(200)) for step in (1, 3, 7))
_BFLOAT16 = {"dtype": "bfloat16"}
_CONVERTING = {"convert_dtype": True}


def _answers(turn: list[Answer] | str) -> list[Answer]:
    assert not isinstance(turn, str), turn
    return turn


def _tokens(turn: list[Answer] | str) -> list[list[int]]:
    return [answer.tokens for answer in _answers(turn)]


def _most_cached(turn: list[Answer] | str) -> int:
    """A busy machine may keep a node from answering in time; then the engine computes, and that is right too."""
    return max(answer.num_cached for answer in _answers(turn))


async def test_blocks_of_the_wire_and_of_the_caches_may_be_of_any_length(forks: ForkServers) -> None:
    cases = {16: (32, 64), 32: (64, 32), 48: (64, 32), 128: (32, 64)}
    plays = [
        Play(
            wire_tokens=wire_tokens,
            turns=[Turn(prompts=_PROMPTS, flags={"block_size": cache_tokens}) for cache_tokens in turns],
        )
        for wire_tokens, turns in cases.items()
    ]
    for wire_tokens, (computed, loaded) in zip(cases, await answers_of(forks, plays, seconds=280), strict=True):
        assert _tokens(loaded) == _tokens(computed), wire_tokens
        assert _most_cached(computed) == 0
        assert _most_cached(loaded) == 199 // wire_tokens * wire_tokens, (
            "whole blocks, and at least one token is computed"
        )


async def test_an_engine_of_another_element_type_converts_if_asked_to_and_not_otherwise(forks: ForkServers) -> None:
    plays = [
        Play(
            turns=(
                Turn(prompts=_PROMPTS, flags=_BFLOAT16, connector=_CONVERTING),
                Turn(prompts=_PROMPTS, flags=_BFLOAT16, connector=_CONVERTING),
                Turn(prompts=_PROMPTS),
                Turn(prompts=_PROMPTS, flags=_BFLOAT16),
            )
        )
    ]
    ((computed, loaded, widened, refused),) = await answers_of(forks, plays, seconds=280)
    assert _tokens(loaded) == _tokens(computed), "bfloat16 passes through float32 unharmed"
    assert _most_cached(loaded) == _most_cached(widened) == 192
    assert isinstance(refused, str)
    assert "convert_dtype" in refused
    assert "start it with --dtype float32" in refused
