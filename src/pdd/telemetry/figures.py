"""What a router's metrics are made of: the figures of its requests, workers, links and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pdd.belief.links import LinkReading
from pdd.belief.worker_state import WorkerStatus
from pdd.core.replication import NodeStats
from pdd.core.request import Role, Route
from pdd.core.units import Bytes, Seconds
from pdd.policy.admission import ShedReason


class RequestFigures(Protocol):
    """What is counted of a finished request; ``router.base.RequestReport`` has it."""

    @property
    def route(self) -> Route | None: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def tokens_by_role(self) -> Mapping[Role, int]: ...
    @property
    def ttft_s(self) -> Seconds | None: ...
    @property
    def ttst_s(self) -> Seconds | None: ...
    @property
    def max_itl_s(self) -> Seconds | None: ...
    @property
    def median_itl_s(self) -> Seconds | None: ...
    @property
    def handoff_gap_s(self) -> Seconds | None: ...
    @property
    def handoff_rounds(self) -> int: ...
    @property
    def filtered(self) -> bool: ...
    @property
    def queued_s(self) -> Seconds: ...
    @property
    def num_prompt_blocks(self) -> int: ...
    @property
    def missing_blocks_at_prefill(self) -> int | None: ...
    @property
    def missing_blocks_at_main(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReading:
    """The state of a router at one moment. ``nodes`` are those that answer; ``shed`` counts since the beginning."""

    nodes: Sequence[NodeStats] = ()
    workers: Sequence[WorkerStatus] = ()
    links: Sequence[LinkReading] = ()
    num_served: int = 0
    num_queued: int = 0
    shed: Mapping[ShedReason, int] = field(default_factory=dict[ShedReason, int])
    num_transfers: int = 0
    num_conversations: int = 0
    wan_kv_bytes: Bytes = Bytes(0)
