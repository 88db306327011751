"""vLLM's own server in a process of its own, as an operator would run it: for tests that need one."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from tempfile import mkdtemp

from pdd.core.topology import LOOPBACK, Address
from pdd.engine.catalog import find_model
from pdd.engine.models.checkpoint import checkpoint_folder

MODEL = "tiny-random-32"
START_LIMIT_S = 200.0
STOP_LIMIT_S = 20.0
# One thread each: a test's machine has few cores, and by default each engine binds itself to the first of them.
_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True)
class VllmProcess:
    address: Address
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def vllm_process(flags: Sequence[str] = (), *, model: str = MODEL) -> Iterator[VllmProcess]:
    """A ready server of ``model``; whatever happens, nothing of it is left afterwards."""
    folder = Path(mkdtemp(prefix="pdd-vllm-"))
    address = Address(host=LOOPBACK, port=_free_port())
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(checkpoint_folder(find_model(model), folder)), "--served-model-name", model),
        *("--host", address.host, "--port", str(address.port), "--disable-uvicorn-access-log"),
        *("--dtype", "float32", "--enforce-eager", "--block-size", "32"),
        *("--kv-cache-memory-bytes", str(64 * 1024 * 1024)),
        *("--tokens-only", "--logits-processors", "pdd.plugins.vllm.sampling:PositionKeyedSampling"),
        *("--middleware", "pdd.plugins.vllm.middleware.DescribeEngine"),
        *flags,
    ]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | _ENVIRONMENT, start_new_session=True
        )
    try:
        _wait_until_ready(process, address, log)
        yield VllmProcess(address, process, log)
    finally:
        _stop(process)
        shutil.rmtree(folder)


def _wait_until_ready(process: subprocess.Popen[bytes], address: Address, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not _is_ready(address):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"vLLM did not start:\n{log.read_text(errors='replace')[-5000:]}")
        time.sleep(0.2)


def _is_ready(address: Address) -> bool:
    connection = HTTPConnection(address.host, address.port, timeout=5.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The server first, in peace; then whoever is left of its session."""
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]
