from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from pdd.cli.verify.cases import Drawing, Outcome, Trial, count_requests, one_shot_case
from pdd.cli.verify.prompts import Prompt
from pdd.cli.verify.result import Played, exact_rate, passed, per_case, record
from pdd.cli.verify.show import show
from pdd.core.units import Seconds

PROMPTS = (Prompt(number=1, token_ids=tuple(range(321))),)
GOOD = Outcome(trial=Trial(prompt=1, case=one_shot_case(1), drawing=Drawing.GREEDY), relayed=True)
BAD = replace(GOOD, relayed=False, problem="differs from position 3 on", first_difference=3)
NEAR = replace(GOOD, first_difference=5, gap=2e-5)


def played(*outcomes: Outcome, direction: str = "embedded") -> Played:
    return Played(direction=direction, outcomes=outcomes, seconds=Seconds(2.0))


def shown(*plays: Played) -> str:
    console = Console(file=io.StringIO(), width=120)
    show(console, PROMPTS, plays)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_results_are_counted_by_case():
    assert per_case([GOOD, BAD, NEAR]) == {"one_shot_1": {"requests": 3, "exact": 1, "relays": 2}}


def test_near_ties_are_not_exact():
    assert exact_rate([GOOD, BAD]) == 0.5
    assert exact_rate([GOOD, NEAR, NEAR, GOOD]) == 0.5
    assert exact_rate([]) == 0.0


@pytest.mark.parametrize(
    ("plays", "right"),
    [
        ([played(GOOD)], True),
        ([played(GOOD, NEAR)], True),
        ([played(GOOD, BAD)], False),
        ([played(GOOD), played(BAD)], False),
        ([played(GOOD), played()], False),
    ],
)
def test_a_run_passes_if_something_was_tried_everywhere_and_nothing_was_wrong(plays: list[Played], right: bool):
    assert passed(plays) is right


def test_mismatches_and_near_ties_name_their_prompt_and_direction():
    made = record(PROMPTS, [played(GOOD, BAD, direction="a_to_b"), played(NEAR, direction="b_to_a")])
    where = {"prompt": 1, "prompt_tokens": 321, "case": "one_shot_1", "sampling": "greedy"}
    problem = "differs from position 3 on"
    assert made["mismatches"] == [where | {"direction": "a_to_b", "first_difference": 3, "problem": problem}]
    assert made["near_ties"] == [where | {"direction": "b_to_a", "first_difference": 5, "gap": 2e-5}]


def test_a_record_adds_up_its_directions():
    made = record(PROMPTS, [played(GOOD, BAD, direction="a_to_b"), played(NEAR, NEAR, direction="b_to_a")])
    assert (made["prompts"], made["requests"], made["relays"]) == (1, 2 * count_requests(1), 3)
    assert (made["exact_rate"], made["seconds"]) == (0.25, 4.0)
    assert made["per_direction"] == {
        "a_to_b": {"relays": 1, "exact_rate": 0.5, "near_ties": 0, "mismatches": 1, "seconds": 2.0},
        "b_to_a": {"relays": 2, "exact_rate": 0.0, "near_ties": 2, "mismatches": 0, "seconds": 2.0},
    }


def test_what_is_shown_says_where_it_went_wrong_and_where_it_was_near():
    text = shown(played(GOOD, BAD, direction="embedded_to_vllm"), played(NEAR, direction="vllm_to_embedded"))
    assert "embedded to vllm" in text
    assert "✗ prompt 1 (321 tokens), one_shot_1, greedy: differs from position 3 on" in text
    assert "~ prompt 1 (321 tokens), one_shot_1, greedy: a near tie at position 5, 2e-05 apart" in text
    assert "✗ 33.3% of 3 answers equal the unbroken engine's, token for token; 1 differ from a near tie on" in text


def test_a_run_without_near_ties_does_not_speak_of_them():
    text = shown(played(GOOD))
    assert "✓ 100.0% of 1 answers equal the unbroken engine's, token for token\n" in text
    assert "near tie" not in text
