"""One engine, composed: scripted or embedded, beside its KV node, served over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import assert_never

from pdd.cli.roles.command import RoleContext
from pdd.cli.topology.check import block_tokens_of
from pdd.core.errors import ConfigError
from pdd.core.kv_format import KvFormat
from pdd.core.topology import EngineKind, EngineTable
from pdd.core.units import Seconds
from pdd.engine.base import EngineClient
from pdd.engine.catalog import ModelEntry, find_model
from pdd.engine.http.server import serve_engine

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
    model = find_model(context.topology.model)
    kv_format = model.kv_format(block_tokens_of(context.topology, context.topology.node(table.node)))
    async with _engine(context, table, model, kv_format) as running:
        try:
            async with serve_engine(running.engine, host=table.host, port=table.port, vocab_size=model.vocab_size):
                _logger.info(
                    "engine_ready engine=%s kind=%s role=%s cluster=%s node=%s model=%s listen=%s:%d",
                    table.name,
                    table.kind,
                    table.role,
                    table.cluster,
                    table.node,
                    model.name,
                    table.host,
                    table.port,
                )
                context.on_ready()
                await running.until_failed()
        except OSError as error:
            raise ConfigError(f"engine {table.name!r}: can't listen on {table.host}:{table.port}: {error}") from error


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
            raise ConfigError(f"engine {table.name!r}: vLLM engines can't be launched yet")
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

    # Before torch is imported, or it is too late; what the user has set stays.
    for name, value in TORCH_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from pdd.engine.embedded.engine import EmbeddedSettings, open_embedded_engine
    from pdd.kvnode.local import LocalNode

    socket = context.run.node_socket(table.node)
    settings = EmbeddedSettings(
        worker=table.name,
        model=model,
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
