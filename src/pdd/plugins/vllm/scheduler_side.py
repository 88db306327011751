"""Which tokens a vLLM engine loads from its KV node and which blocks it offers it: the connector's side in the
scheduler.

Decides only; the workers' side moves the bytes. Its rules:

- A request is asked for its prefix at the node beyond what vLLM's own cache has, but never for its last token: that one is
  always computed, its logits are wanted.
- What another request is loading right now isn't loaded twice: the request is parked until that load ended. Then it is in
  vLLM's own cache.
- A request whose load failed computes: it is not asked for again, else it could go round for ever.
- Every wire block is ordered to be offered once, in the step whose forward pass fills it. Blocks that vLLM's own cache had, or
  that were just loaded, are ordered with the request's first step: the node may have evicted what this cache still has.
- Only tokens that are known have names. With asynchronous scheduling a step may be built before the token it computes is
  known here; its block is ordered a step later, if there is one.

Runs on the scheduler's thread only and imports no vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from pdd.core.blocks import BlockChain, BlockHash
from pdd.core.ids import Salt, TokenId
from pdd.core.kv_format import KvFormat
from pdd.core.units import Seconds
from pdd.plugins.vllm.orders import LoadOrder, SaveOrder, StepOrders

_LOOKUP_LASTS = Seconds(0.05)
"""vLLM asks again in each step while there is no room for a request; the node is not."""


class ScheduledRequest(Protocol):
    """What is read of vLLM's ``Request``. It grows while the request runs."""

    @property
    def request_id(self) -> str: ...

    @property
    def all_token_ids(self) -> Sequence[int]: ...

    @property
    def num_computed_tokens(self) -> int: ...

    @property
    def cache_salt(self) -> str | None: ...


class CountHeld(Protocol):
    """``NodeLink.count_held``."""

    def __call__(self, hashes: Sequence[BlockHash], /) -> int: ...


class _Lookup:
    """What the node was last asked for a request: it holds ``num_held`` wire blocks from ``first_block`` on."""

    __slots__ = ("at", "first_block", "num_held")

    def __init__(self, first_block: int, num_held: int, at: float) -> None:
        self.first_block = first_block
        self.num_held = num_held
        self.at = at


class _Sequence:
    """One request.

    Attributes:
        hashes: of the full wire blocks of the tokens known so far.
        num_ordered: how many first blocks were ordered to be offered since it last began.
        local_tokens: what vLLM's own cache had of it at the last lookup.
        load: that is under way.
    """

    __slots__ = (
        "_chain",
        "_num_named",
        "hashes",
        "load",
        "load_failed",
        "local_tokens",
        "lookup",
        "num_ordered",
        "request",
    )

    def __init__(self, request: ScheduledRequest, kv_format: KvFormat) -> None:
        self.request = request
        self.hashes: list[BlockHash] = []
        self._chain = BlockChain(kv_format, Salt(request.cache_salt or ""))
        self._num_named = 0
        self.num_ordered = 0
        self.local_tokens = 0
        self.lookup: _Lookup | None = None
        self.load: LoadOrder | None = None
        self.load_failed = False

    def name_blocks(self) -> None:
        """Names the blocks that tokens which arrived since have filled."""
        tokens = self.request.all_token_ids
        new = [TokenId(token) for token in tokens[self._num_named :]]
        self._num_named += len(new)
        self.hashes.extend(self._chain.append(new))


class SchedulerSide:
    """One engine's. Call order per request: ``add``, then ``count_loadable`` and ``place`` until it runs, at last
    ``end``; ``build_step`` once a step, ``end_loads`` when the workers report.
    """

    __slots__ = ("_count_held", "_ended", "_kv_format", "_loading", "_new_loads", "_now", "_sequences")

    def __init__(
        self, kv_format: KvFormat, count_held: CountHeld, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._kv_format = kv_format
        self._count_held = count_held
        self._now = now
        self._sequences: dict[str, _Sequence] = {}
        self._loading: set[BlockHash] = set()
        self._new_loads: list[LoadOrder] = []
        self._ended: list[str] = []

    @property
    def is_idle(self) -> bool:
        """Nothing is remembered of any request."""
        return not (self._sequences or self._loading or self._new_loads or self._ended)

    def add(self, request: ScheduledRequest) -> None:
        """A request that was not added is neither loaded nor saved."""
        self._sequences[request.request_id] = _Sequence(request, self._kv_format)

    def count_loadable(self, request_id: str, local_tokens: int) -> int | None:
        """How many tokens to load after the ``local_tokens`` first; None: ask again in a later step."""
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.load_failed:
            return 0
        sequence.local_tokens = local_tokens
        sequence.name_blocks()
        first_block = local_tokens // self._kv_format.block_tokens
        wanted = sequence.hashes[first_block:]
        if not wanted:
            return 0
        if not self._loading.isdisjoint(wanted):
            return None
        held_tokens = (first_block + self._look_up(sequence, first_block, wanted)) * self._kv_format.block_tokens
        end = min(held_tokens, len(sequence.request.all_token_ids) - 1)
        return max(end - local_tokens, 0)

    def place(self, request_id: str, cache_blocks: Sequence[int], num_tokens: int) -> None:
        """The request was given cache blocks, and vLLM wants ``num_tokens`` loaded: as many as were
        counted, or none.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or num_tokens == 0:
            return
        first, end = sequence.local_tokens, sequence.local_tokens + num_tokens
        first_block, end_block = first // self._kv_format.block_tokens, -(-end // self._kv_format.block_tokens)
        order = LoadOrder(
            request_id=request_id,
            first_block=first_block,
            hashes=tuple(sequence.hashes[first_block:end_block]),
            first_token=first,
            end_token=end,
            cache_blocks=tuple(cache_blocks),
        )
        sequence.load = order
        sequence.lookup = None
        self._loading.update(order.hashes)
        self._new_loads.append(order)

    def build_step(
        self,
        num_scheduled: Mapping[str, int],
        block_table: Callable[[str], Sequence[int]],
        *,
        preempted: Iterable[str],
    ) -> StepOrders:
        """The step's orders; what vLLM counts as computed is the state before it."""
        forgotten, self._ended = self._ended, []
        for request_id in preempted:
            forgotten.append(request_id)
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                sequence.num_ordered = 0
        loads, self._new_loads = self._new_loads, []
        return StepOrders(
            forgotten=tuple(forgotten),
            loads=tuple(loads),
            saves=tuple(self._order_saves(num_scheduled, block_table)),
        )

    def end_loads(self, ended: Collection[str], failed_blocks: Collection[int]) -> None:
        """The workers report: these requests' loads are over, these cache blocks could not be filled.

        A block that failed may be reported before the load that it belongs to.
        """
        if failed_blocks:
            failed = frozenset(failed_blocks)
            for sequence in self._sequences.values():
                if sequence.load is not None and not failed.isdisjoint(sequence.load.cache_blocks):
                    sequence.load_failed = True
        for request_id in ended:
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                self._end_load(sequence)

    def end(self, request_id: str) -> None:
        """The request is over.

        Requests that wait for its load need not wait longer: what it loads, nobody will find.
        """
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return
        self._end_load(sequence)
        if sequence.num_ordered:
            self._ended.append(request_id)

    def _look_up(self, sequence: _Sequence, first_block: int, wanted: Sequence[BlockHash]) -> int:
        lookup, now = sequence.lookup, self._now()
        if lookup is None or lookup.first_block != first_block or now - lookup.at >= _LOOKUP_LASTS:
            lookup = sequence.lookup = _Lookup(first_block, self._count_held(wanted), now)
        return lookup.num_held

    def _end_load(self, sequence: _Sequence) -> None:
        if sequence.load is not None:
            self._loading.difference_update(sequence.load.hashes)
            sequence.load = None

    def _order_saves(
        self, num_scheduled: Mapping[str, int], block_table: Callable[[str], Sequence[int]]
    ) -> Iterable[SaveOrder]:
        for request_id, num_tokens in num_scheduled.items():
            sequence = self._sequences.get(request_id)
            if sequence is None:
                continue
            computed = min(sequence.request.num_computed_tokens + num_tokens, len(sequence.request.all_token_ids))
            num_full = self._kv_format.num_full_blocks(computed)
            if num_full <= sequence.num_ordered:
                continue
            sequence.name_blocks()
            yield SaveOrder(
                request_id=request_id,
                first_block=sequence.num_ordered,
                hashes=tuple(sequence.hashes[sequence.num_ordered : num_full]),
                cache_blocks=tuple(block_table(request_id)),
            )
            sequence.num_ordered = num_full
