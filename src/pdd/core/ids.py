"""Names of things, each its own type, so that one is never passed for another."""

from typing import NewType

TokenId = int
"""A vocabulary index; a plain integer because sequences of them are hashed, sliced and sent by the million."""

RequestId = NewType("RequestId", str)
"""One client request, unique within a router's lifetime and across its restarts."""

WorkerId = NewType("WorkerId", str)
"""One engine of the topology (its role's name there), the same across restarts of its process."""

NodeId = NewType("NodeId", str)
"""One KV node of the topology, the same across restarts of its process."""

NodeInstance = NewType("NodeInstance", str)
"""One lifetime of a KV node's process: what a restarted node forgot, it must not be asked for."""

OrderId = NewType("OrderId", str)
"""One standing replication order, unique per router lifetime."""

WatchId = NewType("WatchId", str)
"""One readiness watch with its reservation, unique per router lifetime."""

PinId = NewType("PinId", str)
"""One set of pinned blocks at a node, unique per router lifetime."""

Salt = NewType("Salt", str)
"""What separates the cached blocks of one tenant (or one experiment) from another's."""

TenantId = NewType("TenantId", str)
