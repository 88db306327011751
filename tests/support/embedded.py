"""Makes embedded engines for tests: small settings, requests, and a KV node in this process."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pdd.core.blocks import BlockHash
from pdd.core.errors import NodeFailed
from pdd.core.ids import RequestId, Salt
from pdd.core.kv_format import KvFormat
from pdd.core.request import GREEDY, FinishReason, Generation, Sampling
from pdd.engine.catalog import find_model
from pdd.engine.embedded.environment import TORCH_ENVIRONMENT
from pdd.policy.batching import BatchingLimits

os.environ.update(TORCH_ENVIRONMENT)  # before torch comes in

import torch

from pdd.engine.embedded.core import CoreSettings, EngineCore, load_model

torch.set_num_threads(1)

SEEDED = Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=1234)
SAMPLINGS = (GREEDY, SEEDED)


def core_settings(
    model: str = "tiny-random",
    *,
    block_tokens: int = 16,
    cache_tokens: int = 2048,
    max_batch: int = 8,
    prefill_chunk_tokens: int = 64,
    max_unread_tokens: int = 10_000,
) -> CoreSettings:
    return CoreSettings(
        model=find_model(model),
        block_tokens=block_tokens,
        cache_tokens=cache_tokens,
        max_model_tokens=2048,
        limits=BatchingLimits(max_batch=max_batch, prefill_chunk_tokens=prefill_chunk_tokens),
        max_unread_tokens=max_unread_tokens,
    )


def make_core(
    settings: CoreSettings | None = None, store: "FakeStore | None" = None, now: Callable[[], float] = time.monotonic
) -> EngineCore:
    settings = settings or core_settings()
    with torch.inference_mode():
        return EngineCore(settings, load_model(settings), store.connect if store else None, now=now)


def generation(
    known: Sequence[int],
    *,
    num_prompt: int | None = None,
    max_tokens: int = 8,
    sampling: Sampling = GREEDY,
    salt: str = "",
    stop: Sequence[int] = (),
    request: str = "r",
) -> Generation:
    return Generation(
        request_id=RequestId(request),
        attempt=0,
        known_tokens=tuple(known),
        num_prompt_tokens=len(known) if num_prompt is None else num_prompt,
        max_tokens=max_tokens,
        stop_token_ids=frozenset(stop),
        sampling=sampling,
        salt=Salt(salt),
    )


def prompt(num_tokens: int, seed: int = 0, vocab: int = 512) -> list[int]:
    return [(seed * 7919 + index * index * 31 + index * 17 + 5) % vocab for index in range(num_tokens)]


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None


def run(core: EngineCore, *generations: Generation) -> list[list[int]]:
    """Adds all at once and steps until each is done."""
    return [answer.tokens for answer in run_answers(core, *generations)]


def run_answers(core: EngineCore, *generations: Generation) -> list[Answer]:
    sequences = [core.make_sequence(each) for each in generations]
    answers = {id(sequence): Answer() for sequence in sequences}
    for sequence in sequences:
        core.add(sequence)
    with torch.inference_mode():
        for _ in range(100_000):
            if not core.has_work:
                break
            for drawn in core.step():
                answers[id(drawn.sequence)].tokens.append(drawn.token)
                answers[id(drawn.sequence)].finish_reason = drawn.finish_reason
    return [answers[id(sequence)] for sequence in sequences]


@dataclass(frozen=True)
class FakeLease:
    slots: tuple[int, ...]


@dataclass(frozen=True)
class FakeSlot:
    hash: BlockHash
    slot: int


class FakeStore:
    """A KV node in memory that checks how it is used, and fails when told to."""

    def __init__(self, kv_format: KvFormat, capacity: int = 256) -> None:
        self.block_bytes = kv_format.block_bytes
        self.capacity = capacity
        self.down = False
        self.connects = 0
        self.leases: set[int] = set()
        self.writing: dict[BlockHash, int] = {}
        self.held: dict[BlockHash, int] = {}
        self._buffers: list[bytearray] = []

    def connect(self) -> "FakeStore":
        self.connects += 1
        self._check()
        return self

    def is_alive(self):
        return not self.down

    def lease(self, hashes):
        self._check()
        slots = []
        for block_hash in hashes:
            if block_hash not in self.held:
                break
            slots.append(self.held[block_hash])
        lease = FakeLease(tuple(slots))
        self.leases.add(id(lease))
        return lease

    def release(self, lease):
        self._check()
        self.leases.remove(id(lease))

    def begin_write(self, hashes):
        self._check()
        opened = []
        for block_hash in hashes:
            if block_hash in self.held or block_hash in self.writing or len(self._buffers) >= self.capacity:
                continue
            self._buffers.append(bytearray(self.block_bytes))
            self.writing[block_hash] = len(self._buffers) - 1
            opened.append(FakeSlot(block_hash, self.writing[block_hash]))
        return tuple(opened)

    def commit(self, slots):
        self._check()
        for slot in slots:
            self.held[slot.hash] = self.writing.pop(slot.hash)

    def abort(self, slots):
        self._check()
        for slot in slots:
            del self.writing[slot.hash]

    def view(self, slot):
        return memoryview(self._buffers[slot])

    def block(self, block_hash) -> bytes:
        return bytes(self._buffers[self.held[block_hash]])

    def close(self):
        self.leases.clear()
        self.writing.clear()

    def _check(self):
        if self.down:
            raise NodeFailed("the fake node is down")
