"""A node of plain memory, and short ways to build requests."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pdd.core.blocks import BlockHash
from pdd.core.errors import NodeFailed
from pdd.core.ids import RequestId, Salt, WorkerId
from pdd.core.kv_format import DType, KvFormat, uniform_attention_format
from pdd.core.request import GREEDY, Generation, Sampling, TokenSpan
from pdd.engine.scripted.engine import Script, ScriptedEngine

FORMAT: KvFormat = uniform_attention_format(
    model="script", num_layers=2, num_kv_heads=1, head_dim=5, dtype=DType.FLOAT16, block_tokens=4
)
SEEDED = Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=7)
PROMPT = tuple(range(100, 121))


def generation(
    known: Sequence[int] = PROMPT,
    *,
    max_tokens: int = 10,
    num_prompt_tokens: int | None = None,
    stop: Sequence[int] = (),
    sampling: Sampling = GREEDY,
    salt: str = "",
    request_id: str = "r",
    attempt: int = 0,
) -> Generation:
    return Generation(
        request_id=RequestId(request_id),
        attempt=attempt,
        known_tokens=tuple(known),
        num_prompt_tokens=len(known) if num_prompt_tokens is None else num_prompt_tokens,
        max_tokens=max_tokens,
        stop_token_ids=frozenset(stop),
        sampling=sampling,
        salt=Salt(salt),
    )


def continuation(whole: Generation, emitted: Sequence[int]) -> Generation:
    return replace(
        whole, known_tokens=(*whole.known_tokens, *emitted), max_tokens=whole.max_tokens - len(emitted), attempt=1
    )


def engine(script: Script | None = None, **settings: Any) -> ScriptedEngine:
    return ScriptedEngine(WorkerId("p1"), kv_format=FORMAT, script=script, **settings)


async def collect(client: Any, asked: Generation) -> list[TokenSpan]:
    return [span async for span in client.generate(asked)]


def tokens_of(spans: Sequence[TokenSpan]) -> tuple[int, ...]:
    return tuple(token for span in spans for token in span.tokens)


async def wait_for_open(worker: ScriptedEngine, num_open: int) -> None:
    """Until so many generations are open at the engine, over real sockets."""
    async with asyncio.timeout(10):
        while worker.num_open != num_open:  # noqa: ASYNC110 - an engine has no event for this
            await asyncio.sleep(0.002)


@dataclass(frozen=True)
class MemoryLease:
    slots: tuple[int, ...]


@dataclass(frozen=True)
class MemorySlot:
    hash: BlockHash
    slot: int


@dataclass
class MemoryNode:
    """Blocks survive connections, but not ``restart``; ``up`` False makes every call fail.

    ``fail_calls`` leaves it able to connect. Without ``notices_death`` a broken connection shows at the next call only.
    ``on_call`` and ``on_commit`` run before what they are named for.
    """

    block_bytes: int = FORMAT.block_bytes
    up: bool = True
    fail_calls: bool = False
    notices_death: bool = True
    on_call: Callable[[], object] = lambda: None
    on_commit: Callable[[], object] = lambda: None
    num_lives: int = 1
    contents: list[bytearray] = field(default_factory=list)
    committed: dict[BlockHash, int] = field(default_factory=dict)
    num_leases: int = 0
    num_writes: int = 0
    num_open: int = 0
    num_connects: int = 0
    num_failed_calls: int = 0

    def connect(self) -> "MemoryStore":
        self.num_connects += 1
        if not self.up:
            raise NodeFailed("nobody listens")
        return MemoryStore(self)

    def restart(self, *, keep: bool = False) -> None:
        """Forgets everything, unless it is to ``keep`` it; whoever is connected finds the connection broken."""
        self.num_lives += 1
        self.num_leases = 0
        self.num_writes = 0
        if not keep:
            self.committed.clear()


class MemoryStore:
    def __init__(self, node: MemoryNode) -> None:
        self.node = node
        self.life = node.num_lives
        node.num_open += 1

    def is_alive(self) -> bool:
        return not self.node.notices_death or self._stands()

    def _stands(self) -> bool:
        return self.node.up and self.node.num_lives == self.life

    def check(self) -> None:
        self.node.on_call()
        if self.node.fail_calls or not self._stands():
            self.node.num_failed_calls += 1
            raise NodeFailed("the node is gone")

    def lease(self, hashes: Sequence[BlockHash]) -> MemoryLease:
        self.check()
        slots: list[int] = []
        for block in hashes:
            if block not in self.node.committed:
                break
            slots.append(self.node.committed[block])
        self.node.num_leases += 1
        return MemoryLease(tuple(slots))

    def release(self, lease: MemoryLease) -> None:
        self.check()
        self.node.num_leases -= 1

    def begin_write(self, hashes: Sequence[BlockHash]) -> tuple[MemorySlot, ...]:
        self.check()
        slots: list[MemorySlot] = []
        for block in hashes:
            if block not in self.node.committed:
                slots.append(MemorySlot(block, len(self.node.contents)))
                self.node.contents.append(bytearray(self.node.block_bytes))
        self.node.num_writes += len(slots)
        return tuple(slots)

    def commit(self, slots: Sequence[MemorySlot]) -> None:
        self.node.on_commit()
        self.check()
        self.node.num_writes -= len(slots)
        self.node.committed.update({slot.hash: slot.slot for slot in slots})

    def abort(self, slots: Sequence[MemorySlot]) -> None:
        self.check()
        self.node.num_writes -= len(slots)

    def view(self, slot: int) -> memoryview:
        return memoryview(self.node.contents[slot])

    def close(self) -> None:
        self.node.num_open -= 1
