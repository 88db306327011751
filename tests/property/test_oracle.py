"""Pinned seeds run as they ran when they were pinned: what shows whether a change of structure changed behaviour."""

from __future__ import annotations

import pytest

from tests.support import oracle


@pytest.mark.parametrize("name", oracle.runs())
def test_a_pinned_run_is_as_it_was(name: str) -> None:
    assert oracle.runs()[name]() == oracle.pinned()[name], "python -m tests.support.oracle says what moved"


def test_every_pinned_run_is_run() -> None:
    assert oracle.runs().keys() == oracle.pinned().keys()
