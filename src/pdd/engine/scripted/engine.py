"""A deterministic engine without a model: the next token is a pure function of all tokens before it.

A token that is lost, doubled, moved or wrong anywhere changes everything after it, so comparing two answers proves that
nothing of the kind happened. It lives on the event loop's time only, hence runs on a virtual clock as well, and its
speeds and faults are settings. Known tokens whose KV is at hand cost no time, as in a real engine; at least one is
always computed, and the first new token comes with it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from pdd.core.blocks import BlockChain
from pdd.core.errors import CapacityExhausted, ContextTooLong, InvalidRequest, Unavailable, WorkerFailed
from pdd.core.ids import NodeId, TokenId, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.request import FinishReason, Generation, Sampling, TokenSpan
from pdd.core.units import Seconds
from pdd.engine.base import MAX_WAITING, RETRY_AFTER, EngineInfo
from pdd.engine.block_store import ConnectStore
from pdd.engine.node_link import OfferedBlocks
from pdd.engine.noise import SAMPLING_VERSION
from pdd.engine.scripted.kv import ScriptKv

DEFAULT_VOCAB_SIZE = 49152


class Garbage(StrEnum):
    """Ways to break the contract of ``EngineClient.generate``."""

    GAP = "gap"
    """A position is skipped."""
    REPEAT = "repeat"
    """A span is sent twice."""
    WRONG_POSITION = "wrong_position"
    """Positions are counted from the sequence's start, not the output's."""
    PAST_MAX_TOKENS = "past_max_tokens"
    NO_FINISH = "no_finish"
    """The stream ends without a finish reason."""
    AFTER_FINISH = "after_finish"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong with a generation; token counts are of those that this generation emits itself.

    ``only_attempts`` confines it all to those attempts of a request; None means every one.
    """

    unavailable: bool = False
    """Refuses to begin."""
    die_after_tokens: int | None = None
    """Then WorkerFailed; 0 dies when prefill is done."""
    hang_after_tokens: int | None = None
    """Then nothing, for ever."""
    garbage: Garbage | None = None
    garbage_after_tokens: int = 0
    slowdown: float = 1.0
    """Multiplies every duration."""
    only_attempts: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How an engine behaves. ``burst_tokens`` come in one span, every ``burst_tokens`` intervals.

    Prefills share ``prefill_tokens_per_s``, chunk by chunk in turn; decodes don't slow each other. At most
    ``max_running`` generations run, ``max_waiting`` more wait in line, others are refused.
    """

    prefill_tokens_per_s: float = 2000.0
    prefill_chunk_tokens: int = 128
    token_interval: Seconds = Seconds(0.02)
    burst_tokens: int = 1
    vocab_size: int = DEFAULT_VOCAB_SIZE
    max_running: int = 16
    max_waiting: int = MAX_WAITING
    faults: Faults = Faults()


class TokenSource:
    """The token function over one growing sequence: O(1) for each token after the known ones."""

    __slots__ = ("_position", "_sampling", "_state", "_vocab_size")

    def __init__(
        self, known_tokens: Sequence[TokenId], *, first_position: int, sampling: Sampling, vocab_size: int
    ) -> None:
        self._state = hashlib.blake2b(np.asarray(known_tokens, dtype="<u4").tobytes(), digest_size=8)
        self._position = first_position
        self._sampling = sampling
        self._vocab_size = vocab_size

    def draw(self) -> TokenId:
        """The next token, which thereby becomes known."""
        state = self._state.copy()
        if self._sampling.temperature > 0.0:
            noise = f"noise {self._sampling.seed} {self._sampling.choice} {self._position}"
            state.update(noise.encode())
        token = int.from_bytes(state.digest(), "little") % self._vocab_size
        self._state.update(token.to_bytes(4, "little"))
        self._position += 1
        return token


def scripted_answer(
    prompt: Sequence[TokenId],
    max_tokens: int,
    sampling: Sampling,
    stop_token_ids: frozenset[TokenId] = frozenset(),
    *,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
) -> tuple[TokenId, ...]:
    """The one right answer, whoever computes which part of it."""
    source = TokenSource(prompt, first_position=0, sampling=sampling, vocab_size=vocab_size)
    answer: list[TokenId] = []
    while len(answer) < max_tokens and not (answer and answer[-1] in stop_token_ids):
        answer.append(source.draw())
    return tuple(answer)


class ScriptedEngine:
    """Implements ``engine.base.EngineClient`` in process.

    ``script`` may be replaced at any time: each generation follows the one that it began with (the limits on running
    ones are those given first). ``model`` is the name that it serves, by default that of the KV format. Close it to
    let go of its node.
    """

    def __init__(
        self,
        worker: WorkerId,
        *,
        kv_format: KvFormat,
        script: Script | None = None,
        max_model_tokens: int = 131_072,
        cache_tokens: int = 8192,
        model: str | None = None,
        node: NodeId | None = None,
        instance: str = "scripted",
        connect_store: ConnectStore | None = None,
    ) -> None:
        self.script = script or Script()
        self._worker = worker
        self._kv_format = kv_format
        self._model = kv_format.model if model is None else model
        self._kv = ScriptKv(kv_format, cache_tokens=cache_tokens, connect=connect_store)
        self._max_model_tokens = max_model_tokens
        self._node = node
        self._instance = instance
        self._num_lives = 1
        self._died = asyncio.Event()
        self._slots = asyncio.Semaphore(self.script.max_running)
        self._max_open = self.script.max_running + self.script.max_waiting
        self._device = asyncio.Lock()
        self._num_open = 0

    @property
    def worker(self) -> WorkerId:
        return self._worker

    @property
    def node_connected(self) -> bool:
        return self._kv.connected

    @property
    def num_open(self) -> int:
        """Generations that run or wait; 0 when nobody asks anything, or something leaks."""
        return self._num_open

    def connect_node(self) -> None:
        """Looks for its node now, not at the first request; an absent one is no error.

        Raises:
            Incompatible: the node holds another KV format.
        """
        self._kv.connect()

    async def info(self) -> EngineInfo:
        """See ``EngineClient.info``."""
        self._require_life()
        return EngineInfo(
            model=self._model,
            max_model_tokens=self._max_model_tokens,
            kv_format=self._kv_format.description,
            sampling_version=SAMPLING_VERSION,
            node=self._node,
            instance=f"{self._instance}-{self._num_lives}",
        )

    async def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        """See ``EngineClient.generate``."""
        script = _script_for(generation, self.script)
        died = self._require_life()
        if script.faults.unavailable:
            raise Unavailable(f"engine {self._worker} refuses to begin", retry_after_s=RETRY_AFTER)
        self._check(generation)
        async with self._admitted(), aclosing(self._answer(generation, script, died)) as spans:
            async for span in spans:
                for sent in _sent_spans(generation, span, script.faults):
                    yield sent

    def die(self) -> None:
        """Kills it, like kill -9: everything that runs fails, its own cache is lost, nothing begins until
        ``revive``.
        """
        self._died.set()
        self._kv.forget()

    def revive(self) -> None:
        """Restarts a dead one, as another instance."""
        if self._died.is_set():
            self._died = asyncio.Event()
            self._num_lives += 1

    def close(self) -> None:
        """Lets go of the node. Idempotent."""
        self._kv.close()

    def _require_life(self) -> asyncio.Event:
        if self._died.is_set():
            raise Unavailable(f"engine {self._worker} is not up", retry_after_s=RETRY_AFTER)
        return self._died

    def _check(self, generation: Generation) -> None:
        num_known = len(generation.known_tokens)
        if num_known == 0 or generation.max_tokens < 1:
            raise InvalidRequest(f"{num_known} known tokens, max_tokens {generation.max_tokens}; at least 1 of each")
        if num_known + generation.max_tokens > self._max_model_tokens:
            raise ContextTooLong(
                f"{num_known} known tokens and max_tokens {generation.max_tokens}; "
                f"together they may be at most {self._max_model_tokens}"
            )

    @asynccontextmanager
    async def _admitted(self) -> AsyncGenerator[None]:
        if self._num_open >= self._max_open:
            raise CapacityExhausted(f"engine {self._worker} has a full queue", retry_after_s=RETRY_AFTER)
        self._num_open += 1
        try:
            async with self._slots:
                yield
        finally:
            self._num_open -= 1

    async def _answer(self, generation: Generation, script: Script, died: asyncio.Event) -> AsyncGenerator[TokenSpan]:
        """The honest spans, until the end or until it dies or hangs."""
        if died.is_set():
            raise self._death()
        chain = BlockChain(self._kv_format, generation.salt)
        offered = OfferedBlocks()
        await self._prefill(generation, script, died, chain, offered)
        source = TokenSource(
            generation.known_tokens,
            first_position=generation.first_position,
            sampling=generation.sampling,
            vocab_size=script.vocab_size,
        )
        num_emitted = 0
        newest: tuple[TokenId, ...] = ()
        while True:
            await self._meet_fate(num_emitted, script.faults, died)
            num_due = _num_due(num_emitted, generation, script)
            if num_emitted:
                await self._pass_time(script.token_interval * num_due, script, died)
            span = _draw_span(source, generation, num_emitted, num_due)
            # The newest token has no KV yet: it gets it when the one after it is computed.
            self._kv.keep(chain.append((*newest, *span.tokens[:-1])))
            self._kv.offer(chain.hashes, offered)
            newest = span.tokens[-1:]
            num_emitted += len(span.tokens)
            yield span
            if span.finish_reason is not None:
                return

    async def _prefill(
        self, generation: Generation, script: Script, died: asyncio.Event, chain: BlockChain, offered: OfferedBlocks
    ) -> None:
        """Computes what isn't at hand, in chunks that take turns with other prefills; blocks are kept as they fill."""
        tokens = generation.known_tokens
        chain.append(tokens)
        hashes = chain.hashes
        num_at_hand = self._kv.find(hashes)
        self._kv.offer(hashes[:num_at_hand], offered)
        num_computed = min(num_at_hand * self._kv_format.block_tokens, len(tokens) - 1)
        while num_computed < len(tokens):
            end = min(num_computed + script.prefill_chunk_tokens, len(tokens))
            async with self._device:
                await self._pass_time((end - num_computed) / script.prefill_tokens_per_s, script, died)
            num_full = self._kv_format.num_full_blocks(end)
            self._kv.keep(hashes[num_at_hand:num_full])
            num_at_hand, num_computed = max(num_at_hand, num_full), end
            self._kv.offer(hashes[:num_at_hand], offered)

    async def _meet_fate(self, num_emitted: int, faults: Faults, died: asyncio.Event) -> None:
        if num_emitted == faults.die_after_tokens:
            raise WorkerFailed(f"engine {self._worker} died after {num_emitted} tokens")
        if num_emitted == faults.hang_after_tokens:
            await died.wait()
            raise self._death()

    async def _pass_time(self, duration: float, script: Script, died: asyncio.Event) -> None:
        """Lets ``duration`` seconds pass, unless the engine dies before."""
        try:
            async with asyncio.timeout(duration * script.faults.slowdown):
                await died.wait()
        except TimeoutError:
            return
        raise self._death()

    def _death(self) -> WorkerFailed:
        return WorkerFailed(f"engine {self._worker} died")


def _script_for(generation: Generation, script: Script) -> Script:
    attempts = script.faults.only_attempts
    if attempts is None or generation.attempt in attempts:
        return script
    return replace(script, faults=Faults())


def _num_due(num_emitted: int, generation: Generation, script: Script) -> int:
    """How many tokens the next span has, unless a stop token cuts it: not past the budget nor past a fault's token."""
    limits = [script.burst_tokens if num_emitted else 1, generation.max_tokens - num_emitted]
    fault_points = (script.faults.die_after_tokens, script.faults.hang_after_tokens)
    limits.extend(point - num_emitted for point in fault_points if point is not None and point > num_emitted)
    return min(limits)


def _draw_span(source: TokenSource, generation: Generation, num_emitted: int, num_due: int) -> TokenSpan:
    tokens: list[TokenId] = []
    reason = None
    while len(tokens) < num_due and reason is None:
        tokens.append(source.draw())
        if tokens[-1] in generation.stop_token_ids:
            reason = FinishReason.STOP
        elif num_emitted + len(tokens) == generation.max_tokens:
            reason = FinishReason.LENGTH
    first_position = generation.first_position + num_emitted
    return TokenSpan(first_position=first_position, tokens=tuple(tokens), finish_reason=reason)


def _sent_spans(generation: Generation, span: TokenSpan, faults: Faults) -> tuple[TokenSpan, ...]:
    """What goes out for an honest span."""
    num_before = span.first_position - generation.first_position
    if faults.garbage is None or num_before < faults.garbage_after_tokens:
        return (span,)
    return _garble(generation, span, faults.garbage)


def _garble(generation: Generation, span: TokenSpan, garbage: Garbage) -> tuple[TokenSpan, ...]:
    extra = TokenSpan(first_position=span.end_position, tokens=(0,), finish_reason=FinishReason.LENGTH)
    match garbage:
        case Garbage.GAP:
            return (replace(span, first_position=span.first_position + 1),)
        case Garbage.REPEAT:
            return (span, span)
        case Garbage.WRONG_POSITION:
            return (replace(span, first_position=generation.num_prompt_tokens + span.first_position),)
        case _ if span.finish_reason is None:
            return (span,)
        case Garbage.PAST_MAX_TOKENS:
            return (replace(span, finish_reason=None), extra)
        case Garbage.NO_FINISH:
            return (replace(span, finish_reason=None),)
        case Garbage.AFTER_FINISH:
            return (span, extra)
