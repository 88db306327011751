# pyright: basic
"""The embedded engine as an ``EngineClient``: admission and streams on the event loop, everything else on
its thread.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from pdd.core.errors import (
    CapacityExhausted,
    ConfigError,
    ContextTooLong,
    InvalidRequest,
    PddError,
    Unavailable,
    WorkerFailed,
)
from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Generation, TokenSpan
from pdd.core.units import Seconds
from pdd.engine.base import RETRY_AFTER, EngineInfo
from pdd.engine.block_store import ConnectStore
from pdd.engine.catalog import ModelEntry, embedded_weights
from pdd.engine.embedded.compute_thread import ComputeThread
from pdd.engine.embedded.core import CoreSettings, CoreStats, DrawnToken, EngineCore, load_model
from pdd.engine.embedded.linear import MAX_STEP_ROWS
from pdd.engine.embedded.self_test import check_exactness
from pdd.engine.embedded.sequence import EngineSequence
from pdd.engine.noise import SAMPLING_VERSION
from pdd.policy.batching import BatchingLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    """One engine. ``max_waiting`` requests may queue beside a full batch; more are refused.

    A sequence whose reader is ``max_unread_tokens`` behind is paused. ``num_threads`` is torch's.
    """

    worker: WorkerId
    model: ModelEntry
    node: NodeId | None = None
    block_tokens: int = 16
    cache_tokens: int = 8192
    max_model_tokens: int = 4096
    max_batch: int = 16
    prefill_chunk_tokens: int = 128
    max_waiting: int = 64
    max_unread_tokens: int = 512
    num_threads: int = 1
    max_step: Seconds = Seconds(30.0)
    """A step that takes longer hangs, and until it ends the engine is not up."""

    def core(self) -> CoreSettings:
        """Raises ConfigError for values that can't work."""
        embedded_weights(self.model)
        if self.prefill_chunk_tokens + self.max_batch > MAX_STEP_ROWS:
            raise ConfigError(
                f"prefill_chunk_tokens {self.prefill_chunk_tokens} and max_batch {self.max_batch} make steps of more than "
                f"{MAX_STEP_ROWS} tokens, for which exact products are not known"
            )
        if not 1 <= self.max_model_tokens <= self.model.max_model_tokens:
            raise ConfigError(
                f"max_model_tokens is {self.max_model_tokens}; model {self.model.name!r} takes 1 to {self.model.max_model_tokens}"
            )
        if self.cache_tokens < 2 * self.block_tokens:
            raise ConfigError(f"cache_tokens is {self.cache_tokens}; it must hold two blocks of {self.block_tokens}")
        return CoreSettings(
            model=self.model,
            block_tokens=self.block_tokens,
            cache_tokens=self.cache_tokens,
            max_model_tokens=self.max_model_tokens,
            limits=BatchingLimits(max_batch=self.max_batch, prefill_chunk_tokens=self.prefill_chunk_tokens),
            max_unread_tokens=self.max_unread_tokens,
        )


class EmbeddedEngine:
    """Satisfies ``engine.base.EngineClient``. Made by ``open_embedded_engine``; used on the loop that opened it."""

    __slots__ = ("_core", "_ended", "_error", "_instance", "_questions", "_ready", "_sequences", "_settings", "_thread")

    def __init__(self, settings: EmbeddedSettings, connect_store: ConnectStore | None) -> None:
        self._settings = settings
        self._core = settings.core()
        self._instance = uuid.uuid4().hex
        self._sequences: set[EngineSequence] = set()
        self._questions: set[asyncio.Future[CoreStats]] = set()
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._error: PddError | None = None
        self._thread = ComputeThread(
            partial(_build_core, self._core, connect_store),
            self,
            asyncio.get_running_loop(),
            torch_threads=settings.num_threads,
        )

    @property
    def worker(self) -> WorkerId:
        return self._settings.worker

    async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        """See ``EngineClient.generate``."""
        self._check(generation)
        sequence = EngineSequence(generation, self._core.kv_format, max_unread_tokens=self._settings.max_unread_tokens)
        self._sequences.add(sequence)
        self._thread.add(sequence)
        try:
            finished = False
            while not finished:
                span = await sequence.stream.take()
                self._count_read(sequence, len(span.tokens))
                finished = span.finish_reason is not None
                yield span
        finally:
            self._sequences.discard(sequence)
            self._thread.remove(sequence)

    async def info(self) -> EngineInfo:
        """See ``EngineClient.info``. An engine whose steps hang is not up, though its event loop answers."""
        self._check_running()
        if self._thread.step_time > self._settings.max_step:
            step_time = self._thread.step_time
            raise Unavailable(f"the engine has been in one step for {step_time:.0f} s", retry_after_s=RETRY_AFTER)
        return EngineInfo(
            model=self._settings.model.name,
            max_model_tokens=self._settings.max_model_tokens,
            kv_format=self._core.kv_format.description,
            sampling_version=SAMPLING_VERSION,
            node=self._settings.node,
            instance=self._instance,
        )

    async def stats(self) -> CoreStats:
        """The books after every request, abort and close that came before this call has taken effect.

        Raises:
            Unavailable: the engine has ended.
        """
        self._check_running()
        answer = _Answer(asyncio.get_running_loop())
        self._questions.add(answer.future)
        try:
            self._thread.submit(answer.give)
            return await answer.future
        finally:
            self._questions.discard(answer.future)

    async def wait_until_failed(self) -> None:
        """Waits as long as the engine is well; run it in the task group that serves the engine.

        Raises:
            WorkerFailed: its thread has ended with an error.
        """
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    def on_ready(self) -> None:
        self._ready.set()

    def on_drawn(self, drawn: list[DrawnToken]) -> None:
        for each in drawn:
            each.sequence.stream.push(each.token, each.finish_reason)

    def on_end(self, error: PddError | None) -> None:
        self._error = error
        self._ended.set()
        self._ready.set()
        for sequence in self._sequences:
            sequence.stream.fail(WorkerFailed("the engine has ended"))
        for question in self._questions:
            if not question.done():  # whoever asked may have left, or have an answer that it has not read yet
                question.set_exception(Unavailable("the engine has ended", retry_after_s=RETRY_AFTER))

    async def start(self) -> None:
        """Starts the thread and waits until it can serve. Raises whatever kept it from it."""
        self._thread.start()
        await self._ready.wait()
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Ends the thread after its current step and every open stream with WorkerFailed."""
        self._thread.stop()
        await self._ended.wait()
        await asyncio.to_thread(self._thread.join)

    def _count_read(self, sequence: EngineSequence, num_tokens: int) -> None:
        was_paused = sequence.paused
        sequence.num_read += num_tokens
        if was_paused:
            self._thread.wake()

    def _check_running(self) -> None:
        if self._ended.is_set():
            raise Unavailable("the engine has ended", retry_after_s=RETRY_AFTER)

    def _check(self, generation: Generation) -> None:
        self._check_running()
        _check_tokens(generation, self._settings.model.vocab_size)
        num_tokens = len(generation.known_tokens) + generation.max_tokens
        # The last token's own KV is never computed.
        limit = min(self._settings.max_model_tokens, self._core.num_blocks * self._settings.block_tokens + 1)
        if num_tokens > limit:
            raise ContextTooLong(
                f"{len(generation.known_tokens)} tokens and {generation.max_tokens} to come exceed this engine's {limit}",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if len(self._sequences) >= self._settings.max_batch + self._settings.max_waiting:
            raise CapacityExhausted("the engine's queue is full", retry_after_s=RETRY_AFTER)


class _Answer:
    """Carries the books from the compute thread to the event loop."""

    __slots__ = ("_loop", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[CoreStats] = loop.create_future()

    def give(self, core: EngineCore) -> None:
        self._loop.call_soon_threadsafe(self._resolve, core.stats())

    def _resolve(self, stats: CoreStats) -> None:
        if not self.future.done():
            self.future.set_result(stats)


@asynccontextmanager
async def open_embedded_engine(
    settings: EmbeddedSettings, connect_store: ConnectStore | None = None
) -> AsyncIterator[EmbeddedEngine]:
    """A running engine; on leaving, it stops within a step.

    ``connect_store`` opens its local KV node, on the engine's thread, now and whenever the node was lost. An absent
    node is no error.

    Raises:
        ConfigError: wrong settings, missing weights, or a machine on which this engine can't be exact.
        Incompatible: the node holds another KV format.
    """
    engine = EmbeddedEngine(settings, connect_store)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


def _build_core(settings: CoreSettings, connect_store: ConnectStore | None) -> EngineCore:
    model = load_model(settings)
    check_exactness(model, settings.kv_format)
    return EngineCore(settings, model, connect_store)


def _check_tokens(generation: Generation, vocab_size: int) -> None:
    if not generation.known_tokens:
        raise InvalidRequest("there are no known tokens to go on from", param="token_ids")
    if not 1 <= generation.num_prompt_tokens <= len(generation.known_tokens):
        raise InvalidRequest(
            f"num_prompt_tokens is {generation.num_prompt_tokens} of {len(generation.known_tokens)} known tokens",
            param="num_prompt_tokens",
        )
    if generation.max_tokens < 1:
        raise InvalidRequest(f"max_tokens is {generation.max_tokens}; it must be at least 1", param="max_tokens")
    if not (min(generation.known_tokens) >= 0 and max(generation.known_tokens) < vocab_size):
        raise InvalidRequest(f"a token id is outside the vocabulary of {vocab_size}", param="token_ids")
