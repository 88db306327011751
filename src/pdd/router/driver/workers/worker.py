"""One worker as the router reaches it: its engine, and the KV node on its machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.core.ids import WorkerId
from pdd.core.request import Role
from pdd.core.view import Site
from pdd.engine.base import EngineClient
from pdd.kvnode.base import NodeClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One engine, its role, its cluster and its node. A ``belief.workers.KnownWorker``."""

    engine: EngineClient
    node: NodeClient
    role: Role
    cluster: str
    max_batch: int = 16
    site: Site = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "site", Site(node=self.node.node, cluster=self.cluster))

    @property
    def name(self) -> WorkerId:
        return self.engine.worker
