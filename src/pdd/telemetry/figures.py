"""What a router's metrics are made of: the figures of its requests, workers, lines and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role, Route, SendClass
from pdd.core.units import Bytes, BytesPerSecond, Seconds
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


class NodeFigures(Protocol):
    """What is shown of a KV node; ``kvnode.base.NodeStats`` has it."""

    @property
    def node(self) -> NodeId: ...
    @property
    def capacity_blocks(self) -> int: ...
    @property
    def held_blocks(self) -> int: ...
    @property
    def leased_blocks(self) -> int: ...
    @property
    def pinned_blocks(self) -> int: ...
    @property
    def reserved_blocks(self) -> int: ...
    @property
    def writing_blocks(self) -> int: ...
    @property
    def orders(self) -> int: ...
    @property
    def watches(self) -> int: ...
    @property
    def sent_bytes(self) -> Mapping[str, int]: ...
    @property
    def received_bytes(self) -> Mapping[str, int]: ...
    @property
    def evictions(self) -> int: ...
    @property
    def digest_failures(self) -> int: ...


class WorkerFigures(Protocol):
    """What is shown of a worker; ``router.driver.workers.worker.WorkerStatus`` has it."""

    @property
    def worker(self) -> WorkerId: ...
    @property
    def role(self) -> Role: ...
    @property
    def up(self) -> bool: ...
    @property
    def running(self) -> int: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def restarts(self) -> int: ...
    @property
    def breaker(self) -> StrEnum: ...
    @property
    def why_down(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFigures:
    """What is believed of the line between two clusters, named in order of the alphabet."""

    clusters: tuple[str, str]
    rate: BytesPerSecond | None
    backlog: Mapping[SendClass, Bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReading:
    """The state of a router at one moment. ``nodes`` are those that answer; ``shed`` counts since the beginning."""

    nodes: Sequence[NodeFigures] = ()
    workers: Sequence[WorkerFigures] = ()
    lines: Sequence[LineFigures] = ()
    num_served: int = 0
    num_queued: int = 0
    shed: Mapping[ShedReason, int] = field(default_factory=dict[ShedReason, int])
    num_transfers: int = 0
    num_conversations: int = 0
    wan_kv_bytes: Bytes = Bytes(0)
