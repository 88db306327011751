"""Every program in ``examples`` runs as its own documentation says, against a deployment in real processes."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from pdd.cli.deploy.launch import launched
from pdd.cli.topology.file import load_topology
from pdd.core.request import Role
from pdd.core.topology import TenantTable

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

API_KEY = "acme-key"
EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS_A_ROUTER = {
    "chat.py": ("How are you?", "--max-tokens", "8"),
    "who_computed_what.py": ("How are you?", "--handoff-after", "5"),
    "second_turn.py": (),
}
NEEDS_NOTHING = {"relay_on_virtual_time.py": ()}


@asynccontextmanager
async def router() -> AsyncGenerator[str]:
    """The address of a router over scripted engines that has tenants, as that of ``two_prefills.toml`` has."""
    topology = load_topology("scripted")
    with_tenants = msgspec.structs.replace(topology.router, tenants=(TenantTable(name="acme", api_key=API_KEY),))
    async with launched(msgspec.structs.replace(topology, router=with_tenants), Console(quiet=True)) as deployment:
        yield deployment.router_url


async def run(example: str, *arguments: str) -> str:
    """Standard output of an example that ends well within a minute."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, EXAMPLES / example, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out.decode()


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*NEEDS_A_ROUTER, *NEEDS_NOTHING}


async def test_the_examples_that_ask_a_router_say_what_they_promise():
    async with router() as url:
        chat, traced, turns = [
            await run(name, *given, "--url", url, "--api-key", API_KEY) for name, given in NEEDS_A_ROUTER.items()
        ]
    assert re.search(r"-- \d+ prompt tokens, 8 answer tokens", chat)
    assert "prefill at P: 1 tokens\nrelay_decode at RLD: 5 tokens\nmain_decode at MD: 42 tokens\n" in traced
    assert "route relay: the request asked for it" in traced
    assert "handed_off" in traced
    first, second = (int(size) for size in re.findall(r"(\d+) bytes of KV over the WAN", turns))
    assert 0 < second < first / 2


async def test_a_slow_line_relays_and_a_quick_one_does_not_on_virtual_time():
    slow = await run("relay_on_virtual_time.py")
    assert "route relay" in slow
    assert f"tokens by {Role.RELAY_DECODE}" in slow
    assert "the answer is right" in slow
    quick = await run("relay_on_virtual_time.py", "--megabits", "1000")
    assert "route direct" in quick
    assert "the answer is right" in quick


def test_the_example_topology_is_accepted():
    topology = load_topology(str(EXAMPLES / "two_prefills.toml"))
    assert [engine.name for engine in topology.engines_of(Role.PREFILL)] == ["P", "P2"]
    assert [tenant.name for tenant in topology.router.tenants] == ["acme", "umbrella"]
