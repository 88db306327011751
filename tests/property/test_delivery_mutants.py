"""The tests of deliveries notice when any of their guards is removed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.support.capacity_queue_scripts import SCRIPTS as QUEUE_SCRIPTS
from tests.support.delivery_module import SOURCES, deliveries_from
from tests.support.delivery_mutants import MUTANTS
from tests.support.delivery_properties import PROPERTIES
from tests.support.delivery_scripts import SCRIPTS
from tests.support.mutants import Mutant

NUM_SEEDS = 20


def noticed_by(m: Any) -> str | None:
    """The first script or property that fails for ``m``, or None."""
    for script in (*SCRIPTS, *QUEUE_SCRIPTS):
        if fails(lambda script=script: script(m)):
            return script.__name__
    for seed in range(NUM_SEEDS):
        for rule in PROPERTIES:
            if fails(lambda rule=rule, seed=seed: rule(m, Random(seed))):
                return f"{rule.__name__} (seed {seed})"
    return None


def fails(check) -> bool:
    try:
        check()
    except Exception:  # noqa: BLE001  a mutant may fail in any way: a broken rule, a refused event, a crash
        return True
    return False


def test_the_unchanged_sources_pass_so_that_a_failure_means_the_mutation() -> None:
    with deliveries_from() as m:
        assert noticed_by(m) is None


def test_guards_are_named_once() -> None:
    names = [(mutant.module, mutant.guard) for mutant in MUTANTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.module}: {mutant.guard}")
def test_a_removed_guard_is_noticed(mutant: Mutant) -> None:
    name = mutant.module.rpartition(".")[2]
    source = SOURCES[name]
    assert source.count(mutant.old) == 1, "a mutant's text occurs exactly once"
    with deliveries_from(name, source.replace(mutant.old, mutant.new)) as m:
        assert noticed_by(m) is not None
