"""What came of a run of ``pdd verify``: counts and records, never any tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pdd.cli.verify.cases import Outcome, count_requests
from pdd.cli.verify.prompts import Prompt
from pdd.core.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of one deployment."""

    direction: str
    outcomes: Sequence[Outcome]
    seconds: Seconds


def record(prompts: Sequence[Prompt], plays: Sequence[Played]) -> dict[str, object]:
    """The whole run as one JSON object."""
    outcomes = [outcome for played in plays for outcome in played.outcomes]
    lengths = {prompt.number: len(prompt.token_ids) for prompt in prompts}
    return {
        "prompts": len(prompts),
        "requests": len(plays) * count_requests(len(prompts)),
        "relays": sum(outcome.relayed for outcome in outcomes),
        "exact_rate": exact_rate(outcomes),
        "near_ties": [found for played in plays for found in near_ties(played, lengths)],
        "mismatches": [found for played in plays for found in mismatches(played, lengths)],
        "per_case": per_case(outcomes),
        "per_direction": {played.direction: _summary(played) for played in plays},
        "seconds": round(sum(played.seconds for played in plays), 1),
    }


def _summary(played: Played) -> dict[str, object]:
    return {
        "relays": sum(outcome.relayed for outcome in played.outcomes),
        "exact_rate": exact_rate(played.outcomes),
        "near_ties": sum(outcome.near_tie for outcome in played.outcomes),
        "mismatches": sum(outcome.problem is not None for outcome in played.outcomes),
        "seconds": round(played.seconds, 1),
    }


def exact_rate(outcomes: Sequence[Outcome]) -> float:
    """The share of trials that were exact; 0 if there was none."""
    return sum(outcome.exact for outcome in outcomes) / len(outcomes) if outcomes else 0.0


def passed(plays: Sequence[Played]) -> bool:
    """Whether there were trials everywhere, and none had a problem."""
    return all(played.outcomes and all(outcome.problem is None for outcome in played.outcomes) for played in plays)


def per_case(outcomes: Iterable[Outcome]) -> Mapping[str, dict[str, int]]:
    """For each case: how many trials, how many exact, how many relayed."""
    cases: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        counts = cases.setdefault(outcome.trial.case.name, {"requests": 0, "exact": 0, "relays": 0})
        counts["requests"] += 1
        counts["exact"] += outcome.exact
        counts["relays"] += outcome.relayed
    return cases


def mismatches(played: Played, prompt_lengths: Mapping[int, int]) -> list[dict[str, object]]:
    """Every trial that failed: where, and what was wrong."""
    return [
        _record(played.direction, outcome, prompt_lengths) | {"problem": outcome.problem}
        for outcome in played.outcomes
        if outcome.problem is not None
    ]


def near_ties(played: Played, prompt_lengths: Mapping[int, int]) -> list[dict[str, object]]:
    """Every trial that differs from a near tie on: where, and how near it was."""
    return [
        _record(played.direction, outcome, prompt_lengths) | {"gap": outcome.gap}
        for outcome in played.outcomes
        if outcome.near_tie
    ]


def _record(direction: str, outcome: Outcome, prompt_lengths: Mapping[int, int]) -> dict[str, object]:
    trial = outcome.trial
    return {
        "direction": direction,
        "prompt": trial.prompt,
        "prompt_tokens": prompt_lengths[trial.prompt],
        "case": trial.case.name,
        "sampling": trial.drawing,
        "first_difference": outcome.first_difference,
    }
