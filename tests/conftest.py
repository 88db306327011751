"""Fixtures that every test may use."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """PDD runs on asyncio; the virtual-time loop is one too."""
    return "asyncio"
