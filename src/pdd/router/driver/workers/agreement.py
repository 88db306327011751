"""What a router's engines and nodes must agree on with it, and why one of them does not.

Roles may be started from different files, on different machines, by different people. Who disagrees gets no request:
each of these would make answers wrong, or fail later and elsewhere. What may differ is not here: the kind of engine,
its memory layout, its own block length, and a limit above the deployment's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdd.core.ids import NodeId
from pdd.core.kv_format import KvFormat, abbreviate
from pdd.core.replication import NodeStats
from pdd.engine.base import EngineInfo
from pdd.engine.noise import SAMPLING_VERSION
from pdd.protocol.compatibility import describe_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A deployment as its router knows it."""

    model: str
    max_model_tokens: int
    kv_format: KvFormat
    sampling_version: int = SAMPLING_VERSION

    def why_not_engine(self, info: EngineInfo, *, node: NodeId) -> str | None:
        """Why an engine that should stand beside ``node`` must get no request; None if it may."""
        return "; ".join(self._disagreements(info, node)) or None

    def why_not_node(self, stats: NodeStats) -> str | None:
        """The same of a node. That its KV format is another is said by itself, at the handshake."""
        needed = -(-self.max_model_tokens // self.kv_format.block_tokens)
        if stats.capacity_blocks >= needed:
            return None
        return f"node {stats.node} holds {stats.capacity_blocks} blocks, a request of this deployment may need {needed}"

    def _disagreements(self, info: EngineInfo, node: NodeId) -> Iterator[str]:
        if info.model != self.model:
            yield f"serves model {info.model!r}, this deployment {self.model!r}"
        if info.max_model_tokens < self.max_model_tokens:
            yield f"takes {info.max_model_tokens} tokens, this deployment {self.max_model_tokens}"
        if info.kv_format is None:
            yield "does not say what KV it exchanges"
        elif info.kv_format != self.kv_format.description:
            ours = self.kv_format.description
            yield (
                f"exchanges KV as {abbreviate(info.kv_format)!r}, this deployment as {abbreviate(ours)!r}: "
                f"they differ in {describe_difference(info.kv_format, ours)}"
            )
        if info.sampling_version is None:
            yield "does not say how it draws tokens"
        elif info.sampling_version != self.sampling_version:
            yield f"draws tokens by version {info.sampling_version}, this deployment by {self.sampling_version}"
        if info.node not in (None, node):
            yield f"stands beside node {info.node}, in this deployment beside {node}"
