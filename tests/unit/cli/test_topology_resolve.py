"""``pdd topology resolve`` and the KV format that a resolved topology carries: who writes it, who is held to it."""

import json

import msgspec
import pytest

from pdd.cli import main
from pdd.cli.topology.file import load_simulated_topology, load_topology
from pdd.cli.topology.formats import kv_format_of, with_kv_format
from pdd.cli.topology.ports import read_resolved, resolve, write_resolved
from pdd.cli.topology.source import TopologySource
from pdd.cli.topology.wiring import Exposure, check_node_topology
from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType, KvFormat, TensorSpec
from pdd.core.topology import KvFormatTable
from pdd.engine.catalog import model_of
from tests.support.house import ROOT

NODE = ROOT / "tests" / "data" / "node.toml"
TABLE = """[kv_format]
model = "tiny-random@seed-0"
block_tokens = 16

[[kv_format.layers]]
count = 2
tensors = [{ name = "kv", shape = [2, 2, 16], dtype = "float32" }]

"""
SOURCE = TopologySource(file="x.json")


def output_of(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def changed(tmp_path, old, new):
    text = NODE.read_text()
    assert old in text
    file = tmp_path / "test.toml"
    file.write_text(text.replace(old, new, 1))
    return str(file)


@pytest.mark.parametrize("name", ["default", "tiny", "scripted", "vllm-tiny"])
def test_a_resolved_file_carries_the_kv_format_of_its_model_and_is_read_back(capsys, tmp_path, name):
    file = tmp_path / "resolved.json"
    assert output_of(capsys, "topology", "resolve", name, "--output", str(file)) == (0, "", "")
    topology = read_resolved(file)
    expected = model_of(topology).kv_format(topology.block_tokens)
    assert topology.kv_format.kv_format == expected
    assert topology.kv_format.kv_format.fingerprint == expected.fingerprint
    assert len(topology.kv_format.layers) == 1, "layers that are alike are told once"
    assert file.stat().st_mode & 0o077 == 0
    check_node_topology(topology, SOURCE.refuse, Exposure.LOOPBACK)


def test_without_a_file_it_is_printed(capsys):
    code, out, err = output_of(capsys, "topology", "resolve", str(NODE))
    assert (code, err) == (0, "")
    assert msgspec.convert(json.loads(out), type(load_topology(str(NODE)))) == resolve(load_topology(str(NODE)))


def test_what_is_resolved_again_stays_the_same():
    once = resolve(with_kv_format(load_topology("tiny")))
    assert resolve(with_kv_format(once)) == once


def test_other_machines_hosts_and_ports_stay_as_they_are(capsys, tmp_path):
    file = changed(tmp_path, "port = 7001", 'host = "192.0.2.1"\nport = 7001')
    code, out, err = output_of(capsys, "topology", "resolve", file)
    assert (code, err) == (0, "")
    assert json.loads(out)["nodes"][0]["host"] == "192.0.2.1"


def test_layers_that_differ_are_told_apart():
    wide, narrow = (TensorSpec(name="kv", shape=(2, heads, 4), dtype=DType.BFLOAT16) for heads in (4, 1))
    kv_format = KvFormat(model="m@1", block_tokens=8, layers=((wide,), (wide,), (narrow, narrow), (wide,)))
    table = KvFormatTable.of(kv_format)
    assert [layers.count for layers in table.layers] == [2, 1, 1]
    assert table.kv_format == kv_format


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "shape = [2, 2, 16]",
            "shape = [2, 4, 16]",
            "kv_format: it is 'tiny-random@seed-0|block=16|2 x kv:float32[2x4x16]'",
        ),
        ("count = 2", "count = 3", "they differ in layers"),
        ('"tiny-random@seed-0"', '"tiny-random@seed-1"', "they differ in model"),
        ("block_tokens = 16\n\n[[kv", "block_tokens = 32\n\n[[kv", "they differ in block length"),
        ("count = 2", "count = 0", "kv_format.layers[0].count = 0: it must be at least 1"),
        (
            "shape = [2, 2, 16]",
            "shape = [2, 0, 16]",
            "kv_format.layers[0].tensors[0].shape[1] = 0: it must be at least 1",
        ),
        ("count = 2", "cuont = 2", "kv_format.layers[0].cuont: unknown key; did you mean 'count'?"),
        (
            'dtype = "float32"',
            'dtype = "float8"',
            "kv_format.layers[0].tensors[0].dtype = 'float8': it must be one of: ",
        ),
        ("tensors = [{", "tensors = [] # [{", "kv_format.layers[0].tensors: it must be at least 1"),
    ],
)
def test_a_kv_format_that_the_model_does_not_have_is_refused_in_one_line(capsys, tmp_path, old, new, said):
    file = changed(tmp_path, old, new)
    code, out, err = output_of(capsys, "topology", "resolve", file)
    assert (code, out) == (2, "")
    assert err.startswith(f"pdd: {file}: kv_format")
    assert said in err
    assert err.count("\n") == 1


def test_an_engine_is_held_to_the_kv_format_that_its_file_carries():
    resolved = with_kv_format(load_topology("tiny"))
    other = msgspec.structs.replace(resolved, kv_dtype=DType.BFLOAT16)
    with pytest.raises(
        ConfigError, match=r"^x\.json: kv_format: it is .*float32.*, but model 'tiny-random' has .*bfloat16"
    ):
        kv_format_of(other, model_of(other), SOURCE.refuse)


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_node_without_a_kv_format_ends_in_one_line_that_says_what_to_run(capsys, tmp_path, suffix):
    file = changed(tmp_path, TABLE, "")
    if suffix == "json":
        topology, file = load_topology(file), str(tmp_path / "resolved.json")
        write_resolved(topology, tmp_path / "resolved.json")
    code, out, err = output_of(capsys, "node", "--topology", file, "--name", "node", "--state-dir", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == (
        f"pdd: {file}: kv_format: this key is missing: a KV node reads from it what its blocks are; `pdd topology "
        "resolve` writes a file that has it\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "block_tokens = 16\n\n[[kv",
            "block_tokens = 32\n\n[[kv",
            "kv_format.block_tokens = 32: node 'node' has block_tokens = 16",
        ),
        (
            'arena = "4 MiB"',
            'arena = "4 KiB"',
            "nodes[0].arena = '4 KiB': one request of max_model_tokens = 512 needs 262144",
        ),
        ('node = "node"', 'node = "edon"', "engines[0].node = 'edon': there is no such node"),
        ("port = 7001", 'port = 7001\nhost = "0.0.0.0"', "nodes[0].host = '0.0.0.0': its traffic is neither encrypted"),
    ],
)
def test_a_node_checks_what_needs_no_model(capsys, tmp_path, old, new, said):
    file = changed(tmp_path, old, new)
    code, _, err = output_of(capsys, "node", "--topology", file, "--name", "node", "--state-dir", str(tmp_path))
    assert code == 2
    assert said in err


def test_a_resolved_file_is_named_so_that_roles_take_it_for_one(capsys, tmp_path):
    code, out, err = output_of(capsys, "topology", "resolve", "tiny", "--output", str(tmp_path / "two.toml"))
    assert (code, out) == (2, "")
    assert "two.toml: roles read it as JSON if its name ends in .json" in err
    code, _, err = output_of(capsys, "topology", "resolve", "tiny", "--output", str(tmp_path / "none" / "two.json"))
    assert (code, err) == (2, f"pdd: --output {tmp_path}/none/two.json: No such file or directory\n")


def test_a_simulation_takes_no_kv_format(tmp_path):
    paper = (ROOT / "src/pdd/sim/topologies/paper.toml").read_text()
    file = tmp_path / "paper.toml"
    file.write_text(f"{paper}\n{TABLE}")
    with pytest.raises(ConfigError, match=r"kv_format: a simulated deployment's blocks"):
        load_simulated_topology(str(file))
