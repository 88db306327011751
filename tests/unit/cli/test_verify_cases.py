from __future__ import annotations

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
    count_requests,
    direct_case,
    first_difference,
    judge,
    one_shot_case,
    trials_of,
)
from pdd.cli.verify.near_ties import NEAR_TIE, Rivals
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
    names = ("direct", "catch_up", *(f"one_shot_{after}" for after in (1, 2, 7, 15, 16, 17, 32, 33, 64, 100)))
    assert sorted(tried) == sorted((name, drawing) for name in names for drawing in Drawing)
    assert sum(each.case.is_relay for each in trials_of(1)) >= 8


def test_requests_are_counted_with_the_references():
    assert count_requests(3) == 3 * (2 + len(list(trials_of(1))))


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


def close(best: int, second: int, gap: float = NEAR_TIE / 2) -> Rivals:
    return Rivals(best=best, second=second, gap=gap)


def judged_with(rivals: Rivals, *, at: int = 20) -> Outcome:
    """The reference has token 9999 where the answer's tokens are their positions."""
    reference = list(range(REFERENCE_TOKENS))
    reference[at] = 9999
    return judge(trial(one_shot_case(16)), relayed(16, 24), reference, rivals)


@pytest.mark.parametrize("rivals", [close(9999, 20), close(20, 9999)])
def test_a_difference_at_a_near_tie_of_these_two_tokens_is_forgiven_but_not_exact(rivals: Rivals):
    outcome = judged_with(rivals)
    assert (outcome.problem, outcome.near_tie, outcome.exact, outcome.relayed) == (None, True, False, True)
    assert (outcome.first_difference, outcome.gap) == (20, NEAR_TIE / 2)


def test_what_follows_a_near_tie_is_not_compared():
    reference = [*range(20), *range(9000, 9000 + REFERENCE_TOKENS)]
    outcome = judge(trial(one_shot_case(16)), relayed(16, 24), reference, close(9000, 20))
    assert outcome.near_tie


@pytest.mark.parametrize("gap", [NEAR_TIE, 2e-3])
def test_a_difference_between_tokens_further_apart_is_a_mismatch(gap: float):
    outcome = judged_with(close(9999, 20, gap))
    assert outcome.problem == f"differs from position 20 on: the two best tokens are {gap:.2g} apart"
    assert not outcome.near_tie


@pytest.mark.parametrize("rivals", [close(9999, 7), close(7, 20), close(7, 8)])
def test_a_near_tie_of_other_tokens_explains_nothing(rivals: Rivals):
    outcome = judged_with(rivals)
    assert outcome.problem == "differs from position 20 on: it isn't one of the two best tokens for the other"


@pytest.mark.parametrize("main", [4, 3])
def test_an_answer_that_ends_early_is_a_mismatch_whatever_the_scores(main: int):
    tokens = 1 + 16 + main
    outcome = judge(trial(one_shot_case(16)), relayed(16, main), range(REFERENCE_TOKENS), close(tokens, 9999))
    assert outcome.problem == f"differs from position {tokens} on, and has {tokens} tokens instead of 41"


def test_an_answer_that_ends_early_after_a_near_tie_is_a_mismatch():
    reference = [*range(20), 9999, *range(21, REFERENCE_TOKENS)]
    outcome = judge(trial(one_shot_case(16)), relayed(16, 10), reference, close(9999, 20))
    assert outcome.problem == "differs from position 20 on, and has 27 tokens instead of 41"


def test_a_near_tie_does_not_excuse_a_relay_that_was_none():
    reference = [*range(20), 9999, *range(21, REFERENCE_TOKENS)]
    outcome = judge(trial(one_shot_case(16)), relayed(15, 25), reference, close(9999, 20))
    assert outcome.problem == "not relayed as asked: relay decode computed 15 tokens instead of 16"
    assert not outcome.near_tie


def test_without_scores_nothing_is_forgiven():
    reference = [*range(20), 9999, *range(21, REFERENCE_TOKENS)]
    outcome = judge(trial(one_shot_case(16)), relayed(16, 24), reference)
    assert (outcome.problem, outcome.near_tie) == ("differs from position 20 on", False)


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
