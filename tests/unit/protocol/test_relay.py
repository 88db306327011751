"""Every route, hand-off and loss as a script of events and the exact commands that answer them."""

import pytest

from pdd.protocol import relay
from tests.support.relay_fault_scripts import FAULT_SCRIPTS
from tests.support.relay_scripts import SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_without_losses(script):
    script(relay)


@pytest.mark.parametrize("script", FAULT_SCRIPTS, ids=lambda script: script.__name__)
def test_with_losses(script):
    script(relay)
