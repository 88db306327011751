import msgspec
import pytest

from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.topology import Address, EngineTable, LinkTable, NodeTable, RouterTable, Topology

NODE_A = NodeTable(name="node-a", cluster="A", port=7001)
NODE_B = NodeTable(name="node-b", cluster="B", host="127.0.0.2", port=7002)
PREFILL = EngineTable(name="prefill", role=Role.PREFILL, cluster="A", node="node-a", port=8001)
MAIN = EngineTable(name="main", role=Role.MAIN_DECODE, cluster="B", node="node-b", port=8002)
WAN = LinkTable(name="wan", clusters=("A", "B"), rate_bits_per_s=20e6, forwards={"node-b": 9002, "main": 9003})


def _topology(links=(WAN,), engines=(PREFILL, MAIN)):
    return Topology(
        name="t", model="m", nodes=(NODE_A, NODE_B), engines=engines, router=RouterTable(cluster="A"), links=links
    )


def test_within_a_cluster_an_endpoint_is_reached_where_it_listens():
    assert _topology().address_of(NODE_B, seen_from="B") == Address(host="127.0.0.2", port=7002)


def test_across_a_link_an_endpoint_is_reached_through_the_emulator():
    assert _topology().address_of(NODE_B, seen_from="A") == Address(host="127.0.0.1", port=9002)
    assert _topology().address_of(MAIN, seen_from="A") == Address(host="127.0.0.1", port=9003)


def test_clusters_without_a_link_between_them_are_reached_directly():
    assert _topology(links=()).address_of(NODE_B, seen_from="A") == Address(host="127.0.0.2", port=7002)


def test_a_link_joins_its_clusters_both_ways():
    topology = _topology()
    assert topology.link_between("A", "B") is topology.link_between("B", "A") is WAN
    assert topology.link_between("A", "C") is None


def test_tables_are_found_by_name():
    topology = _topology()
    assert topology.node("node-b") is NODE_B
    assert topology.engine("main") is MAIN
    assert topology.link("wan") is WAN
    other = LinkTable(name="other", clusters=("B", "C"), rate_bits_per_s=1e6)
    assert _topology(links=(WAN, other)).link("other") is other
    assert list(topology.endpoints()) == [NODE_A, NODE_B, PREFILL, MAIN]


def test_engines_are_found_by_role():
    assert _topology().engines_of(Role.MAIN_DECODE) == (MAIN,)
    assert _topology().engines_of(Role.RELAY_DECODE) == ()


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda t: t.node("x"), "no node named 'x'; nodes: node-a, node-b"),
        (lambda t: t.engine("x"), "no engine named 'x'; engines: prefill, main"),
        (lambda t: t.link("x"), "no link named 'x'; links: none"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(find, message):
    with pytest.raises(ConfigError, match=message):
        find(_topology(links=()))


def test_an_address_is_written_as_urls_need_it():
    assert str(Address(host="127.0.0.1", port=80)) == "127.0.0.1:80"
    assert str(Address(host="::1", port=80)) == "[::1]:80"


def test_unknown_keys_are_refused():
    with pytest.raises(msgspec.ValidationError, match="prot"):
        msgspec.convert({"name": "n", "cluster": "A", "prot": 1}, NodeTable)


def test_a_topology_survives_json():
    assert msgspec.json.decode(msgspec.json.encode(_topology()), type=Topology) == _topology()
