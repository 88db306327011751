"""Resolving ports."""

import socket

import msgspec
import pytest

from pdd.cli.topology.file import load_topology
from pdd.cli.topology.ports import (
    _FIRST_PORT,
    _bind_alone,
    read_resolved,
    require_resolved,
    reserved,
    resolve,
    write_resolved,
)
from pdd.core.errors import ConfigError
from pdd.core.topology import LOOPBACK


@pytest.fixture
def topology():
    loaded = load_topology("scripted")
    return msgspec.structs.replace(loaded, router=msgspec.structs.replace(loaded.router, port=0))


def all_ports(topology):
    yield topology.router.port
    yield from (each.port for each in topology.endpoints())
    for link in topology.links:
        yield link.control_port
        yield from link.forwards.values()


def test_a_resolved_topology_has_no_port_0_and_none_twice(topology):
    ports = list(all_ports(resolve(topology)))
    assert 0 not in ports
    assert len(set(ports)) == len(ports)


def test_a_link_forwards_to_every_node_and_to_engines_beyond_it(topology):
    (link,) = resolve(topology).links
    assert set(link.forwards) == {"node-p", "node-rld", "node-md", "MD"}


def test_the_far_side_is_reached_through_the_link_and_the_near_side_directly(topology):
    resolved = resolve(topology)
    (link,) = resolved.links
    node = resolved.node("node-md")
    assert resolved.address_of(node, seen_from="A").port == link.forwards["node-md"]
    assert resolved.address_of(node, seen_from="B").port == node.port


def test_fixed_ports_stay(topology):
    first = resolve(topology)
    second = resolve(first)
    assert second == first


def test_a_reserved_port_is_chosen_by_nobody_else_and_its_role_can_listen_there_again_and_again(topology):
    with reserved(topology) as resolved:
        for port in all_ports(resolved):
            for _ in range(2):
                with pytest.raises(OSError, match="in use"):
                    _bind_alone(LOOPBACK, port)
                socket.create_server((LOOPBACK, port)).close()
    for port in all_ports(resolved):
        _bind_alone(LOOPBACK, port).close()


def test_a_fixed_port_that_is_in_use_is_refused_by_key(topology):
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        busy = msgspec.structs.replace(topology, router=msgspec.structs.replace(topology.router, port=port))
        with pytest.raises(ConfigError, match=rf"topology 'scripted': router\.port = {port}: .*in use"), reserved(busy):
            pass
        assert resolve(busy).router.port == port, "it may be another machine's"


def test_a_fixed_port_is_chosen_for_nobody_else(topology, monkeypatch):
    monkeypatch.setattr("pdd.cli.topology.ports._END_PORT", _FIRST_PORT + 40)
    fixed = msgspec.structs.replace(topology, router=msgspec.structs.replace(topology.router, port=_FIRST_PORT + 7))
    ports = list(all_ports(resolve(fixed)))
    assert len(set(ports)) == len(ports)


def test_a_host_that_is_none_of_ours_is_refused(topology):
    elsewhere = msgspec.structs.replace(topology.nodes[0], host="192.0.2.1")
    with pytest.raises(ConfigError, match=r"host = '192\.0\.2\.1': can't listen there"):
        resolve(msgspec.structs.replace(topology, nodes=(elsewhere, *topology.nodes[1:])))


def test_what_is_written_is_read_back_and_private(topology, tmp_path):
    resolved = resolve(topology)
    file = tmp_path / "topology.json"
    write_resolved(resolved, file)
    assert read_resolved(file) == resolved
    assert file.stat().st_mode & 0o077 == 0


def test_a_file_that_was_readable_by_others_becomes_private(topology, tmp_path):
    file = tmp_path / "topology.json"
    file.write_text("{}")
    file.chmod(0o644)
    write_resolved(resolve(topology), file)
    assert file.stat().st_mode & 0o077 == 0


def test_a_role_needs_fixed_ports(topology):
    with pytest.raises(ConfigError, match=r"router\.port = 0.*pdd up"):
        require_resolved(topology, "x.toml")
    resolved = resolve(topology)
    (link,) = resolved.links
    holed = msgspec.structs.replace(resolved, links=(msgspec.structs.replace(link, forwards={}),))
    with pytest.raises(ConfigError, match=r"links\[0\]\.forwards\.node-p: this key is missing"):
        require_resolved(holed, "x.toml")


def test_a_missing_or_damaged_resolved_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_resolved(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"name": 3}')
    with pytest.raises(ConfigError, match="not a resolved topology"):
        read_resolved(tmp_path / "bad.json")
