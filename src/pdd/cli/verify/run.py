"""Runs the trials of ``pdd verify`` against a deployment, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from pdd.cli.ask.conversation import Question, ReceivedAnswer, TokenPrompt
from pdd.cli.demo.play import Asker
from pdd.cli.verify.cases import (
    REFERENCE_TOKENS,
    Drawing,
    Outcome,
    Trial,
    draw_of,
    judge,
    trials_of,
    why_not_served_as_asked,
)
from pdd.cli.verify.near_ties import Rivals, rivals_at
from pdd.cli.verify.prompts import Prompt
from pdd.cli.verify.scores import ReferenceScores
from pdd.core.errors import PddError
from pdd.core.ids import RequestId, Salt, TokenId
from pdd.core.request import Generation, Sampling
from pdd.engine.base import EngineClient

CONCURRENCY = 8
_RACES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Who answers. ``unbroken`` is one engine, asked alone; ``salt`` keeps this run's caches from any other's.

    With the ``scores`` of that engine near ties are forgiven; without, nothing is.
    """

    router: Asker
    unbroken: EngineClient
    scores: ReferenceScores | None
    model: str
    seed: int
    salt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """A job: the answer of one engine that nothing interrupts."""

    prompt: Prompt
    drawing: Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """A job: the same by way of the router."""

    prompt: Prompt
    trial: Trial


_Job = _Reference | _Served


@dataclass(slots=True, kw_only=True)
class _Results:
    references: dict[tuple[int, Drawing], tuple[TokenId, ...]] = field(
        default_factory=dict[tuple[int, Drawing], tuple[TokenId, ...]]
    )
    answers: dict[Trial, list[ReceivedAnswer | PddError]] = field(
        default_factory=dict[Trial, list[ReceivedAnswer | PddError]]
    )


async def run_trials(setup: Setup, prompts: Sequence[Prompt], *, on_done: Callable[[], None]) -> list[Outcome]:
    """All trials of all prompts, in order; ``on_done`` is called after each request.

    Raises:
        PddError: the unbroken engine failed, so that there is nothing to compare with.
    """
    results = _Results()
    jobs = _jobs(prompts)

    async def work() -> None:
        for job in jobs:
            await _do(setup, job, results)
            on_done()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())
    outcomes: list[Outcome] = []
    for prompt in prompts:
        for trial in trials_of(prompt.number):
            await _run_lost_races_again(setup, prompt, trial, results)
            outcomes.append(await _outcome(setup, prompt, trial, results))
    return outcomes


def _jobs(prompts: Sequence[Prompt]) -> Iterator[_Job]:
    for prompt in prompts:
        yield from (_Reference(prompt=prompt, drawing=drawing) for drawing in Drawing)
        yield from (_Served(prompt=prompt, trial=trial) for trial in trials_of(prompt.number))


async def _do(setup: Setup, job: _Job, results: _Results) -> None:
    match job:
        case _Reference(prompt=prompt, drawing=drawing):
            results.references[prompt.number, drawing] = await _ask_engine(setup, prompt, drawing)
        case _Served(prompt=prompt, trial=trial):
            results.answers[trial] = [await _ask_router(setup, prompt, trial, attempt=0)]


async def _run_lost_races_again(setup: Setup, prompt: Prompt, trial: Trial, results: _Results) -> None:
    """An answer that relay decode ended before main decode was there proves nothing; alone it is less likely to."""
    answers = results.answers[trial]
    while trial.case.is_race and len(answers) < _RACES and _lost(trial, answers[-1]):
        answers.append(await _ask_router(setup, prompt, trial, attempt=len(answers)))


def _lost(trial: Trial, answer: ReceivedAnswer | PddError) -> bool:
    return isinstance(answer, ReceivedAnswer) and why_not_served_as_asked(trial.case, answer) is not None


async def _ask_router(setup: Setup, prompt: Prompt, trial: Trial, *, attempt: int) -> ReceivedAnswer | PddError:
    try:
        return await setup.router.ask(_question(setup, prompt, trial, attempt))
    except PddError as error:
        return error


async def _ask_engine(setup: Setup, prompt: Prompt, drawing: Drawing) -> tuple[TokenId, ...]:
    salt = _unbroken_salt(setup, prompt, drawing)
    generation = Generation(
        request_id=RequestId(salt),
        attempt=1,
        known_tokens=prompt.token_ids,
        num_prompt_tokens=len(prompt.token_ids),
        max_tokens=REFERENCE_TOKENS,
        stop_token_ids=frozenset(),
        sampling=_sampling(setup, prompt, drawing),
        salt=salt,
    )
    async with aclosing(setup.unbroken.generate(generation)) as spans:
        return tuple([token async for span in spans for token in span.tokens])


def _sampling(setup: Setup, prompt: Prompt, drawing: Drawing) -> Sampling:
    """What the router makes of the same draw."""
    draw = draw_of(drawing, seed=setup.seed + prompt.number)
    return Sampling(
        temperature=draw.temperature or 0.0,
        top_k=draw.top_k,
        top_p=1.0 if draw.top_p is None else draw.top_p,
        seed=draw.seed or 0,
    )


def _question(setup: Setup, prompt: Prompt, trial: Trial, attempt: int) -> Question:
    salt = f"{setup.salt}-{prompt.number}-{trial.drawing}-{trial.case.name}-{attempt}"
    return Question(
        prompt=TokenPrompt(token_ids=prompt.token_ids),
        model=setup.model,
        max_tokens=trial.case.max_tokens,
        draw=draw_of(trial.drawing, seed=setup.seed + prompt.number),
        pins=trial.case.pins.with_salt(salt),
        ignore_eos=True,
    )


async def _outcome(setup: Setup, prompt: Prompt, trial: Trial, results: _Results) -> Outcome:
    """The last answer's, unless one before it differed."""
    reference = results.references[trial.prompt, trial.drawing]
    outcomes = [await _judged(setup, prompt, trial, answer, reference) for answer in results.answers[trial]]
    return next((outcome for outcome in outcomes if outcome.first_difference is not None), outcomes[-1])


async def _judged(
    setup: Setup, prompt: Prompt, trial: Trial, answer: ReceivedAnswer | PddError, reference: Sequence[TokenId]
) -> Outcome:
    if isinstance(answer, PddError):
        return Outcome(trial=trial, relayed=False, problem=f"failed: {answer}")
    outcome = judge(trial, answer, reference)
    if setup.scores is None or outcome.first_difference is None:
        return outcome
    rivals = await _ask_rivals(setup, setup.scores, prompt, trial, reference[: outcome.first_difference])
    return judge(trial, answer, reference, rivals)


async def _ask_rivals(
    setup: Setup, scores: ReferenceScores, prompt: Prompt, trial: Trial, before: Sequence[TokenId]
) -> Rivals:
    """Who might have been drawn after ``before``.

    The salt is the reference's: most of it lies in its engine's cache.
    """
    logits = await scores.logits_after((*prompt.token_ids, *before), _unbroken_salt(setup, prompt, trial.drawing))
    return rivals_at(logits, _sampling(setup, prompt, trial.drawing), position=len(before))


def _unbroken_salt(setup: Setup, prompt: Prompt, drawing: Drawing) -> Salt:
    return Salt(f"{setup.salt}-{prompt.number}-{drawing}-unbroken")
