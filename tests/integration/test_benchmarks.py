"""The benchmarks start roles as ``pdd up`` does, and measure the commit that is meant. Figures are for runs by hand."""

import asyncio
from pathlib import Path

import pytest
from benchmarks import router
from benchmarks.processes import running_roles, wait_for_file
from benchmarks.trees import checked_out

from pdd.cli.deploy.state import RoleKind
from pdd.core.errors import ConfigError, Unavailable
from pdd.core.topology import LOOPBACK, Address
from pdd.transport.emulate_control import Show, ask_link
from tests.support.live import packaged_topology

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


async def shown(control: Address) -> str:
    async with asyncio.timeout(30):
        while True:
            try:
                return (await ask_link(control, Show())).name
            except Unavailable:
                await asyncio.sleep(0.05)


def test_single_roles_of_a_topology_run_beside_each_other() -> None:
    topology = packaged_topology("scripted", rate=20_000_000)
    with running_roles(topology, (RoleKind.NODE, "node-p"), (RoleKind.WAN, "wan")) as roles:
        wait_for_file(roles.run.node_socket(topology.node("node-p").name))
        link = roles.topology.link("wan")
        assert asyncio.run(shown(Address(host=LOOPBACK, port=link.control_port))) == "wan"


@pytest.mark.timeout(180)  # a whole deployment, two simulations and a world, each in a process that imports all of it
def test_the_router_is_measured_in_processes_of_their_own() -> None:
    result = router.run(1, smallest=True)
    assert {row.name.partition(": ")[2] for row in result.rows} == {"this tree"}
    assert all(row.median > 0 for row in result.rows)


def test_a_commit_that_does_not_exist_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"--against no-such: no such commit can be checked out from [^\n]+$"):
        router.run(1, against="no-such")


def test_where_no_repository_is_there_is_no_commit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a git repository"), checked_out("HEAD", root=tmp_path):
        pass


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="--against HEAD: git can't be run"), checked_out("HEAD"):
        pass
