from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from pdd.cli.ask.conversation import Question, ReceivedAnswer, SpanListener, TokenPrompt
from pdd.cli.verify.cases import REFERENCE_TOKENS, Drawing, count_requests
from pdd.cli.verify.prompts import Prompt
from pdd.cli.verify.run import CONCURRENCY, Setup, run_trials
from pdd.core.errors import Unavailable, WorkerFailed
from pdd.core.ids import WorkerId
from pdd.core.request import FinishReason, Generation, HandoffMode, Route, TokenSpan
from pdd.core.units import Seconds
from pdd.engine.base import EngineInfo
from tests.unit.cli.recordings import MD, RLD, P, answer, event, spans

PROMPTS = (Prompt(number=1, token_ids=(5, 6, 7)), Prompt(number=2, token_ids=(8,)))


class CountingEngine:
    """Its tokens are their positions, as in ``recordings.spans``."""

    def __init__(self) -> None:
        self.asked: list[Generation] = []

    @property
    def worker(self) -> WorkerId:
        return WorkerId("MD")

    async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        self.asked.append(generation)
        tokens = tuple(range(generation.max_tokens))
        yield TokenSpan(first_position=0, tokens=tokens, finish_reason=FinishReason.LENGTH)

    async def info(self) -> EngineInfo:
        raise Unavailable("not asked for", retry_after_s=Seconds(1.0))


class HonestRouter:
    """Serves every question as its pins say."""

    def __init__(self) -> None:
        self.questions: list[Question] = []
        self.running = 0
        self.most_running = 0

    async def ask(self, question: Question, on_span: SpanListener | None = None) -> ReceivedAnswer:
        self.questions.append(question)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return self.answer(question)

    def answer(self, question: Question) -> ReceivedAnswer:
        max_tokens, after = question.max_tokens or 0, question.pins.handoff_after_tokens or 0
        if question.pins.route is Route.DIRECT:
            return answer(spans((0.1, P, 1, ""), (0.2, MD, max_tokens - 1, "")))
        extended = (event(0.2, "extended"),) if question.pins.handoff is HandoffMode.CATCH_UP else ()
        return answer(spans((0.1, P, 1, ""), (0.2, RLD, after, ""), (0.3, MD, max_tokens - 1 - after, "")), *extended)


class FailingRouter(HonestRouter):
    """Fails the hand-off after 17 tokens, and gets the one after 33 wrong."""

    def answer(self, question: Question) -> ReceivedAnswer:
        if question.pins.handoff_after_tokens == 17:
            raise WorkerFailed("the answer broke off")
        if question.pins.handoff_after_tokens == 33:
            return answer(spans((0.1, P, 1, ""), (0.2, RLD, 32, ""), (0.3, MD, 25, "")))
        return super().answer(question)


class RoundingRouter(HonestRouter):
    """Draws token 7 at position 20 of every relay, in place of 20."""

    def answer(self, question: Question) -> ReceivedAnswer:
        honest = super().answer(question)
        if question.pins.route is Route.DIRECT:
            return honest
        changed = tuple(
            replace(span, token_ids=tuple(7 if token == 20 else token for token in span.token_ids))
            for span in honest.spans
        )
        return replace(honest, spans=changed)


class FlatScores:
    """Finds ``likely`` likelier than all others by far, and the first of them by ``gap``."""

    def __init__(self, *likely: int, gap: float) -> None:
        self._likely = likely
        self._gap = gap
        self.asked: list[tuple[tuple[int, ...], str]] = []

    async def logits_after(self, known_tokens: Sequence[int], salt: str) -> npt.NDArray[np.floating]:
        self.asked.append((tuple(known_tokens), salt))
        logits = np.full(200, -1e9)
        logits[list(self._likely)] = 1.0
        logits[self._likely[0]] += self._gap
        return logits


def setup(router: HonestRouter, engine: CountingEngine, scores: FlatScores | None = None) -> Setup:
    return Setup(router=router, unbroken=engine, scores=scores, model="m", seed=10, salt="salt")


@pytest.mark.anyio
async def test_an_honest_deployment_is_exact_and_each_prompt_has_its_relays():
    router, engine, done = HonestRouter(), CountingEngine(), []
    outcomes = await run_trials(setup(router, engine), PROMPTS, on_done=lambda: done.append(1))
    assert [outcome.problem for outcome in outcomes] == [None] * len(outcomes)
    assert sum(outcome.relayed for outcome in outcomes) == 44
    assert len(done) == count_requests(2) == len(router.questions) + len(engine.asked)


@pytest.mark.anyio
async def test_no_two_requests_share_a_cache():
    router, engine = HonestRouter(), CountingEngine()
    await run_trials(setup(router, engine), PROMPTS, on_done=lambda: None)
    salts = [question.pins.cache_salt for question in router.questions] + [asked.salt for asked in engine.asked]
    assert None not in salts
    assert len(set(salts)) == len(salts)


@pytest.mark.anyio
async def test_the_unbroken_engine_is_asked_for_the_same_tokens_with_the_same_draws():
    router, engine = HonestRouter(), CountingEngine()
    await run_trials(setup(router, engine), PROMPTS, on_done=lambda: None)
    assert {asked.max_tokens for asked in engine.asked} == {REFERENCE_TOKENS}
    assert not any(asked.stop_token_ids for asked in engine.asked)
    asked = {(a.known_tokens, a.sampling.temperature, a.sampling.top_k, a.sampling.top_p, a.sampling.seed)
             for a in engine.asked}  # fmt: skip
    served = {
        (q.prompt.token_ids, q.draw.temperature, q.draw.top_k, q.draw.top_p or 1.0, q.draw.seed or 0)
        for q in router.questions
        if isinstance(q.prompt, TokenPrompt)
    }
    assert asked == served
    assert all(question.ignore_eos for question in router.questions)


@pytest.mark.anyio
async def test_only_so_many_requests_run_at_once():
    router = HonestRouter()
    await run_trials(setup(router, CountingEngine()), PROMPTS, on_done=lambda: None)
    assert 1 < router.most_running <= CONCURRENCY


@pytest.mark.anyio
async def test_a_failed_request_and_a_wrong_relay_are_counted_and_the_others_go_on():
    outcomes = await run_trials(setup(FailingRouter(), CountingEngine()), PROMPTS[:1], on_done=lambda: None)
    problems = {outcome.trial.case.name: outcome.problem for outcome in outcomes if outcome.problem}
    assert problems == {
        "one_shot_17": "failed: the answer broke off",
        "one_shot_33": "not relayed as asked: relay decode computed 32 tokens instead of 33",
    }


@pytest.mark.anyio
async def test_where_an_answer_differs_the_unbroken_engine_is_asked_how_near_it_was():
    engine, scores = CountingEngine(), FlatScores(20, 7, gap=1e-6)
    outcomes = await run_trials(setup(RoundingRouter(), engine, scores), PROMPTS[:1], on_done=lambda: None)
    greedy = [outcome for outcome in outcomes if outcome.trial.drawing is Drawing.GREEDY]
    assert {outcome.problem for outcome in greedy} == {None}
    longer = [outcome for outcome in greedy if outcome.trial.case.is_relay]
    assert all(outcome.near_tie and outcome.first_difference == 20 for outcome in longer)
    known = (*PROMPTS[0].token_ids, *range(20))
    assert set(scores.asked) == {(known, asked.salt) for asked in engine.asked}


@pytest.mark.anyio
async def test_a_difference_that_no_near_tie_explains_stays_a_mismatch():
    scores = FlatScores(20, 7, gap=2e-3)
    outcomes = await run_trials(setup(RoundingRouter(), CountingEngine(), scores), PROMPTS[:1], on_done=lambda: None)
    greedy = [o for o in outcomes if o.trial.drawing is Drawing.GREEDY and o.trial.case.is_relay]
    assert {o.problem for o in greedy} == {"differs from position 20 on: the two best tokens are 0.002 apart"}


@pytest.mark.anyio
async def test_without_scores_a_near_tie_is_a_mismatch():
    outcomes = await run_trials(setup(RoundingRouter(), CountingEngine()), PROMPTS[:1], on_done=lambda: None)
    relays = [outcome for outcome in outcomes if outcome.trial.case.is_relay]
    assert {outcome.problem for outcome in relays} == {"differs from position 20 on"}


@pytest.mark.anyio
async def test_exact_answers_need_no_scores():
    scores = FlatScores(20, 7, gap=0.0)
    await run_trials(setup(HonestRouter(), CountingEngine(), scores), PROMPTS, on_done=lambda: None)
    assert scores.asked == []


class OutrunRouter(HonestRouter):
    """Its relay decode ends the first so many catch-ups before main decode is there."""

    def __init__(self, *, lost_races: int, wrong_token: bool = False) -> None:
        super().__init__()
        self._lost_races = lost_races
        self._wrong_token = wrong_token

    def answer(self, question: Question) -> ReceivedAnswer:
        asked = sum(each.draw == question.draw and each.pins.handoff is HandoffMode.CATCH_UP for each in self.questions)
        if question.pins.handoff is not HandoffMode.CATCH_UP or asked > self._lost_races:
            return super().answer(question)
        rows = spans((0.1, P, 1, ""), (0.2, RLD, (question.max_tokens or 0) - 1, ""))
        return answer((rows[0], replace(rows[1], token_ids=rows[1].token_ids[::-1])) if self._wrong_token else rows)


@pytest.mark.anyio
async def test_a_catch_up_that_relay_decode_outran_is_asked_again_in_other_caches():
    router = OutrunRouter(lost_races=2)
    outcomes = await run_trials(setup(router, CountingEngine()), PROMPTS[:1], on_done=lambda: None)
    assert {outcome.problem for outcome in outcomes} == {None}
    salts = [question.pins.cache_salt for question in router.questions]
    assert len(set(salts)) == len(salts) == len(outcomes) + 2 * len(Drawing)


@pytest.mark.anyio
async def test_a_catch_up_that_is_always_outrun_proves_nothing():
    outcomes = await run_trials(setup(OutrunRouter(lost_races=99), CountingEngine()), PROMPTS[:1], on_done=lambda: None)
    problems = {(outcome.trial.case.name, outcome.problem) for outcome in outcomes if outcome.problem}
    assert problems == {("catch_up", "main decode computed none of it")}


@pytest.mark.anyio
async def test_an_outrun_answer_that_is_wrong_counts_though_the_next_one_is_right():
    router = OutrunRouter(lost_races=1, wrong_token=True)
    outcomes = await run_trials(setup(router, CountingEngine()), PROMPTS[:1], on_done=lambda: None)
    problems = {(outcome.trial.case.name, outcome.problem) for outcome in outcomes if outcome.problem}
    assert problems == {("catch_up", "differs from position 1 on")}
