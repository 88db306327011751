"""The benchmarks start roles as ``pdd up`` does; what they measure is run by hand, not here."""

import asyncio

import pytest
from benchmarks.processes import running_roles, wait_for_file

from pdd.cli.deploy.state import RoleKind
from pdd.core.errors import Unavailable
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
