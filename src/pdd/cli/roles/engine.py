"""One engine, composed: scripted, embedded or vLLM, beside its KV node, served over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from pdd.cli.environment import set_defaults
from pdd.cli.roles.context import RoleContext
from pdd.cli.topology.formats import kv_format_of
from pdd.core.errors import ConfigError
from pdd.core.kv_format import KvFormat
from pdd.core.topology import EngineKind, EngineTable
from pdd.core.units import Seconds
from pdd.engine.base import EngineClient
from pdd.engine.catalog import ModelEntry, model_of
from pdd.engine.http.server import serve_engine

if TYPE_CHECKING:
    from pdd.plugins.vllm.server import Device, VllmLaunch

_logger = logging.getLogger(__name__)
_NODE_TIMEOUT = Seconds(0.5)
"""A node answers within a millisecond. One that hangs makes all streams of its engines wait for so long, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningEngine:
    """``until_failed`` raises when the engine can't serve any more: the process ends then, and is started again."""

    engine: EngineClient
    until_failed: Callable[[], Awaitable[object]]


async def main(context: RoleContext) -> None:
    """Runs the engine named ``context.name``."""
    table = context.topology.engine(context.name)
    if table.kind is EngineKind.VLLM:
        await _serve_vllm(context, table)
    else:
        await _serve(context, table)


def describe_vllm(context: RoleContext) -> str:
    """The command line of vLLM's own that would be the same engine.

    Raises:
        ConfigError: the engine is of another kind.
    """
    from pdd.plugins.vllm.server import Device, find_device, vllm_command

    table = context.topology.engine(context.name)
    if table.kind is not EngineKind.VLLM:
        raise ConfigError(f"--print-vllm-command: engine {table.name!r} is {table.kind.value}; say --backend vllm")
    return vllm_command(_vllm_launch(context, table, find_device() or Device.ACCELERATOR))


async def _serve(context: RoleContext, table: EngineTable) -> None:
    model = model_of(context.topology)
    kv_format = kv_format_of(context.topology, model, context.source.refuse)
    async with _engine(context, table, model, kv_format) as running:
        try:
            async with serve_engine(running.engine, host=table.host, port=table.port, vocab_size=model.vocab_size):
                _tell_ready(context, table)
                await running.until_failed()
        except OSError as error:
            raise ConfigError(f"engine {table.name!r}: can't listen on {table.host}:{table.port}: {error}") from error


def _tell_ready(context: RoleContext, table: EngineTable) -> None:
    _logger.info(
        "engine_ready engine=%s kind=%s role=%s cluster=%s node=%s model=%s listen=%s:%d",
        table.name,
        table.kind,
        table.role,
        table.cluster,
        table.node,
        context.topology.served_model_name,
        table.host,
        table.port,
    )
    context.on_ready()


async def _serve_vllm(context: RoleContext, table: EngineTable) -> None:
    from pdd.plugins.vllm.server import START_METHOD, VLLM_ENVIRONMENT, require_vllm, serve_vllm

    device = require_vllm()
    set_defaults(VLLM_ENVIRONMENT[device])
    launch = await asyncio.to_thread(_vllm_launch, context, table, device)
    await serve_vllm(
        launch,
        on_ready=lambda: _tell_ready(context, table),
        while_configuring=_kept_in_environment(START_METHOD),
    )


@contextmanager
def _kept_in_environment(name: str) -> Generator[None]:
    value = os.environ.get(name)
    try:
        yield
    finally:
        if value is not None:
            os.environ[name] = value


def _vllm_launch(context: RoleContext, table: EngineTable, device: Device) -> VllmLaunch:
    from pdd.engine.checkpoint import checkpoint_folder
    from pdd.plugins.vllm.server import VllmLaunch

    topology = context.topology
    model = model_of(topology)
    return VllmLaunch(
        table=table,
        model=topology.model,
        served_name=model.name,
        folder=checkpoint_folder(model, default_cache_root()),
        kv_format=kv_format_of(topology, model, context.source.refuse),
        max_model_tokens=topology.max_model_tokens,
        node_socket=context.run.node_socket(table.node),
        device=device,
    )


def default_cache_root() -> Path:
    """Where models are kept in the form that vLLM reads: ``$XDG_CACHE_HOME/pdd``, or ``~/.cache/pdd``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdd"


def _engine(
    context: RoleContext, table: EngineTable, model: ModelEntry, kv_format: KvFormat
) -> AbstractAsyncContextManager[_RunningEngine]:
    match table.kind:
        case EngineKind.SCRIPTED:
            return _scripted(context, table, model, kv_format)
        case EngineKind.MODELLED:
            raise ConfigError(f"engine {table.name!r} is modelled: it only computes time, for `pdd sim run`")
        case EngineKind.EMBEDDED:
            return _embedded(context, table, model, kv_format)
        case EngineKind.VLLM:
            raise AssertionError("vLLM has a server of its own")
        case _:
            assert_never(table.kind)


@asynccontextmanager
async def _scripted(
    context: RoleContext, table: EngineTable, model: ModelEntry, kv_format: KvFormat
) -> AsyncGenerator[_RunningEngine]:
    from pdd.engine.scripted.engine import Script, ScriptedEngine
    from pdd.kvnode.local import LocalNode

    socket = context.run.node_socket(table.node)
    engine = ScriptedEngine(
        table.name,
        kv_format=kv_format,
        script=Script(
            prefill_tokens_per_s=table.prefill_tokens_per_s,
            prefill_chunk_tokens=table.prefill_chunk_tokens,
            token_interval=table.token_interval_s,
            vocab_size=model.vocab_size,
            max_running=table.max_batch,
        ),
        max_model_tokens=context.topology.max_model_tokens,
        cache_tokens=table.cache_tokens,
        model=model.name,
        node=table.node,
        instance=secrets.token_hex(8),
        connect_store=lambda: LocalNode.connect(socket, kv_format, owner=table.name, timeout=_NODE_TIMEOUT),
    )
    try:
        engine.connect_node()
        yield _RunningEngine(engine=engine, until_failed=asyncio.Event().wait)
    finally:
        engine.close()


@asynccontextmanager
async def _embedded(
    context: RoleContext, table: EngineTable, model: ModelEntry, kv_format: KvFormat
) -> AsyncGenerator[_RunningEngine]:
    from pdd.engine.embedded.environment import TORCH_ENVIRONMENT

    set_defaults(TORCH_ENVIRONMENT)
    from pdd.engine.embedded.engine import EmbeddedSettings, open_embedded_engine
    from pdd.kvnode.local import LocalNode

    socket = context.run.node_socket(table.node)
    settings = EmbeddedSettings(
        worker=table.name,
        model=model,
        node=table.node,
        block_tokens=kv_format.block_tokens,
        cache_tokens=table.cache_tokens,
        max_model_tokens=context.topology.max_model_tokens,
        max_batch=table.max_batch,
        prefill_chunk_tokens=table.prefill_chunk_tokens,
    )

    def connect_store() -> LocalNode:
        return LocalNode.connect(socket, kv_format, owner=table.name, timeout=_NODE_TIMEOUT)

    async with open_embedded_engine(settings, connect_store) as engine:
        yield _RunningEngine(engine=engine, until_failed=engine.wait_until_failed)
