"""A queue for capacity at a node: one asks at a time, in order, as soon as there may be some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdd.protocol import capacity_queue
from tests.support.capacity_queue_scripts import SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_only_the_first_asks(script: Callable[[Any], None]) -> None:
    script(capacity_queue)
