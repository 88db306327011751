"""Fixtures that every test may use, and how Hypothesis looks for counterexamples."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Examples are never timed: these machines are shared. In CI every run tries the same ones, so that red means changed.
settings.register_profile(
    "pdd",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("pdd")


@pytest.fixture
def anyio_backend() -> str:
    """PDD runs on asyncio; the virtual-time loop is one too."""
    return "asyncio"
