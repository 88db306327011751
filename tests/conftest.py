"""Fixtures that every test may use, and how Hypothesis looks for counterexamples."""

import os
import signal
from collections.abc import AsyncGenerator

import pytest
from hypothesis import HealthCheck, settings

from pdd.cli.deploy.forking import ForkServers
from tests.support.changes import changed_modules
from tests.support.mutants import Mutant

# Examples are never timed: these machines are shared. In CI every run tries the same ones, so that red means changed.
settings.register_profile(
    "pdd",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("pdd")

# What a shell starts in the background ignores it, and hands that on. Tests interrupt commands.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What tells a command how to draw for whoever watches the tests: they read what it writes.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A mutant of a module that did not change is thorough, and so is the test that its killer passes without it."""
    changed = changed_modules()
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        mutant = parameters.get("mutant")
        is_known = isinstance(mutant, Mutant) and changed is not None and mutant.module_name not in changed
        if is_known or "killer" in parameters:
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """PDD runs on asyncio; the virtual-time loop is one too. Of the session, so that fixtures may outlive a test."""
    return "asyncio"


@pytest.fixture(scope="session")
async def forks(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[ForkServers]:
    """All vLLM engines of a session are forked from one process, which alone imports vLLM: that takes most
    of a start.
    """
    servers = ForkServers(tmp_path_factory.mktemp("forks") / "log")
    yield servers
    await servers.close()
