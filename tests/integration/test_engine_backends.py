"""``pdd engine`` as another engine than the topology's, and what is said where vLLM is not there."""

import json
import shlex
import subprocess
import sys
from importlib.util import find_spec

import pytest

from pdd.cli.topology.file import load_topology
from pdd.cli.topology.ports import resolve, write_resolved

PDD = (sys.executable, "-m", "pdd.cli")
WITHOUT_VLLM = pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")


def run(*arguments: str):
    return subprocess.run([*PDD, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """A resolved topology whose MD alone is vLLM; models are written below the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "topology.json"
    write_resolved(resolve(load_topology("mixed-tiny")), file)
    return str(file)


def test_the_equivalent_vllm_command_is_printed_and_names_this_node(mixed, tmp_path):
    found = run("engine", "--topology", mixed, "--name", "MD", "--print-vllm-command", "--state-dir", "/run/pdd")
    assert found.returncode == 0, found.stderr
    words = shlex.split(found.stdout.replace("\\\n", " "))
    folder = words[words.index("--served-model-name") - 1]
    assert folder.startswith(str(tmp_path))
    extra = json.loads(words[words.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]
    assert extra["node_socket"] == "/run/pdd/mixed-tiny/node-md.sock"
    assert extra["engine"] == "MD"


def test_another_backend_may_be_chosen_where_the_topology_allows_it(mixed):
    found = run("engine", "--topology", mixed, "--name", "P", "--backend", "vllm", "--print-vllm-command")
    assert "--served-model-name tiny-random-32" in found.stdout
    refused = run("engine", "--topology", mixed, "--name", "P", "--backend", "scripted")
    assert refused.returncode == 2
    assert "a script's KV means nothing" in refused.stderr


def test_no_vllm_command_is_printed_for_another_engine(mixed):
    found = run("engine", "--topology", mixed, "--name", "P", "--print-vllm-command")
    assert found.returncode == 2
    assert "engine 'P' is embedded; say --backend vllm" in found.stderr


@WITHOUT_VLLM
def test_an_engine_without_vllm_says_how_it_would_be_installed(mixed):
    found = run("engine", "--topology", mixed, "--name", "MD")
    assert found.returncode == 2
    assert "make install-vllm" in found.stderr
    assert "Traceback" not in found.stderr


@WITHOUT_VLLM
def test_up_without_vllm_is_refused_before_anything_starts(tmp_path):
    found = run("up", "vllm-tiny", "--port", "0", "--json", "--state-dir", str(tmp_path))
    assert found.returncode == 2
    assert "make install-vllm" in json.loads(found.stdout)["error"]["message"]
    assert not list((tmp_path / "vllm-tiny" / "logs").iterdir())


@WITHOUT_VLLM
def test_verify_without_vllm_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = run("verify", "--engine", "vllm", "--prompts", "1")
    assert found.returncode == 2
    assert "make install-vllm" in found.stderr
    assert "logs are kept" not in found.stdout + found.stderr
    assert not list(tmp_path.iterdir())
