"""The relay's tests notice when any of its guards is removed."""

import importlib
from random import Random

import pytest

from pdd.protocol import relay
from tests.support.mutants import mutated
from tests.support.relay_fault_scripts import FAULT_SCRIPTS
from tests.support.relay_mutants import MODULES, MUTANTS
from tests.support.relay_phase_scripts import PHASE_SCRIPTS
from tests.support.relay_properties import PROPERTIES
from tests.support.relay_scripts import SCRIPTS

NUM_SEEDS = 60


def noticed_by(module):
    """The first script or property that fails for ``module``, or None."""
    for script in (*SCRIPTS, *FAULT_SCRIPTS, *PHASE_SCRIPTS):
        if fails(lambda script=script: script(module)):
            return script.__name__
    for seed in range(NUM_SEEDS):
        for rule in PROPERTIES:
            if fails(lambda rule=rule, seed=seed: rule(module, Random(seed))):
                return f"{rule.__name__} (seed {seed})"
    return None


def fails(check) -> bool:
    try:
        check()
    except Exception:  # noqa: BLE001  a mutant may fail in any way: a broken rule, a refused event, a crash
        return True
    return False


def test_the_unchanged_source_passes_so_that_a_failure_means_the_mutation():
    assert noticed_by(relay) is None


def test_guards_are_named_once():
    names = [mutant.guard for mutant in MUTANTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_a_removed_guard_is_noticed(mutant):
    with mutated(mutant, *MODULES):
        module = importlib.import_module("pdd.protocol.relay")
    assert module is not relay
    assert noticed_by(module) is not None
