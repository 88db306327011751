from __future__ import annotations

import pytest

from pdd.cli.ask.conversation import Conversation, Question, ReceivedAnswer, SpanListener
from pdd.cli.demo.play import (
    FEWEST_ANSWER_TOKENS,
    MOST_ANSWER_TOKENS,
    Runs,
    choose_answer_tokens,
    judge,
    load_script,
    measure_pace,
    play,
    record,
)
from pdd.cli.demo.show import print_results, print_verdict
from pdd.core.request import Route
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from tests.unit.cli.recordings import MD, P, answer, direct, relayed, second_turn, spans
from tests.unit.cli.test_render import printed


class RecordedRouter:
    """Answers from a list and keeps the questions."""

    def __init__(self, *answers: ReceivedAnswer) -> None:
        self._answers = list(answers)
        self.questions: list[Question] = []

    async def ask(self, question: Question, on_span: SpanListener | None = None) -> ReceivedAnswer:
        self.questions.append(question)
        given = self._answers.pop(0)
        for span in given.spans:
            if on_span is not None:
                on_span(span)
        return given


class SilentStage:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin(self, name: str) -> SpanListener:
        self.seen.append(f"begin {name}")
        return lambda span: self.seen.append(span.text)

    def end(self, name: str, answer: ReceivedAnswer) -> None:
        self.seen.append(f"end {name}")


def three_runs(**changes: ReceivedAnswer) -> Runs:
    return Runs(**({"relay": relayed(), "direct": direct(), "second_turn": second_turn()} | changes))


@pytest.mark.anyio
async def test_the_second_turn_continues_the_first_conversation_in_the_same_caches():
    router, stage = RecordedRouter(relayed(), direct(), second_turn()), SilentStage()
    script = load_script()
    await play(router, script, model="m", answer_tokens=320, stage=stage)
    first, without, second = router.questions
    assert isinstance(second.prompt, Conversation)
    assert [m.role for m in second.prompt.messages] == ["user", "assistant", "user"]
    assert second.prompt.messages[1].content == relayed().text
    assert second.prompt.messages[2].content == script.second_message
    assert second.pins.cache_salt == first.pins.cache_salt != without.pins.cache_salt
    assert stage.seen[0] == "begin relay"
    assert stage.seen[-1] == "end second_turn"


@pytest.mark.anyio
async def test_only_the_direct_run_has_its_route_pinned():
    router = RecordedRouter(relayed(), direct(), second_turn())
    await play(router, load_script(), model="m", answer_tokens=320, stage=SilentStage())
    assert [question.pins.route for question in router.questions] == [None, Route.DIRECT, None]
    assert router.questions[0].prompt == router.questions[1].prompt


def test_the_packaged_prompt_has_some_600_tokens_and_the_second_message_some_30():
    encode = find_model("smollm2-135m-instruct").load_text().tokenizer.encode
    script = load_script()
    assert 560 <= len(encode(script.first_message).ids) <= 640
    assert 20 <= len(encode(script.second_message).ids) <= 40


def test_promises_that_are_kept_are_said_to_be():
    verdict = judge(three_runs(), round_trip=Seconds(0.3), block_tokens=16)
    assert verdict.second_token.value == pytest.approx(0.02)
    assert verdict.second_turn.value == pytest.approx(0.05)
    assert verdict.handoff.value == pytest.approx(0.5)
    assert all(check.kept for check in verdict)


def test_a_different_text_is_noticed():
    runs = three_runs(direct=direct(" KV?"))
    assert not runs.exact
    assert not judge(runs, round_trip=Seconds(0.3), block_tokens=16).exact.kept


def test_the_same_text_from_different_tokens_is_not_exact():
    rows = spans((1.0, P, 3, "Once upon a time"), (2.0, MD, 1, " there was KV."))
    assert not three_runs(direct=answer(rows)).exact


def test_too_many_bytes_in_the_second_turn_break_the_promise():
    verdict = judge(three_runs(second_turn=second_turn(wan=5_000_000)), round_trip=Seconds(0.3), block_tokens=16)
    assert not verdict.second_turn.kept


def test_a_run_that_never_relayed_keeps_no_promise_about_relays():
    verdict = judge(three_runs(relay=direct()), round_trip=Seconds(0.3), block_tokens=16)
    assert not verdict.relayed.kept
    assert not verdict.handoff.kept
    assert not verdict.second_token.kept
    assert verdict.exact.kept


def test_nothing_over_the_wan_gives_no_ratio():
    quiet = answer(relayed().spans, wan=0)
    check = judge(three_runs(relay=quiet), round_trip=Seconds(0.3), block_tokens=16).second_turn
    assert check.value is None
    assert not check.kept


def test_the_record_has_three_runs_and_every_check():
    runs = three_runs()
    made = record(runs, judge(runs, round_trip=Seconds(0.3), block_tokens=16))
    assert [run["name"] for run in made["runs"]] == ["relay", "direct", "second_turn"]
    assert all(run["exact"] is True for run in made["runs"])
    assert made["checks"].keys() == {
        "relayed", "second_token_gap_ratio", "second_turn_bytes_ratio", "handoff_gap_s", "exact",
    }  # fmt: skip
    assert made["checks"]["second_token_gap_ratio"]["bound"] == 0.1


@pytest.mark.parametrize(("without", "kept", "broken"), [(direct(), 5, 0), (direct(" KV?"), 4, 1)])
def test_results_and_verdict_fit_a_hundred_columns(without: ReceivedAnswer, kept: int, broken: int):
    console, buffer = printed()
    runs = three_runs(direct=without)
    print_results(console, runs)
    print_verdict(console, runs, judge(runs, round_trip=Seconds(0.03), block_tokens=16))
    text = buffer.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert (text.count("✓"), text.count("✗")) == (kept, broken)
    assert ("NOT the same text" in text) == bool(broken)
    assert "0.020 (at most 0.1)" in text


@pytest.mark.parametrize(
    ("crossing", "pace", "tokens"),
    [
        (12.0, 0.025, 736),  # 672 tokens are decoded in 16.8 s, and 64 are left
        (12.0, 0.1, FEWEST_ANSWER_TOKENS),
        (0.0, 0.02, FEWEST_ANSWER_TOKENS),
        (12.0, 0.001, MOST_ANSWER_TOKENS),
        (12.0, 0.0, MOST_ANSWER_TOKENS),
    ],
)
def test_answers_are_long_enough_for_the_kv_cache_to_arrive(crossing: float, pace: float, tokens: int):
    assert choose_answer_tokens(crossing=Seconds(crossing), pace=Seconds(pace)) == tokens


@pytest.mark.anyio
async def test_the_pace_is_a_quick_gap_of_a_short_direct_answer_in_caches_of_its_own():
    router = RecordedRouter(direct())
    assert await measure_pace(router, model="m") == pytest.approx(0.075)  # of 10, 0.1, 0, 0.1, 0.1, 0.1
    assert router.questions[0].pins.route is Route.DIRECT
    assert router.questions[0].pins.cache_salt not in {None, "demo", "demo-without-relay"}
