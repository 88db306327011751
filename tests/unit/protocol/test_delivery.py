"""What a delivery commands in each situation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdd.protocol import delivery
from tests.support.delivery_scripts import SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_it_commands_what_the_situation_calls_for(script: Callable[[Any], None]) -> None:
    script(delivery)
