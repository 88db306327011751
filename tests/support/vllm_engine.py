"""A vLLM engine in the test's own process, stepped by hand, beside a KV node that is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdd.core.blocks import BlockHash, block_hashes
from pdd.core.ids import Salt, TokenId, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.kvnode.local import LocalNode

MODEL = "tiny-random-32"
FORMAT: KvFormat = find_model(MODEL).kv_format(16)

_NODE = """
import asyncio, sys
from pathlib import Path
from pdd.core.topology import Address
from pdd.kvnode.server import run_node
from tests.support.vllm_engine import FORMAT
asyncio.run(run_node(
    node="n", kv_format=FORMAT, arena_bytes=int(sys.argv[2]) * FORMAT.block_bytes, listen=Address(host="127.0.0.1", port=0),
    local_socket=Path(sys.argv[1]), peers={}, on_ready=lambda: print("ready", flush=True),
))
"""


class NodeProcess:
    """Use ``close``."""

    def __init__(self, socket: Path, *, capacity: int = 512) -> None:
        self.socket = socket
        self._capacity = capacity
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = [sys.executable, "-c", _NODE, str(self.socket), str(self._capacity)]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        """As kill -9 does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def restart(self) -> None:
        """It comes back empty."""
        self.kill()
        self.start()

    def hang(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def count_held(self, tokens: Sequence[int], *, salt: str = "") -> int:
        names = names_of(tokens, salt)
        with closing(LocalNode.connect(self.socket, FORMAT, owner=WorkerId("test"), timeout=Seconds(5.0))) as node:
            lease = node.lease(names)
            node.release(lease)
            return len(lease.slots)

    close = kill


def names_of(tokens: Sequence[int], salt: str = "") -> tuple[BlockHash, ...]:
    return block_hashes(FORMAT, Salt(salt), [TokenId(token) for token in tokens])


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    num_cached: int = 0
    finish_reason: str | None = None


class StepwiseEngine:
    """vLLM's engine and scheduler in this process."""

    def __init__(self, folder: Path, socket: Path, **options: Any) -> None:
        """``options`` are vLLM's."""
        os.environ.update(VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
        from vllm import LLM

        extra = {"node_socket": str(socket), "model": MODEL, **options.pop("extra", {})}
        transfer = {
            "kv_connector": "PddConnector",
            "kv_connector_module_path": "pdd.plugins.vllm.connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        }
        defaults: dict[str, Any] = {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "kv_cache_memory_bytes": 64 << 20,
            "logits_processors": ["pdd.plugins.vllm.sampling:PositionKeyedSampling"],
            "async_scheduling": False,
            "kv_transfer_config": transfer,
        }
        self._llm: Any = LLM(model=str(folder), **{**defaults, **options})
        self._num_requests = 0
        self.answers: dict[str, Answer] = {}

    @property
    def connector(self) -> Any:
        return self._scheduler.connector

    @property
    def num_free_blocks(self) -> int:
        return self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    @property
    def num_preemptions(self) -> int:
        return sum(request.num_preemptions for request in self._scheduler.requests.values())

    @property
    def num_loading(self) -> int:
        requests = self._scheduler.requests.values()
        return sum(1 for request in requests if request.status.name == "WAITING_FOR_REMOTE_KVS")

    def ask(
        self, tokens: Sequence[int], *, max_tokens: int = 8, salt: str | None = None, seed: int | None = None
    ) -> str:
        """Begins an answer, greedy without a seed; returns its name."""
        from vllm import SamplingParams

        self._num_requests += 1
        name = f"r{self._num_requests}"
        prompt: dict[str, Any] = {"prompt_token_ids": list(tokens)}
        if salt is not None:
            prompt["cache_salt"] = salt
        parameters = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        if seed is not None:
            parameters.temperature, parameters.top_p = 1.5, 0.98
            drawn = {"num_prompt_tokens": len(tokens), "seed": seed, "choice": 0, "temperature": 1.5}
            parameters.extra_args = {"kv_transfer_params": drawn}
        self.answers[name] = Answer()
        self._llm.llm_engine.add_request(name, prompt, parameters)
        return name

    def abort(self, name: str) -> None:
        self._llm.llm_engine.abort_request([name])

    def step(self) -> None:
        for output in self._llm.llm_engine.step():
            answer = self.answers[output.request_id]
            answer.tokens = list(output.outputs[0].token_ids)
            answer.num_cached = output.num_cached_tokens or answer.num_cached
            answer.finish_reason = output.outputs[0].finish_reason

    def step_until(self, condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "it does not come to pass"
            self.step()

    def run(self, *names: str) -> None:
        """Until these answers are complete."""
        self.step_until(lambda: all(self.answers[name].finish_reason for name in names))

    def answer(
        self, tokens: Sequence[int], *, max_tokens: int = 8, salt: str | None = None, seed: int | None = None
    ) -> Answer:
        name = self.ask(tokens, max_tokens=max_tokens, salt=salt, seed=seed)
        self.run(name)
        return self.answers[name]

    def drop_cache(self) -> None:
        """What it had computed is only at the node from now on."""
        assert self._llm.reset_prefix_cache()

    def close(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        cleanup_dist_env_and_memory()

    @property
    def _scheduler(self) -> Any:
        return self._llm.llm_engine.engine_core.engine_core.scheduler
