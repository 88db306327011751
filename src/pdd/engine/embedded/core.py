# pyright: basic
"""The engine without threads and clocks: add sequences, call ``step``, get tokens.

Each step plans a batch, runs the model on it once, names the blocks that filled, draws a token for every sequence
whose known tokens are all computed, and exports the filled blocks. Owned by one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from pdd.core.ids import TokenId
from pdd.core.kv_format import KvFormat
from pdd.core.request import FinishReason, Generation
from pdd.engine.block_store import ConnectStore
from pdd.engine.catalog import ModelEntry
from pdd.engine.embedded.block_pool import BlockPool, BlockPoolStats
from pdd.engine.embedded.cache_space import CacheSpaceOfSequences
from pdd.engine.embedded.exchange import NodeExchange
from pdd.engine.embedded.model import LlamaModel, StepInput
from pdd.engine.embedded.paged_cache import PagedCache
from pdd.engine.embedded.sequence import EngineSequence
from pdd.engine.embedded.step import StepBuilder
from pdd.engine.embedded.weights import load_weights
from pdd.engine.node_link import NodeLink
from pdd.engine.noise import choose_token
from pdd.policy.batching import BatchingLimits, BatchScheduler, StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """What shapes an engine: its model, the length of its KV blocks, the size of its own cache, its batches."""

    model: ModelEntry
    block_tokens: int
    cache_tokens: int
    max_model_tokens: int
    limits: BatchingLimits
    max_unread_tokens: int

    @property
    def kv_format(self) -> KvFormat:
        return self.model.kv_format(self.block_tokens)

    @property
    def num_blocks(self) -> int:
        return self.cache_tokens // self.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnToken:
    """One new token of ``sequence``."""

    sequence: EngineSequence
    token: TokenId
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStats:
    """A consistent look at the books, between two steps."""

    num_waiting: int
    num_running: int
    blocks: BlockPoolStats
    node_connected: bool
    num_imported_blocks: int
    num_exported_blocks: int
    num_preemptions: int
    num_computed_tokens: int


class EngineCore:
    """Model, cache and scheduler. Use under ``torch.inference_mode``, always from the same thread."""

    __slots__ = (
        "_cache",
        "_exchange",
        "_kv_format",
        "_max_unread_tokens",
        "_model",
        "_num_computed_tokens",
        "_num_preemptions",
        "_pool",
        "_scheduler",
        "_space",
    )

    def __init__(
        self,
        settings: CoreSettings,
        model: LlamaModel,
        connect_store: ConnectStore | None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects to the node, if any; ``now`` times its pauses.

        Raises Incompatible when it is one of another KV format.
        """
        self._kv_format = settings.kv_format
        self._max_unread_tokens = settings.max_unread_tokens
        self._model = model
        self._cache = PagedCache(model.shape, self._kv_format, settings.num_blocks)
        self._pool = BlockPool(settings.num_blocks)
        self._exchange = NodeExchange(NodeLink(connect_store, now=now), self._cache) if connect_store else None
        if self._exchange is not None:
            self._exchange.connect()
        self._space = CacheSpaceOfSequences(self._pool, self._exchange, block_tokens=settings.block_tokens)
        self._scheduler: BatchScheduler[EngineSequence] = BatchScheduler(settings.limits, self._space)
        self._num_preemptions = 0
        self._num_computed_tokens = 0

    @property
    def has_work(self) -> bool:
        """False while ``step`` would do nothing."""
        return self._scheduler.has_work

    def make_sequence(self, generation: Generation) -> EngineSequence:
        """Callable from any thread."""
        return EngineSequence(generation, self._kv_format, max_unread_tokens=self._max_unread_tokens)

    def add(self, sequence: EngineSequence) -> None:
        self._scheduler.add(sequence)

    def remove(self, sequence: EngineSequence) -> None:
        """Aborts; finished and unknown sequences are ignored."""
        self._scheduler.remove(sequence)

    def step(self) -> list[DrawnToken]:
        """Computes one batch. Finished sequences have left when it returns."""
        plan = self._scheduler.plan_step()
        self._num_preemptions += len(plan.preempted)
        works = plan.work
        if not works:
            return []
        logits = self._model.forward(self._prepare(works), self._cache)
        for work in works:
            self._space.advance(work.sequence, work.num_tokens)
            self._num_computed_tokens += work.num_tokens
        drawn = self._draw([work.sequence for work in works if _is_complete(work.sequence)], logits)
        self._space.offer([work.sequence for work in works])
        for each in drawn:
            if each.finish_reason is not None:
                self._scheduler.remove(each.sequence)
        return drawn

    def stats(self) -> CoreStats:
        exchange = self._exchange
        return CoreStats(
            num_waiting=self._scheduler.num_waiting,
            num_running=self._scheduler.num_running,
            blocks=self._pool.stats(),
            node_connected=exchange is not None and exchange.connected,
            num_imported_blocks=exchange.num_imported if exchange else 0,
            num_exported_blocks=exchange.num_exported if exchange else 0,
            num_preemptions=self._num_preemptions,
            num_computed_tokens=self._num_computed_tokens,
        )

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()

    def _prepare(self, works: Sequence[StepWork[EngineSequence]]) -> StepInput:
        builder = StepBuilder(self._cache)
        for work in works:
            sequence, start = work.sequence, work.sequence.num_computed_tokens
            tokens = sequence.tokens[start : start + work.num_tokens]
            builder.add(tokens, first_position=start, block_table=sequence.block_table, sampled=work.completes)
        return builder.build(self._model.buckets)

    def _draw(self, sequences: Sequence[EngineSequence], logits: Tensor) -> list[DrawnToken]:
        drawn: list[DrawnToken] = []
        for sequence, row in zip(sequences, logits.numpy(), strict=True):
            token = choose_token(row, sequence.generation.sampling, position=sequence.next_position)
            drawn.append(DrawnToken(sequence=sequence, token=token, finish_reason=sequence.append(token)))
        return drawn


def _is_complete(sequence: EngineSequence) -> bool:
    return sequence.num_computed_tokens == sequence.num_tokens


def load_model(settings: CoreSettings) -> LlamaModel:
    """Reads the weights and chooses exact products for them.

    Raises:
        ConfigError: the weights are missing, or this machine has no exact path.
    """
    return LlamaModel(
        load_weights(settings.model),
        max_model_tokens=settings.max_model_tokens,
        max_step_tokens=settings.limits.max_step_tokens,
        max_batch=settings.limits.max_batch,
    )
