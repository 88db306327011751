"""What the command of a role and the role itself have between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdd.cli.deploy.state import RunDirectory
from pdd.cli.topology.source import TopologySource
from pdd.core.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """What a role is started with. It calls ``on_ready`` once, when others can use it."""

    topology: Topology
    source: TopologySource
    name: str
    run: RunDirectory
    on_ready: Callable[[], None]
