# pyright: basic, reportMissingImports=false
"""vLLM's own API server as one engine of a deployment: with which arguments, and how it is run in this process.

``vllm_arguments`` is the one place that knows vLLM's flags; ``vllm_command`` is the same as a command line, for who
would rather start ``vllm serve`` by other means. vLLM is imported only when it is run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pdd.core.errors import ConfigError, Unavailable, WorkerFailed
from pdd.core.kv_format import KvFormat, TensorSpec
from pdd.core.topology import Address, EngineTable
from pdd.core.units import Bytes, Seconds
from pdd.engine.http.client import HttpEngineClient
from pdd.plugins.vllm.settings import SAMPLING_PROCESSOR

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

PRELOAD_MODULE = "pdd.plugins.vllm.preload"
"""Imports what an engine needs; a process that has done so can be forked into one."""

_CONNECTOR, _CONNECTOR_MODULE = "PddConnector", "pdd.plugins.vllm.connector"
_MIDDLEWARE = "pdd.plugins.vllm.middleware.DescribeEngine"
_CPU_BLOCK_TOKENS = 32
"""The CPU backend's own choice is 128, of which a short prompt's last block is mostly empty; it takes
multiples of 32.
"""
_LARGEST_USUAL_BLOCK_TOKENS = 128
START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
"""Of this the CPU platform makes ``spawn`` when vLLM's configuration is made, whatever it was."""
_POLL = Seconds(0.05)
_CORE_ENDS_WITHIN = Seconds(3.0)
"""After SIGTERM; a supervisor gives the whole engine 5 s."""
_MOST_REASON_BYTES = 2000
"""Less than a pipe takes in one piece."""


class Device(Enum):
    """What this machine's vLLM was built for."""

    CPU = "cpu"
    ACCELERATOR = "accelerator"


VLLM_ENVIRONMENT: Mapping[Device, Mapping[str, str]] = {
    Device.ACCELERATOR: {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
    Device.CPU: {
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        # By itself every engine of a machine binds its threads to the same cores, from the first on.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # What is forked has everything imported already; importing again takes a quarter of a minute, twice an engine.
        START_METHOD: "fork",
    },
}
"""What must be in the environment *before* vLLM is imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLaunch:
    """One engine's table and what belongs to it.

    ``model`` is the topology's, a name or a path; ``folder`` holds it as Hugging Face keeps one.
    """

    table: EngineTable
    model: str
    served_name: str
    folder: Path
    kv_format: KvFormat
    max_model_tokens: int
    node_socket: Path
    device: Device

    @property
    def kv_dtype(self) -> str:
        return self.kv_format.layers[0][0].dtype.value


def require_vllm() -> Device:
    """Raises ConfigError when vLLM isn't installed beside PDD; says how it would be."""
    device = find_device()
    if device is None:
        raise ConfigError(
            "vLLM is not installed in this environment: run `make install-vllm`, then .venv-vllm/bin/pdd in place of pdd "
            "(or, with an accelerator, pip install '.[vllm]')"
        )
    return device


def find_device() -> Device | None:
    """What the vLLM beside PDD was built for, if there is one. Imports nothing of it."""
    if find_spec("vllm") is None:
        return None
    version = _version()
    return Device.CPU if version is None or "cpu" in version else Device.ACCELERATOR


def _version() -> str | None:
    """None: the installed vLLM came as a package of another name, as the CPU build does."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return None


def vllm_arguments(launch: VllmLaunch) -> tuple[str, ...]:
    """The arguments of ``vllm serve`` after the model's folder; those of the topology come last, so that they win."""
    table = launch.table
    pairs: list[tuple[str, ...]] = [
        ("--served-model-name", launch.served_name),
        ("--host", table.host),
        ("--port", str(table.port)),
        ("--dtype", launch.kv_dtype),
        ("--max-model-len", str(launch.max_model_tokens)),
        ("--max-num-seqs", str(table.max_batch)),
        # A chunk of prefill beside all decodes, as in PDD's own engine.
        ("--max-num-batched-tokens", str(table.prefill_chunk_tokens + table.max_batch)),
        ("--kv-cache-memory-bytes", str(_cache_bytes(launch))),
        ("--tensor-parallel-size", str(table.tensor_parallel)),
        ("--tokens-only",),
        # A block is saved in the step that fills it; with it a step's last token is not known when the next is planned.
        ("--no-async-scheduling",),
        ("--generation-config", "vllm"),
        ("--disable-uvicorn-access-log",),
        ("--logits-processors", SAMPLING_PROCESSOR),
        ("--middleware", _MIDDLEWARE),
        ("--kv-transfer-config", json.dumps(_transfer_config(launch))),
    ]
    block_tokens = _block_tokens(launch)
    if block_tokens is not None:
        pairs.append(("--block-size", str(block_tokens)))
    if launch.device is Device.CPU:
        pairs.append(("--enforce-eager",))
    return (*(word for pair in pairs for word in pair), *table.vllm_arguments)


def _block_tokens(launch: VllmLaunch) -> int | None:
    own = _CPU_BLOCK_TOKENS if launch.device is Device.CPU else None
    return launch.table.cache_block_tokens or own


def _cache_bytes(launch: VllmLaunch) -> Bytes:
    """Of one device's cache: whole blocks, and the one that vLLM never uses."""
    block_tokens = _block_tokens(launch) or _LARGEST_USUAL_BLOCK_TOKENS
    num_blocks = -(-launch.table.cache_tokens // block_tokens) + 1
    per_token = sum(
        _device_bytes(tensor, launch.table.tensor_parallel) for layer in launch.kv_format.layers for tensor in layer
    )
    return Bytes(num_blocks * block_tokens * per_token)


def _device_bytes(tensor: TensorSpec, num_devices: int) -> int:
    """Heads are shared out; where there are fewer than devices, each holds one."""
    if len(tensor.shape) < 3:
        return tensor.bytes_per_token
    num_heads = tensor.shape[1]
    return tensor.bytes_per_token // num_heads * -(-num_heads // num_devices)


def _transfer_config(launch: VllmLaunch) -> dict[str, object]:
    return {
        "kv_connector": _CONNECTOR,
        "kv_connector_module_path": _CONNECTOR_MODULE,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "node_socket": str(launch.node_socket),
            "model": launch.model,
            "kv_dtype": launch.kv_dtype,
            "block_tokens": launch.kv_format.block_tokens,
            "engine": launch.table.name,
            "node": launch.table.node,
        },
    }


def vllm_command(launch: VllmLaunch) -> str:
    """The same engine started by vLLM's own command, for a shell; one flag a line."""
    lines = [_own_command(shlex.quote(str(launch.folder)))]
    for word in vllm_arguments(launch):
        if word.startswith("-"):
            lines.append(word)
        else:
            lines[-1] += " " + shlex.quote(word)
    variables = VLLM_ENVIRONMENT[launch.device].items()
    environment = [f"{name}={shlex.quote(value)}" for name, value in variables if name != START_METHOD]
    return " \\\n".join([*environment, *(line if not number else "  " + line for number, line in enumerate(lines))])


def _own_command(folder: str) -> str:
    """``vllm serve`` asks for the version of a package named vllm, and fails where vLLM came as one of another name."""
    if find_spec("vllm") is not None and _version() is None:
        return f"{shlex.quote(sys.executable)} -m vllm.entrypoints.launchers.api_server.entry --model {folder}"
    return f"vllm serve {folder}"


async def serve_vllm(
    launch: VllmLaunch, *, on_ready: Callable[[], None], while_configuring: AbstractContextManager[None]
) -> None:
    """Runs vLLM's server in this process's main thread until SIGTERM or SIGINT; ``on_ready`` when it answers.

    ``while_configuring`` is to undo what making vLLM's configuration does to the environment (``START_METHOD``).

    Raises:
        ConfigError: vLLM did not start with these arguments; says the first reason that one of its processes gave.
        WorkerFailed: it stopped by itself.
    """
    from vllm.utils.system_utils import set_process_title

    options = _parse(["--model", str(launch.folder), *vllm_arguments(launch)])
    set_process_title(launch.table.name)
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(_run(options, while_configuring))
        telling = group.create_task(_tell_when_ready(launch.table, serving, stopped, on_ready))
        serving.add_done_callback(lambda _: telling.cancel())
    if not stopped.is_set():
        raise WorkerFailed("vLLM stopped by itself; its log says why")


async def _run(options: argparse.Namespace, while_configuring: AbstractContextManager[None]) -> None:
    """What ``vllm serve`` does for one server, but for how its processes are started."""
    from vllm.entrypoints.launchers.api_server.entry import build_and_serve
    from vllm.entrypoints.launchers.launcher import setup_server

    try:
        address, listener = setup_server(options, reuse_port=False)
    except OSError as error:
        raise ConfigError(f"can't listen on {options.host}:{options.port}: {error}") from error
    with listener:
        # Starting blocks the loop for as long as it takes: until vLLM sets handlers of its own, a signal must
        # interrupt.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _interrupt)
        engine = _start_engine(options, while_configuring)
        try:
            shutdown = await build_and_serve(engine, address, listener, options)
        finally:
            # Its core aborts what runs and ends in good order; killed at once, it leaves shared memory behind.
            engine.shutdown(timeout=_CORE_ENDS_WITHIN)
        await shutdown


def _start_engine(options: argparse.Namespace, while_configuring: AbstractContextManager[None]) -> AsyncLLM:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    context = UsageContext.OPENAI_API_SERVER
    with _Reasons.collected() as reasons:
        try:
            with while_configuring:
                arguments = AsyncEngineArgs.from_cli_args(options)
                config = arguments.create_engine_config(context)
            return AsyncLLM.from_vllm_config(
                config,
                usage_context=context,
                disable_log_stats=arguments.disable_log_stats,
                enable_log_requests=arguments.enable_log_requests,
            )
        except Exception as error:
            raise ConfigError(f"vLLM did not start: {reasons.first() or describe_reason(error)}") from error


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


async def _tell_when_ready(
    table: EngineTable, serving: asyncio.Task[None], stopped: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    """Cancelling vLLM's server stops it in good order, as its own handlers would; but they don't say that they did."""
    async with HttpEngineClient(table.name, Address(host=table.host, port=table.port)) as client:
        while not await _answers(client):  # noqa: ASYNC110 (another library's server: nothing else tells)
            await asyncio.sleep(_POLL)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    on_ready()
    await stopped.wait()
    serving.cancel()


async def _answers(client: HttpEngineClient) -> bool:
    try:
        await client.info()
    except Unavailable:
        return False
    return True


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ConfigError(f"vLLM refuses its arguments: {message}")

    options = make_arg_parser(Parser(prog="vllm serve")).parse_args(list(arguments))
    try:
        validate_parsed_serve_args(options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"vLLM refuses its arguments: {error}") from error
    return options


def describe_reason(error: BaseException) -> str:
    """One line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) else f"{type(error).__name__}: {text}"


class _Reasons:
    """Hears why vLLM's processes fail: they are forked from this one, so what they log comes through its pipe.

    All that vLLM raises in this one is that some other process failed. Listens where log records are made, since each
    of vLLM's processes replaces all handlers.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._closed = False

    @classmethod
    @contextmanager
    def collected(cls) -> Generator[_Reasons]:
        """Listens, and can be asked, while the context lives."""
        ends = os.pipe()
        for end in ends:
            os.set_blocking(end, False)
        reasons, make = cls(*ends), logging.getLogRecordFactory()

        def make_and_hear(*given: Any, **named: Any) -> logging.LogRecord:  # noqa: ANN401 (whatever it may be)
            record = make(*given, **named)
            reasons._hear(record)
            return record

        logging.setLogRecordFactory(make_and_hear)
        try:
            yield reasons
        finally:
            reasons._closed = True  # it can't be taken out again: vLLM has wrapped it in one of its own
            for end in ends:
                os.close(end)

    def _hear(self, record: logging.LogRecord) -> None:
        """Whole lines only, and none at all when the pipe is full: the first one matters."""
        if self._closed or record.levelno < logging.ERROR:
            return
        if record.exc_info and record.exc_info[1] is not None:
            line = describe_reason(record.exc_info[1]).encode()[:_MOST_REASON_BYTES] + b"\n"
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._write, line)

    def first(self) -> str | None:
        """What was said first, if anything was."""
        try:
            said = os.read(self._read, 64 * 1024)
        except BlockingIOError:
            return None
        return said.partition(b"\n")[0].decode(errors="replace")
