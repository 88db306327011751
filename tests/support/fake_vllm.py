"""vLLM's scheduler and cache as far as a KV connector sees them, in plain Python: each token's KV is the name of its
prefix.

Around the connector's real decisions and a real link to a node of plain memory. Checks what the connector orders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdd.core.blocks import BlockHash, block_hashes
from pdd.core.ids import Salt, TokenId
from pdd.core.kv_format import DType, KvFormat, uniform_attention_format
from pdd.core.units import Seconds
from pdd.engine.node_link import NodeLink, Pauses
from pdd.plugins.vllm.offers import CachedBlock, Offers
from pdd.plugins.vllm.orders import LoadOrder, SaveOrder, StepOrders
from pdd.plugins.vllm.scheduler_side import SchedulerSide
from tests.unit.engine.scripted_support import MemoryNode

_KV_BYTES = 8


def wire_format(block_tokens: int) -> KvFormat:
    """16 bytes a token: more than a prefix's name needs."""
    return uniform_attention_format(
        model="fake", num_layers=1, num_kv_heads=1, head_dim=2, dtype=DType.FLOAT32, block_tokens=block_tokens
    )


def kv_of(request: FakeRequest, position: int) -> bytes:
    prefix = ",".join(map(str, request.all_token_ids[: position + 1]))
    return hashlib.sha256(f"{request.cache_salt}|{prefix}".encode()).digest()[:_KV_BYTES]


@dataclass(eq=False)
class FakeRequest:
    request_id: str
    all_token_ids: list[int]
    num_output: int
    cache_salt: str | None = None
    num_computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    is_loading: bool = False
    was_lost: bool = False  # its load failed
    ordered: int = 0  # wire blocks, since it last began
    in_flight: int = 0  # steps whose outcome is not known yet
    num_stale: int = 0

    def is_complete(self) -> bool:
        return self.num_output == 0


@dataclass
class _Outcome:
    """What vLLM learns of a step when it is over."""

    drawing: list[FakeRequest]
    ended_loads: set[str]
    failed_blocks: set[int]


class FakeVllm:
    """One engine.

    ``latency`` steps are built before a step's outcome is known: 1 with asynchronous scheduling, else 0.
    """

    def __init__(
        self, *, block_tokens: int = 4, wire_tokens: int = 4, num_blocks: int = 64, chunk: int = 8, latency: int = 0
    ) -> None:
        self.time = 0.0
        self.block_tokens = block_tokens
        self.format = wire_format(wire_tokens)
        self.chunk = chunk
        self.latency = latency
        self.node = MemoryNode(block_bytes=self.format.block_bytes)
        self.lookups = self._link()
        self.side = SchedulerSide(self.format, self._count_held, now=lambda: self.time)
        self.saving = self._link()
        self.offers = Offers(self.saving)
        self.loading = self._link()
        self.num_lookups = 0
        self.kv: dict[tuple[int, int], bytes] = {}
        self.num_blocks = num_blocks
        self.free = list(range(num_blocks))
        self.cached: dict[bytes, int] = {}  # the last token's KV names a whole prefix
        self.holders: dict[int, int] = {}
        self.waiting: list[FakeRequest] = []
        self.running: list[FakeRequest] = []
        self.requests: dict[str, FakeRequest] = {}
        self.zombies: dict[str, FakeRequest] = {}  # aborted in mid-load
        self.loads: list[LoadOrder] = []
        self.outcomes: list[_Outcome] = []
        self.preempted: list[str] = []
        self.preempted_ever: set[str] = set()
        self.ended: set[str] = set()
        self.failed: set[int] = set()
        self.steps: list[StepOrders] = []
        self.scheduled: dict[str, int] = {}

    # What happens to it

    def add(
        self, request_id: str, tokens: Sequence[int], *, num_output: int = 1, salt: str | None = None
    ) -> FakeRequest:
        request = FakeRequest(request_id, list(tokens), num_output, salt)
        self.requests[request_id] = request
        self.waiting.append(request)
        self.side.add(request)
        return request

    def abort(self, request_id: str) -> None:
        request = self.requests[request_id]
        self._leave(request)
        if request.is_loading:
            self.zombies[request_id] = request
        else:
            self._release(request)
        self.side.end(request_id)

    def step(self) -> StepOrders:
        """One step, and the outcome of as many earlier ones as are due."""
        self.time += 0.1
        scheduled = self._schedule()
        self.scheduled = {request.request_id: count for request, count in scheduled}
        orders = self.side.build_step(
            self.scheduled,
            lambda request_id: self.requests[request_id].blocks,
            preempted=tuple(self.preempted),
        )
        self.preempted.clear()
        self._check(orders)
        self.steps.append(orders)
        self._compute(scheduled)
        self.offers.make(orders, self._fill)
        self.loads.extend(orders.loads)
        drawing = []
        for request, count in scheduled:
            request.num_computed_tokens += count
            if request.num_computed_tokens >= len(request.all_token_ids) + request.in_flight:
                request.in_flight += 1
                drawing.append(request)
        self.outcomes.append(_Outcome(drawing, set(self.ended), set(self.failed)))
        self.ended.clear()
        self.failed.clear()
        while len(self.outcomes) > self.latency or (self.outcomes and not scheduled and not self.loads):
            self._learn(self.outcomes.pop(0))
        return orders

    def receive(self, tokens: Sequence[int], *, salt: str | None = None) -> None:
        """Another engine has computed ``tokens``; its blocks arrive at this one's node."""
        other = FakeRequest("other", list(tokens), 0, salt)
        size = self.format.block_tokens
        for number, name in enumerate(self.names(other)):
            content = bytearray(self.format.block_bytes)
            for index in range(size):
                content[index * 16 : index * 16 + _KV_BYTES] = kv_of(other, number * size + index)
            self.node.contents.append(content)
            self.node.committed.setdefault(name, len(self.node.contents) - 1)

    def end_load(self, request_id: str, *, fail_from: int | None = None) -> None:
        """A loader thread is done with it; ``fail_from`` on, the node had lost its blocks."""
        order = next(order for order in self.loads if order.request_id == request_id)
        self.loads.remove(order)
        hashes = order.hashes if fail_from is None else order.hashes[:fail_from]
        num_read = self.loading.read_prefix(
            hashes, lambda index, content: self._load(order, order.first_block + index, content)
        )
        if num_read < len(order.hashes):
            lacking = max((order.first_block + num_read) * self.format.block_tokens, order.first_token)
            self.failed.update(order.cache_blocks[lacking // self.block_tokens :][: self._num_blocks(order.end_token)])
        self.ended.add(request_id)

    def drain(self) -> None:
        """Everything ends."""
        for order in tuple(self.loads):
            self.end_load(order.request_id)
        for request_id in tuple(self.requests):
            if request_id not in self.zombies:
                self.abort(request_id)
        for _ in range(self.latency + 2):
            self.step()
        assert not self.requests
        assert self.side.is_idle
        assert self.offers.num_running == 0
        assert not self.holders

    # Checks

    def _check(self, orders: StepOrders) -> None:
        for request_id in orders.forgotten:
            if request_id in self.requests:
                self.requests[request_id].ordered = 0
        for load in orders.loads:
            request = self.requests[load.request_id]
            assert request.is_loading
            assert load.first_token < load.end_token < len(request.all_token_ids)
            names = self.names(request)
            end_block = load.first_block + len(load.hashes)
            assert load.hashes == names[load.first_block : end_block]
            assert load.first_block == load.first_token // self.format.block_tokens
            assert end_block == -(-load.end_token // self.format.block_tokens)
            assert not request.was_lost, "a request whose load failed loads again"
            for other in self.loads:
                same = set(load.hashes) & set(other.hashes)
                assert not same or other.request_id in self.zombies, "two requests load the same block"
        for save in orders.saves:
            self._check_save(save)
        for request_id, count in self.scheduled.items():
            request = self.requests[request_id]
            known = min(request.num_computed_tokens + count, len(request.all_token_ids))
            assert request.ordered == known // self.format.block_tokens

    def _check_save(self, save: SaveOrder) -> None:
        request = self.requests[save.request_id]
        assert save.hashes
        assert save.first_block == request.ordered, "a block is ordered twice, or not at all"
        request.ordered += len(save.hashes)
        assert save.hashes == self.names(request)[save.first_block : request.ordered]
        assert save.cache_blocks == tuple(request.blocks)

    def names(self, request: FakeRequest) -> tuple[BlockHash, ...]:
        tokens = [TokenId(token) for token in request.all_token_ids]
        return block_hashes(self.format, Salt(request.cache_salt or ""), tokens)

    # vLLM

    def _schedule(self) -> list[tuple[FakeRequest, int]]:
        scheduled = []
        for request in tuple(self.running):
            if request not in self.running:
                continue
            left = len(request.all_token_ids) + request.in_flight - request.num_computed_tokens
            if request.num_output - request.in_flight <= 0 or not left:
                continue
            count = min(left, self.chunk)
            if self._grow(request, request.num_computed_tokens + count):
                scheduled.append((request, count))
        scheduled = [(request, count) for request, count in scheduled if request in self.running]
        if not self.preempted:
            scheduled.extend(self._admit())
        return scheduled

    def _admit(self) -> list[tuple[FakeRequest, int]]:
        admitted = []
        for request in tuple(self.waiting):
            if request.is_loading or request.num_stale:
                continue
            num_external = 0
            if request.num_computed_tokens == 0:
                own = self._find(request)
                num_local = len(own) * self.block_tokens
                count = self.side.count_loadable(request.request_id, num_local)
                if count is None:
                    continue
                num_external = count
                assert num_local + num_external < len(request.all_token_ids)
                total = num_local + num_external + (0 if num_external else self.chunk)
                needed = self._num_blocks(min(total, len(request.all_token_ids))) - len(own)
                idle = sum(1 for block in own if not self.holders.get(block))
                if needed > len(self.free) - idle:
                    break
                for block in own:
                    self._hold(block)
                request.blocks = [*own, *(self._take() for _ in range(needed))]
                self.side.place(request.request_id, request.blocks, num_external)
                request.num_computed_tokens = num_local + num_external
                if num_external:
                    request.is_loading = True
                    continue
            left = len(request.all_token_ids) - request.num_computed_tokens
            count = min(left, self.chunk)
            self.waiting.remove(request)
            self.running.append(request)
            if not self._grow(request, request.num_computed_tokens + count):
                break
            admitted.append((request, count))
        return [(request, count) for request, count in admitted if request in self.running]

    def _compute(self, scheduled: Sequence[tuple[FakeRequest, int]]) -> None:
        for request, count in scheduled:
            for position in range(request.num_computed_tokens, request.num_computed_tokens + count):
                known = position < len(request.all_token_ids)
                self.kv[self._cell(request.blocks, position)] = kv_of(request, position) if known else b"drawn"
            self._publish(request, request.num_computed_tokens + count)

    def _learn(self, outcome: _Outcome) -> None:
        failed = outcome.failed_blocks
        for request in self.waiting:
            if request.is_loading:
                bad = [index for index, block in enumerate(request.blocks) if block in failed]
                if bad:
                    request.was_lost = True
                    request.num_computed_tokens = bad[0] * self.block_tokens
        for request in outcome.drawing:
            if self.requests.get(request.request_id) is not request:
                continue
            request.in_flight = max(request.in_flight - 1, 0)
            request.num_stale = max(request.num_stale - 1, 0)
            position = len(request.all_token_ids)
            request.all_token_ids.append(1000 + position)
            request.num_output -= 1
            if request in self.running and position < request.num_computed_tokens:
                self.kv[self._cell(request.blocks, position)] = kv_of(request, position)
            if request.is_complete():
                self._leave(request)
                self._release(request)
                self.side.end(request.request_id)
        self.side.end_loads(outcome.ended_loads, failed)
        for request_id in outcome.ended_loads:
            if request_id in self.zombies:
                self._release(self.zombies.pop(request_id))
                continue
            request = self.requests[request_id]
            request.is_loading = False
            if request.num_computed_tokens == 0:
                self._release(request, forget=False)
            else:
                self._publish(request, request.num_computed_tokens)

    def _grow(self, request: FakeRequest, num_tokens: int) -> bool:
        while self._num_blocks(num_tokens) > len(request.blocks):
            if not self.free:
                victim = self.running.pop()
                self._release(victim, forget=False)
                victim.num_computed_tokens = 0
                victim.num_stale = victim.in_flight
                victim.in_flight = 0
                self.waiting.insert(0, victim)
                self.preempted.append(victim.request_id)
                self.preempted_ever.add(victim.request_id)
                if victim is request:
                    return False
            else:
                request.blocks.append(self._take())
        return True

    # Its cache

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def _cell(self, blocks: Sequence[int], position: int) -> tuple[int, int]:
        return blocks[position // self.block_tokens], position % self.block_tokens

    def _find(self, request: FakeRequest) -> list[int]:
        found = []
        for end in range(self.block_tokens, len(request.all_token_ids), self.block_tokens):
            block = self.cached.get(kv_of(request, end - 1))
            if block is None:
                break
            found.append(block)
        return found

    def _publish(self, request: FakeRequest, num_tokens: int) -> None:
        for end in range(self.block_tokens, min(num_tokens, len(request.all_token_ids)) + 1, self.block_tokens):
            self.cached.setdefault(kv_of(request, end - 1), request.blocks[end // self.block_tokens - 1])

    def _take(self) -> int:
        block = self.free.pop(0)
        self.cached = {name: other for name, other in self.cached.items() if other != block}
        for offset in range(self.block_tokens):
            self.kv[block, offset] = b"junk"
        self.holders[block] = 1
        return block

    def _hold(self, block: int) -> None:
        if block in self.free:
            self.free.remove(block)
        self.holders[block] = self.holders.get(block, 0) + 1

    def _release(self, request: FakeRequest, *, forget: bool = True) -> None:
        for block in reversed(request.blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                del self.holders[block]
                self.free.append(block)
        request.blocks = []
        if forget:
            del self.requests[request.request_id]

    def _leave(self, request: FakeRequest) -> None:
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def drop_cache(self) -> None:
        """As vLLM's reset_prefix_cache."""
        self.cached.clear()

    # Its workers

    def _link(self) -> NodeLink:
        pauses = Pauses(first=Seconds(0.25), last=Seconds(1.0))
        return NodeLink(self.node.connect, pauses=pauses, now=lambda: self.time)

    def _count_held(self, hashes: Sequence[BlockHash]) -> int:
        self.num_lookups += 1
        return self.lookups.count_held(hashes)

    def _fill(self, block: CachedBlock, target: memoryview) -> None:
        size = self.format.block_tokens
        for index in range(size):
            kv = self.kv[self._cell(block.cache_blocks, block.block * size + index)]
            assert len(kv) == _KV_BYTES, f"{kv!r} is no KV"
            target[index * 16 : index * 16 + _KV_BYTES] = kv

    def _load(self, order: LoadOrder, block: int, content: memoryview) -> None:
        request = self.zombies.get(order.request_id) or self.requests[order.request_id]
        start = block * self.format.block_tokens
        for index in range(self.format.block_tokens):
            position = start + index
            if order.first_token <= position < order.end_token:
                kv = bytes(content[index * 16 : index * 16 + _KV_BYTES])
                assert kv == kv_of(request, position), "the node's block is another one's"
                self.kv[self._cell(order.cache_blocks, position)] = kv
