"""Every route, hand-off and loss as a script of events and the exact commands that answer them."""

from typing import get_args

import pytest

from pdd.protocol import relay, relay_phases
from tests.support.relay_fault_scripts import FAULT_SCRIPTS
from tests.support.relay_phase_scripts import PHASE_SCRIPTS, REACHED
from tests.support.relay_scripts import SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_without_losses(script):
    script(relay)


@pytest.mark.parametrize("script", FAULT_SCRIPTS, ids=lambda script: script.__name__)
def test_with_losses(script):
    script(relay)


@pytest.mark.parametrize("script", PHASE_SCRIPTS, ids=lambda script: script.__name__)
def test_its_phases(script):
    script(relay)


def test_every_phase_has_a_script_that_reaches_it():
    names = [phase.__name__ for phase in get_args(relay_phases.Phase)]
    assert names == ["New", *REACHED, "Over"]
