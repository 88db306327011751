"""Random worlds notice when any of the driver's guards is removed."""

from __future__ import annotations

import importlib
import sys

import pytest

import pdd.sim.chaos.play
from tests.support.chaos_mutants import MUTANTS, NUM_WORLDS, ChaosMutant, noticed_by
from tests.support.mutants import ROOT, mutated


def test_guards_are_named_once() -> None:
    names = [mutant.guard for mutant in MUTANTS]
    assert len(names) == len(set(names))


def test_the_real_package_is_untouched_by_a_mutant() -> None:
    real = sys.modules["pdd.sim.chaos.play"]
    with mutated(MUTANTS[0], ROOT):
        assert importlib.import_module(real.__name__) is not real
    assert sys.modules["pdd.sim.chaos.play"] is real
    assert pdd.sim.chaos.play is real


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_a_removed_guard_is_noticed(mutant: ChaosMutant) -> None:
    assert noticed_by(mutant, (mutant.seed, *range(NUM_WORLDS))) is not None
