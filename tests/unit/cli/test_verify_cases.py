from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.cli.verify.cases import (
    CATCH_UP_AFTER,
    ONE_SHOT_AFTER,
    REFERENCE_TOKENS,
    Case,
    Drawing,
    Outcome,
    Trial,
    catch_up_case,
    direct_case,
    exact_rate,
    first_difference,
    judge,
    mismatches,
    one_shot_case,
    per_case,
    trials_of,
)
from pdd.cli.verify.prompts import make_prompts
from pdd.core.request import Route
from tests.unit.cli.recordings import MD, RLD, P, answer, event, spans


def trial(case: Case) -> Trial:
    return Trial(prompt=1, case=case, drawing=Drawing.GREEDY)


def relayed(eager: int, main: int, *, extends: int = 0):
    rows = spans((0.1, P, 1, ""), (0.2, RLD, eager, ""), (0.3, MD, main, ""))
    return answer(rows, *(event(0.2, "extended") for _ in range(extends)))


def test_every_prompt_tries_each_case_greedy_and_seeded():
    tried = [(each.case.name, each.drawing) for each in trials_of(1)]
    names = ("direct", "catch_up", *(f"one_shot_{after}" for after in (1, 2, 15, 16, 17, 33, 64, 100)))
    assert sorted(tried) == sorted((name, drawing) for name in names for drawing in Drawing)
    assert sum(each.case.is_relay for each in trials_of(1)) >= 8


def test_no_answer_is_longer_than_the_reference():
    assert max(each.case.max_tokens for each in trials_of(1)) <= REFERENCE_TOKENS
    assert all(one_shot_case(after).max_tokens > after + 1 for after in ONE_SHOT_AFTER)


def test_an_exact_relay_of_the_right_length_counts():
    outcome = judge(trial(one_shot_case(16)), relayed(16, 24), range(REFERENCE_TOKENS))
    assert outcome == Outcome(trial=trial(one_shot_case(16)), relayed=True)


def test_one_wrong_token_is_a_mismatch_at_its_position():
    reference = list(range(REFERENCE_TOKENS))
    reference[20] = 9999
    outcome = judge(trial(one_shot_case(16)), relayed(16, 24), reference)
    assert outcome.first_difference == 20
    assert outcome.problem == "differs from position 20 on"


@pytest.mark.parametrize("eager", [15, 17])
def test_a_relay_of_another_length_proves_nothing(eager: int):
    outcome = judge(trial(one_shot_case(16)), relayed(eager, 40 - eager), range(REFERENCE_TOKENS))
    assert not outcome.relayed
    assert outcome.problem == f"not relayed as asked: relay decode computed {eager} tokens instead of 16"


def test_a_relay_that_never_reached_main_decode_proves_nothing():
    rows = spans((0.1, P, 1, ""), (0.2, RLD, 40, ""))
    outcome = judge(trial(one_shot_case(16)), answer(rows), range(REFERENCE_TOKENS))
    assert not outcome.relayed
    assert outcome.problem == "main decode computed none of it"


def test_a_direct_answer_that_was_relayed_is_not_direct():
    outcome = judge(trial(direct_case()), relayed(2, 61), range(REFERENCE_TOKENS))
    assert outcome.problem == "relay decode computed 2 tokens of a direct answer"


def test_a_direct_answer_is_no_relay():
    rows = spans((0.1, P, 1, ""), (0.2, MD, 63, ""))
    outcome = judge(trial(direct_case()), answer(rows), range(REFERENCE_TOKENS))
    assert outcome == Outcome(trial=trial(direct_case()), relayed=False)


def test_catching_up_needs_a_batch_that_was_extended_on_the_way():
    case = catch_up_case()
    eager = CATCH_UP_AFTER + 20
    main = case.max_tokens - eager - 1
    assert judge(trial(case), relayed(eager, main, extends=2), range(REFERENCE_TOKENS)).problem is None
    without = judge(trial(case), relayed(eager, main), range(REFERENCE_TOKENS))
    assert (without.relayed, without.problem) == (
        False,
        "not relayed as asked: nothing was extended while relay decode went on",
    )


def test_a_short_answer_differs_where_it_ends():
    assert first_difference((1, 2), (1, 2, 3)) == 2
    assert first_difference((1, 2, 3), (1, 2)) == 2
    assert first_difference((1, 2), (1, 2)) is None
    assert first_difference((), ()) is None


def test_results_are_counted_by_case_and_mismatches_name_their_prompt():
    good = Outcome(trial=trial(one_shot_case(1)), relayed=True)
    bad = replace(good, relayed=False, problem="differs from position 3 on", first_difference=3)
    assert exact_rate([good, bad]) == 0.5
    assert exact_rate([]) == 0.0
    assert per_case([good, bad]) == {"one_shot_1": {"requests": 2, "exact": 1, "relays": 1}}
    assert mismatches([good, bad], {1: 321}) == [
        {
            "prompt": 1,
            "prompt_tokens": 321,
            "case": "one_shot_1",
            "sampling": "greedy",
            "first_difference": 3,
            "problem": "differs from position 3 on",
        }
    ]


def test_direct_trials_pin_the_direct_route():
    assert direct_case().pins.route is Route.DIRECT
    assert not direct_case().is_relay


def letters(text: str) -> list[int]:
    return list(text.encode())


def test_prompts_depend_on_the_seed_only():
    one, same, other = (make_prompts(letters, count=6, seed=seed) for seed in (1, 1, 2))
    assert one == same != other


def test_prompts_have_20_to_800_tokens_and_short_ones_are_not_rare():
    lengths = sorted(len(prompt.token_ids) for prompt in make_prompts(letters, count=60, seed=3))
    assert lengths[0] >= 20
    assert lengths[-1] <= 800
    assert 20 <= sum(length < 127 for length in lengths) <= 40


def test_prompts_differ_from_each_other():
    prompts = make_prompts(letters, count=20, seed=0)
    assert len({prompt.token_ids for prompt in prompts}) == 20
    assert [prompt.number for prompt in prompts] == list(range(1, 21))
