"""What tests of vLLM share. They run where it is installed (`make test-vllm`); elsewhere there are none.

A test imports vLLM inside itself or its fixtures, never at the top of its module: what vLLM imports warns a lot, and
while tests are collected a warning is an error.
"""

import os
from collections.abc import AsyncGenerator, Generator
from importlib.util import find_spec

import pytest

from pdd.cli.deploy.forking import ForkServers
from tests.support.live import QUICK_RESTARTS, Live, live, packaged_topology

_INSTALLED = find_spec("vllm") is not None
collect_ignore_glob = [] if _INSTALLED else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starting engines takes a while on a busy machine, and what their libraries warn of is theirs."""
    for item in items:
        if "tests/vllm/" in item.path.as_posix():
            for kind in ("DeprecationWarning", "FutureWarning", "UserWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"default::{kind}"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="module", autouse=True)
def environment_as_it_was() -> Generator[None]:
    """An engine made in this process has vLLM say how to start processes, in the environment that later deployments
    get.
    """
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
async def vllm_deployment(forks: ForkServers) -> AsyncGenerator[Live]:
    """Three vLLM engines of the tiny model in a deployment, for all tests of a module; they must leave it as it was."""
    async with live(packaged_topology("vllm-tiny"), timing=QUICK_RESTARTS, forks=forks) as deployment:
        await deployment.until_healthy()
        yield deployment
