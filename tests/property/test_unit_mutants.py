"""Unit tests notice when a rule of the policies is removed, or a guard of the beliefs, of a batch, or of the driver
where no random world misses it.
"""

from __future__ import annotations

import pytest

from tests.support import batch_mutants, belief_mutants, driver_mutants, policy_mutants
from tests.support.mutants import ROOT, UnitMutant, failure_of, mutated

CHANGED = (
    f"{ROOT}.router",
    f"{ROOT}.policy",
    f"{ROOT}.belief",
    "tests.unit",
    "tests.support.worlds",
    "tests.support.beliefs",
)
"""What is made anew around a mutant of the driver, or of a belief."""

ALL = (*policy_mutants.MUTANTS, *belief_mutants.MUTANTS, *driver_mutants.MUTANTS, *batch_mutants.MUTANTS)


def test_guards_are_named_once() -> None:
    names = [(mutant.module, mutant.guard) for mutant in ALL]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("killer", sorted({mutant.killer for mutant in ALL}))
def test_without_a_mutant_the_tests_pass_so_that_a_failure_means_the_mutation(killer: str) -> None:
    assert failure_of(killer) is None


@pytest.mark.parametrize("mutant", policy_mutants.MUTANTS, ids=lambda mutant: f"{mutant.module}: {mutant.guard}")
def test_a_policy_without_one_of_its_rules_is_noticed(mutant: UnitMutant) -> None:
    with mutated(mutant, f"{ROOT}.policy", f"{ROOT}.belief", "tests.unit", "tests.support.views"):
        assert failure_of(mutant.killer) is not None


@pytest.mark.parametrize("mutant", belief_mutants.MUTANTS, ids=lambda mutant: f"{mutant.module}: {mutant.guard}")
def test_a_belief_without_one_of_its_guards_is_noticed(mutant: UnitMutant) -> None:
    with mutated(mutant, *CHANGED):
        assert failure_of(mutant.killer) is not None


@pytest.mark.parametrize("mutant", driver_mutants.MUTANTS, ids=lambda mutant: f"{mutant.module}: {mutant.guard}")
def test_a_driver_without_one_of_its_guards_is_noticed(mutant: UnitMutant) -> None:
    with mutated(mutant, *CHANGED):
        assert failure_of(mutant.killer) is not None


@pytest.mark.parametrize("mutant", batch_mutants.MUTANTS, ids=lambda mutant: mutant.guard)
def test_a_batch_that_puts_the_wrong_steps_together_is_noticed(mutant: UnitMutant) -> None:
    with mutated(mutant, f"{ROOT}.sim.engine_batch", "tests.unit.sim"):
        assert failure_of(mutant.killer) is not None
