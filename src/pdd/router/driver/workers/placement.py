"""Puts together what ``policy.placement`` decides by: prefixes, queues, lines, room and trust. It waits for nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdd.belief.links import Links
from pdd.core.blocks import BlockHash
from pdd.core.clock import Clock
from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role
from pdd.core.topology import PlacementRule
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.policy.placement import FULL_BATCH_SLOWDOWN, WorkerView, choose_worker, predict_decode_queue
from pdd.router.driver.workers.conversations import Conversation
from pdd.router.driver.workers.directory import BlockDirectory
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.worker import Seat, Worker, WorkerState

_UNKNOWN_RATE = BytesPerSecond(1.25e9)
"""Assumed of a line of which nothing is known."""
_TOKEN_UNKNOWN = Seconds(0.02)
_NUM_TOKENS_UNKNOWN = 100.0
_BLOCK_UNKNOWN = Seconds(0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is the same for all candidates."""

    source: Worker | None
    avoid: frozenset[WorkerId]
    num_blocks: int
    now: Seconds


class Placement:
    """One per router."""

    def __init__(
        self,
        pool: Pool,
        directory: BlockDirectory,
        links: Links,
        *,
        rule: PlacementRule,
        block_bytes: Bytes,
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._links = links
        self._rule = rule
        self._block_bytes = block_bytes
        self._clock = clock

    def pick(
        self,
        role: Role,
        hashes: Sequence[BlockHash],
        *,
        conversation: Conversation | None = None,
        avoid: frozenset[WorkerId] = frozenset(),
        near: WorkerId | None = None,
        num_blocks: int = 0,
    ) -> Seat | None:
        """A seat at the best worker of ``role``; None: nobody is up.

        ``hashes`` are the prompt's full blocks. ``avoid`` are workers at which this request has lost a generation.
        ``near`` is its prefill worker, from whose node the blocks would come. A decoder's node must have room for
        ``num_blocks``.
        """
        states = self._pool.candidates(role)
        if not states:
            return None
        source = None if near is None else self._pool.worker(near)
        missing = self._count_missing(states, hashes, source)
        question = _Question(source=source, avoid=avoid, num_blocks=num_blocks, now=self._clock.now())
        views = [self._view(state, missing[state.worker.node.node], question) for state in states]
        home = None if conversation is None else conversation.workers.get(role)
        chosen = self._pool.worker(choose_worker(views, self._rule, home=home))
        return self._pool.take(chosen.name, num_missing=missing[chosen.node.node], num_blocks=num_blocks)

    def _count_missing(
        self, states: Sequence[WorkerState], hashes: Sequence[BlockHash], source: Worker | None
    ) -> Mapping[NodeId, int]:
        """What each node lacks of the prompt. Prefill's own will lack nothing: there it is written."""
        missing: dict[NodeId, int] = {}
        for state in states:
            node = state.worker.node
            if source is not None and node is source.node:
                missing[node.node] = 0
            elif node.node not in missing:
                missing[node.node] = len(hashes) - self._directory.prefix_at(node.node, hashes)
        return missing

    def _view(self, state: WorkerState, num_missing: int, question: _Question) -> WorkerView:
        worker, now = state.worker, question.now
        slowness = self._pool.pace(worker.role).slowness(worker.name, now)
        if worker.role is Role.PREFILL:
            own, queue = self._prefill_costs(state, num_missing, slowness)
        else:
            own, queue = self._decode_costs(state, num_missing, slowness, question.source)
        return WorkerView(
            name=worker.name,
            own=own,
            queue=queue,
            load=len(state.seats) / worker.max_batch,
            has_room=self._has_room(state, question.num_blocks),
            late=state.is_late(now),
            lost_here=worker.name in question.avoid,
            trusted=state.breaker.lets_through(now),
        )

    def _prefill_costs(self, state: WorkerState, num_missing: int, slowness: float) -> tuple[Seconds, Seconds]:
        """Prefill is bound by compute: who comes later waits until all blocks before are computed."""
        block_s = (self._pool.pace(Role.PREFILL).unit_s or _BLOCK_UNKNOWN) * slowness
        return Seconds(block_s * (num_missing + 1)), Seconds(block_s * (state.num_missing + len(state.seats)))

    def _decode_costs(
        self, state: WorkerState, num_missing: int, slowness: float, source: Worker | None
    ) -> tuple[Seconds, Seconds]:
        """A slow decoder costs its slowness already when it is alone."""
        worker, pace = state.worker, self._pool.pace(state.worker.role)
        unit = (pace.alone_s or _TOKEN_UNKNOWN) * slowness
        crowd = pace.crowd_s
        extra = unit * FULL_BATCH_SLOWDOWN / worker.max_batch if crowd is None else crowd * slowness
        num_tokens = pace.typical_work or _NUM_TOKENS_UNKNOWN
        alone, sending = Seconds(num_tokens * unit), self._sending_time(num_missing, source, worker)
        queue = predict_decode_queue(
            running=len(state.seats), max_batch=worker.max_batch, alone=alone, crowd=Seconds(num_tokens * extra)
        )
        return Seconds(sending + alone), queue

    def _sending_time(self, num_missing: int, source: Worker | None, target: Worker) -> Seconds:
        if num_missing == 0:
            return Seconds(0.0)
        rate = None if source is None else self._links.view(source.site, target.site, self._clock.now()).rate
        return Seconds(num_missing * self._block_bytes / (rate or _UNKNOWN_RATE))

    def _has_room(self, state: WorkerState, num_blocks: int) -> bool:
        """Its node's last books may be a second old, so what was promised to seats since then counts as well."""
        stats = self._pool.node_stats.get(state.worker.node.node)
        if stats is None:
            return False
        taken = max(stats.reserved_blocks + stats.leased_blocks, state.node.num_promised)
        return state.worker.role is Role.PREFILL or taken + num_blocks <= stats.capacity_blocks
