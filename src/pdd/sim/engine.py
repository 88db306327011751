"""An engine of which only the time is computed: an ``EngineClient`` whose answers are scripts and whose steps are a
``Batch``.

It reads blocks from its KV node and offers it those that it computes, as real engines do, by the same link. It can die,
hang and be slow. One timer, no tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from pdd.core.blocks import BlockHash
from pdd.core.errors import CapacityExhausted, ContextTooLong, InvalidRequest, PddError, Unavailable, WorkerFailed
from pdd.core.ids import TokenId, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.request import FinishReason, Generation, Role, TokenSpan
from pdd.core.units import Bytes, Seconds
from pdd.engine.base import MAX_WAITING, RETRY_AFTER, EngineInfo
from pdd.engine.block_store import ConnectStore
from pdd.engine.node_link import NodeLink, OfferedBlocks
from pdd.engine.noise import SAMPLING_VERSION
from pdd.policy.batching import BatchingLimits
from pdd.sim.engine_batch import Batch, Job
from pdd.sim.engine_cache import Claim, EngineCache
from pdd.sim.engine_time import StepTimes
from pdd.sim.script import Scripts

MAX_SPAN = {Role.PREFILL: 8, Role.RELAY_DECODE: 4, Role.MAIN_DECODE: 64}
"""What relay decode computed of a span is lost when it is stopped in the middle of it: long spans there would show in
the gap at the hand-off (measured: 0.065 s with single tokens, 0.095 s with 4, 0.21 s with 16).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes of one engine; more than ``max_waiting`` that wait for a place in the batch are refused."""

    max_batch: int
    prefill_chunk_tokens: int
    cache_tokens: int
    max_span: int
    max_model_tokens: int
    max_waiting: int = MAX_WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """A generation was admitted: so many of its known tokens were cached, here or at the node."""

    generation: Generation
    num_cached: int


@dataclass(slots=True, eq=False, kw_only=True)
class _Answering:
    """One generation: what its script still has to say, its room in the cache, and the spans that nobody
    has taken yet.
    """

    generation: Generation
    rest: tuple[TokenId, ...]
    ends_by: FinishReason
    hashes: tuple[BlockHash, ...]
    claim: Claim | None = None
    offered: OfferedBlocks = field(default_factory=OfferedBlocks)
    num_filled: int = 0
    spans: deque[TokenSpan] = field(default_factory=deque[TokenSpan])
    failure: PddError | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def next_span(self) -> TokenSpan:
        while not self.spans:
            if self.failure is not None:
                raise self.failure
            self.news.clear()
            await self.news.wait()
        return self.spans.popleft()


class ModelledEngine:
    """Implements ``engine.base.EngineClient``. ``on_prefilled`` hears of each admission.

    Close it to let go of its node.
    """

    def __init__(
        self,
        worker: WorkerId,
        *,
        kv_format: KvFormat,
        times: StepTimes,
        limits: EngineLimits,
        scripts: Scripts,
        connect_store: ConnectStore | None = None,
        on_prefilled: Callable[[Prefilled], None] | None = None,
    ) -> None:
        self._worker = worker
        self._kv_format = kv_format
        self._times = times
        self._limits = limits
        self._scripts = scripts
        self._link = None if connect_store is None else NodeLink(connect_store, now=_loop_time)
        self._on_prefilled = on_prefilled
        self._cache = EngineCache(kv_format.num_full_blocks(limits.cache_tokens))
        self._batch = self._new_batch()
        self._jobs: dict[int, Job[_Answering]] = {}
        self._num_jobs = 0
        self._num_lives = 1
        self._alive = True
        self._hung_since: float | None = None
        self._awake = asyncio.Event()
        self._awake.set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def worker(self) -> WorkerId:
        return self._worker

    @property
    def num_open(self) -> int:
        """Generations that run or wait; 0 when nobody asks anything, or something leaks."""
        return len(self._jobs)

    async def info(self) -> EngineInfo:
        """See ``EngineClient.info``. A hung engine does not answer."""
        await self._awake.wait()
        self._require_life()
        return EngineInfo(
            model=self._kv_format.model,
            max_model_tokens=self._limits.max_model_tokens,
            kv_format=self._kv_format.description,
            sampling_version=SAMPLING_VERSION,
            node=None,
            instance=f"{self._worker}-{self._num_lives}",
        )

    async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        """See ``EngineClient.generate``."""
        self._require_life()
        job = self._begin(generation)
        try:
            while True:
                span = await job.what.next_span()
                yield span
                if span.finish_reason is not None:
                    return
        finally:
            self._end(job)

    # Faults -----------------------------------------------------------------------------------------------------------

    def die(self) -> None:
        """Like kill -9: everything that runs fails, its own cache is lost, nothing begins until ``revive``."""
        self.resume()
        self._alive = False
        for job in self._jobs.values():
            job.what.failure = WorkerFailed(f"engine {self._worker} died")
            job.what.news.set()
        self._jobs.clear()
        self._batch = self._new_batch()
        self._set_timer()
        self._cache.clear()
        self.close()

    def revive(self) -> None:
        """Restarts a dead one, as another instance."""
        if not self._alive:
            self._alive = True
            self._num_lives += 1

    def hang(self) -> None:
        """Like SIGSTOP: it answers nothing and computes nothing, and forgets nothing."""
        if self._alive and self._hung_since is None:
            self._hung_since = _loop_time()
            self._awake.clear()
            self._set_timer()

    def resume(self) -> None:
        """Like SIGCONT: it goes on where it was."""
        if self._hung_since is not None:
            self._batch.shift(_loop_time() - self._hung_since)
            self._hung_since = None
            self._awake.set()
            self._set_timer()

    def slow_down(self, factor: float) -> None:
        """From its next step on it takes ``factor`` times as long as it should; 1 is as fast as ever."""
        self._batch.slow_down(factor, self._now())
        self._set_timer()

    def close(self) -> None:
        """Lets go of the node. Idempotent."""
        if self._link is not None:
            self._link.close()

    # Jobs -------------------------------------------------------------------------------------------------------------

    def _require_life(self) -> None:
        if not self._alive:
            raise Unavailable(f"engine {self._worker} is not up", retry_after_s=RETRY_AFTER)

    def _begin(self, generation: Generation) -> Job[_Answering]:
        num_known = len(generation.known_tokens)
        if num_known == 0 or generation.max_tokens < 1:
            raise InvalidRequest(f"{num_known} known tokens, max_tokens {generation.max_tokens}; at least 1 of each")
        script = self._scripts[generation.request_id]
        whole = script.rest_for(generation)
        rest = whole[: generation.max_tokens]
        self._check_room(num_known, generation.max_tokens, len(rest))
        self._num_jobs += 1
        answering = _Answering(
            generation=generation,
            rest=rest,
            ends_by=FinishReason.LENGTH if script.is_cut or len(whole) > len(rest) else FinishReason.STOP,
            hashes=script.hashes,
        )
        job = Job(what=answering, number=self._num_jobs, num_known=num_known, num_output=len(rest))
        self._jobs[job.number] = job
        self._batch.add(job, self._now())
        self._set_timer()
        return job

    def _check_room(self, num_known: int, max_tokens: int, num_output: int) -> None:
        if num_known + max_tokens > self._limits.max_model_tokens:
            raise ContextTooLong(
                f"{num_known} known tokens and max_tokens {max_tokens}; "
                f"together they may be at most {self._limits.max_model_tokens}"
            )
        if self._num_blocks(num_known + num_output) > self._cache.capacity:
            raise ContextTooLong(f"{num_known + num_output} tokens don't fit the cache of engine {self._worker}")
        if self._batch.num_waiting >= self._limits.max_waiting:
            raise CapacityExhausted(f"engine {self._worker} has a full queue", retry_after_s=RETRY_AFTER)

    def _end(self, job: Job[_Answering]) -> None:
        if self._jobs.pop(job.number, None) is not None:
            self._batch.remove(job, self._now())
            self._set_timer()

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._kv_format.block_tokens)

    def _new_batch(self) -> Batch[_Answering]:
        limits = BatchingLimits(
            max_batch=self._limits.max_batch, prefill_chunk_tokens=self._limits.prefill_chunk_tokens
        )
        return Batch(self._times, self, limits, max_span=self._limits.max_span)

    # Time -------------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        due = None if self._hung_since is not None else self._batch.next_event()
        if self._timer is not None:
            if self._timer.when() == due:
                return
            self._timer.cancel()
        self._timer = None if due is None else asyncio.get_running_loop().call_at(due, self._advance, due)

    def _advance(self, due: Seconds) -> None:
        self._timer = None
        self._batch.advance(due)
        self._set_timer()

    def _now(self) -> float:
        """Time stands still while it hangs."""
        return _loop_time() if self._hung_since is None else self._hung_since

    # What the batch computes ------------------------------------------------------------------------------------------

    def admit(self, job: Job[_Answering], /) -> bool:
        """See ``engine_batch.Host``. What only the node has is loaded."""
        answering = job.what
        hashes = answering.hashes[: self._kv_format.num_full_blocks(job.num_known)]
        claim = self._cache.claim(hashes, self._num_blocks(job.num_known + job.num_output))
        if claim is None:
            return False
        answering.claim = claim
        num_loaded = self._load(claim, hashes[claim.num_hits :])
        answering.num_filled = claim.num_hits + num_loaded
        num_cached = min(answering.num_filled * self._kv_format.block_tokens, job.num_known - 1)
        self._offer(answering)
        if self._on_prefilled is not None:
            self._on_prefilled(Prefilled(generation=answering.generation, num_cached=num_cached))
        job.admit(num_cached=num_cached, load_s=self._times.load(Bytes(num_loaded * self._kv_format.block_bytes)))
        return True

    def grow(self, job: Job[_Answering], num_tokens: int, /) -> bool:
        """See ``CacheSpace``. It claimed room for its whole answer when it was admitted."""
        _ = job, num_tokens
        return True

    def computed(self, job: Job[_Answering], /) -> None:
        """See ``engine_batch.Host``."""
        self._keep(job.what, job.num_computed_tokens)

    def emitted(self, job: Job[_Answering], num_tokens: int, /) -> None:
        """See ``engine_batch.Host``."""
        # The newest token has no KV yet: it gets it when the one after it is computed.
        self._keep(job.what, job.num_computed_tokens)
        job.what.spans.append(_span(job, num_tokens))
        job.what.news.set()

    def release(self, job: Job[_Answering], /) -> None:
        """See ``CacheSpace``."""
        assert job.what.claim is not None
        self._cache.release(job.what.claim)

    def _load(self, claim: Claim, hashes: tuple[BlockHash, ...]) -> int:
        if self._link is None:
            return 0
        num_loaded = self._link.read_prefix(hashes, _read_nothing)
        self._cache.fill(claim, hashes[:num_loaded])
        return num_loaded

    def _keep(self, answering: _Answering, num_computed: int) -> None:
        num_full = self._kv_format.num_full_blocks(num_computed)
        if num_full > answering.num_filled:
            assert answering.claim is not None
            self._cache.fill(answering.claim, answering.hashes[answering.num_filled : num_full])
            answering.num_filled = num_full
            self._offer(answering)

    def _offer(self, answering: _Answering) -> None:
        """Hits too: others load from the node, which may have lost what this cache still has."""
        if self._link is None:
            return
        offered, num_filled = answering.offered, answering.num_filled
        hashes = answering.hashes
        epoch = self._link.offer(
            lambda epoch: {block: block for block in hashes[offered.count(epoch) : num_filled]}, _fill_nothing
        )
        if epoch is not None:
            offered.mark(num_filled, epoch=epoch)


def _span(job: Job[_Answering], num_tokens: int) -> TokenSpan:
    generation, rest = job.what.generation, job.what.rest
    begin = job.num_emitted - num_tokens
    reason = job.what.ends_by if job.num_emitted == job.num_output else None
    return TokenSpan(
        first_position=generation.first_position + begin,
        tokens=rest[begin : job.num_emitted],
        finish_reason=reason,
    )


def _read_nothing(index: int, content: memoryview) -> None:
    """Only the time of a load is modelled."""
    _ = index, content


def _fill_nothing(block: BlockHash, target: memoryview) -> None:
    """No content is modelled."""
    _ = block, target


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
