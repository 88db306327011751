"""All that a router believes, in one place, and the frozen views of it that policies decide by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from pdd.belief.conversations import Conversation, Conversations, Pins
from pdd.belief.links import Links
from pdd.belief.prefixes import Prefixes
from pdd.belief.traffic import FilterShare, OutputLengths
from pdd.belief.worker_state import WorkerState, WorkerT
from pdd.belief.workers import Workers
from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role
from pdd.core.topology import PolicyTable
from pdd.core.units import Bytes, Seconds
from pdd.core.view import CandidateView, PlacementView, RoleView, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementQuestion:
    """Which worker of ``role`` serves a request best? ``hashes`` are the prompt's full blocks.

    ``lost_at`` are workers at which this request has lost a generation. ``source`` is where its blocks would come from:
    prefill's node. A decoder's node must have room for ``num_blocks``.
    """

    role: Role
    hashes: Sequence[BlockHash]
    num_blocks: int
    conversation: Conversation | None = None
    lost_at: frozenset[WorkerId] = frozenset()
    source: Site | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs(Generic[WorkerT]):
    """One per router."""

    workers: Workers[WorkerT]
    links: Links
    prefixes: Prefixes
    conversations: Conversations
    lengths: OutputLengths
    filter_share: FilterShare
    block_bytes: Bytes

    @classmethod
    def begin(
        cls, workers: Workers[WorkerT], pins: Pins, links: Links, *, block_bytes: Bytes, settings: PolicyTable
    ) -> Beliefs[WorkerT]:
        """Of a router that has seen nothing yet."""
        return cls(
            workers=workers,
            links=links,
            prefixes=Prefixes(workers.books),
            conversations=Conversations(pins, ttl=settings.conversation_ttl_s),
            lengths=OutputLengths(),
            filter_share=FilterShare(settings.filter_max_share),
            block_bytes=block_bytes,
        )

    def roles(self) -> Mapping[Role, RoleView]:
        """Each role's workers together."""
        return {role: self.workers.role_view(role) for role in Role}

    def placement(self, question: PlacementQuestion, settings: PolicyTable, now: Seconds) -> PlacementView | None:
        """What the question is decided by; None: no worker of this role is up."""
        states = self.workers.candidates(question.role)
        if not states:
            return None
        missing = self._count_missing(states, question)
        return PlacementView(
            role=question.role,
            candidates=tuple(self._candidate(state, missing[state.node.node], question, now) for state in states),
            pace=self.workers.pace(question.role).view,
            num_blocks=question.num_blocks,
            block_bytes=self.block_bytes,
            home=None if question.conversation is None else question.conversation.workers.get(question.role),
            settings=settings,
        )

    def _count_missing(
        self, states: Sequence[WorkerState[WorkerT]], question: PlacementQuestion
    ) -> Mapping[NodeId, int]:
        """What each node lacks of the prompt. Prefill's own will lack nothing: there it is written."""
        source = None if question.source is None else question.source.node
        missing: dict[NodeId, int] = {}
        for state in states:
            node = state.node.node
            if node == source:
                missing[node] = 0
            elif node not in missing:
                missing[node] = len(question.hashes) - self.prefixes.prefix_at(node, question.hashes)
        return missing

    def _candidate(
        self, state: WorkerState[WorkerT], num_missing: int, question: PlacementQuestion, now: Seconds
    ) -> CandidateView:
        link = None
        if question.source is not None and num_missing and question.role is not Role.PREFILL:
            link = self.links.view(question.source, state.worker.site, now)
        return CandidateView(
            worker=self.workers.view(state, now),
            num_missing=num_missing,
            link=link,
            lost_here=state.worker.name in question.lost_at,
        )
