"""What a command changes about the topology that it launches for itself."""

from pdd.cli.deploy.launch import on_any_port, unshaped
from pdd.cli.topology.file import load_topology


def test_a_deployment_of_its_own_never_asks_for_the_topology_s_port():
    topology = load_topology("scripted")
    assert topology.router.port == 8000
    assert on_any_port(topology).router.port == 0
    assert on_any_port(topology).nodes == topology.nodes


def test_a_deployment_without_its_lines_keeps_everything_else():
    topology = load_topology("scripted")
    assert unshaped(topology).links == ()
    assert unshaped(topology).engines == topology.engines
