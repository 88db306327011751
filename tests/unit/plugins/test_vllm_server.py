"""With which arguments vLLM is run, without vLLM."""

import json
import shlex
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from pdd.core.errors import ConfigError
from pdd.core.ids import NodeId, WorkerId
from pdd.core.kv_format import DType, uniform_attention_format
from pdd.core.request import Role
from pdd.core.topology import EngineKind, EngineTable
from pdd.engine.catalog import find_model
from pdd.plugins.vllm import server
from pdd.plugins.vllm.server import (
    START_METHOD,
    VLLM_ENVIRONMENT,
    Device,
    VllmLaunch,
    describe_reason,
    vllm_arguments,
    vllm_command,
)


def launch(device: Device = Device.CPU, **keys: object) -> VllmLaunch:
    table = EngineTable(
        name=WorkerId("MD"),
        role=Role.MAIN_DECODE,
        cluster="B",
        node=NodeId("node-md"),
        kind=EngineKind.VLLM,
        port=8101,
        **keys,
    )
    return VllmLaunch(
        table=table,
        model="tiny-random-32",
        served_name="tiny-random-32",
        folder=Path("/models/a model"),
        kv_format=find_model("tiny-random-32").kv_format(16),
        max_model_tokens=1024,
        node_socket=Path("/run/pdd/node-md.sock"),
        device=device,
    )


def flags(arguments: tuple[str, ...]) -> dict[str, str | None]:
    """Each flag with its value; the last one wins."""
    found: dict[str, str | None] = {}
    for word, following in zip(arguments, (*arguments[1:], "--"), strict=True):
        if word.startswith("--"):
            found[word] = None if following.startswith("--") else following
    return found


def test_the_topologys_keys_become_vllms_flags():
    found = flags(
        vllm_arguments(launch(max_batch=8, prefill_chunk_tokens=64, cache_block_tokens=64, tensor_parallel=2))
    )
    assert found["--max-num-seqs"] == "8"
    assert found["--max-num-batched-tokens"] == "72"
    assert found["--block-size"] == "64"
    assert found["--tensor-parallel-size"] == "2"
    assert (found["--host"], found["--port"]) == ("127.0.0.1", "8101")
    assert (found["--served-model-name"], found["--max-model-len"]) == ("tiny-random-32", "1024")
    assert found["--dtype"] == "float32"


def test_the_connector_is_told_its_node_and_the_names_of_model_and_engine():
    config = json.loads(flags(vllm_arguments(launch()))["--kv-transfer-config"] or "")
    assert config["kv_load_failure_policy"] == "recompute"
    assert config["kv_connector_extra_config"] == {
        "node_socket": "/run/pdd/node-md.sock",
        "model": "tiny-random-32",
        "kv_dtype": "float32",
        "block_tokens": 16,
        "engine": "MD",
        "node": "node-md",
    }


@pytest.mark.parametrize(
    ("keys", "num_bytes"),
    [
        # 1,024 bytes a token; one block that vLLM keeps to itself.
        ({"cache_tokens": 4096}, (4096 + 32) * 1024),
        ({"cache_tokens": 4097}, (4096 + 64) * 1024),
        ({"cache_tokens": 4096, "cache_block_tokens": 64}, (4096 + 64) * 1024),
        # Two heads: a device each, and not less with more devices.
        ({"cache_tokens": 4096, "tensor_parallel": 2}, (4096 + 32) * 512),
        ({"cache_tokens": 4096, "tensor_parallel": 4}, (4096 + 32) * 512),
    ],
)
def test_the_cache_holds_the_tokens_that_the_topology_says(keys: dict[str, object], num_bytes: int):
    assert flags(vllm_arguments(launch(**keys)))["--kv-cache-memory-bytes"] == str(num_bytes)


def test_heads_that_devices_do_not_share_evenly_are_rounded_up():
    three_heads = uniform_attention_format(
        model="m", num_layers=1, num_kv_heads=3, head_dim=32, dtype=DType.FLOAT16, block_tokens=16
    )
    engine = replace(launch(cache_tokens=32, tensor_parallel=2), kv_format=three_heads)
    found = flags(vllm_arguments(engine))
    assert found["--kv-cache-memory-bytes"] == str(64 * 2 * 2 * 32 * 2)
    assert found["--dtype"] == "float16"


def test_an_accelerator_chooses_its_own_block_length_and_graphs():
    found = flags(vllm_arguments(launch(Device.ACCELERATOR)))
    assert "--block-size" not in found
    assert "--enforce-eager" not in found
    on_cpu = flags(vllm_arguments(launch(Device.CPU)))
    assert on_cpu["--block-size"] == "32"
    assert "--enforce-eager" in on_cpu


def test_further_arguments_come_last_so_that_they_win():
    arguments = vllm_arguments(launch(vllm_arguments=("--dtype", "bfloat16", "--max-logprobs", "-1")))
    assert arguments[-4:] == ("--dtype", "bfloat16", "--max-logprobs", "-1")


def test_the_printed_command_is_the_same_arguments_for_a_shell(monkeypatch):
    monkeypatch.setattr(server, "find_spec", lambda _: None)
    engine = launch()
    words = shlex.split(vllm_command(engine).replace("\\\n", " "))
    start = words.index("vllm")
    environment = dict(VLLM_ENVIRONMENT[Device.CPU])
    del environment[START_METHOD]  # of no use to vLLM's own command
    assert words[:start] == [f"{name}={value}" for name, value in environment.items()]
    assert words[start:] == ["vllm", "serve", "/models/a model", *vllm_arguments(engine)]


def test_where_vllm_came_as_a_package_of_another_name_its_server_is_run_as_a_module(monkeypatch):
    def version(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(server, "find_spec", lambda _: object())
    monkeypatch.setattr(server.metadata, "version", version)
    words = shlex.split(vllm_command(launch()).replace("\\\n", " "))
    start = words.index(sys.executable)
    module = ["-m", "vllm.entrypoints.launchers.api_server.entry", "--model", "/models/a model"]
    assert words[start + 1 :] == [*module, *vllm_arguments(launch())]


def test_the_printed_command_has_one_flag_a_line():
    lines = vllm_command(launch()).splitlines()
    assert all(line.count(" --") <= 1 for line in lines)
    assert sum(line.startswith("  --") for line in lines) == len(flags(vllm_arguments(launch())))


def test_a_reason_is_one_line_and_ours_needs_no_type():
    assert describe_reason(ValueError("1 error\n  in  x")) == "ValueError: 1 error in x"
    assert describe_reason(ConfigError("key = 1: it must be 2")) == "key = 1: it must be 2"
