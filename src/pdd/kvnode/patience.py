"""How long KV nodes and routers bear with each other. Real nodes and those in memory have it from here."""

from __future__ import annotations

from pdd.core.units import Seconds

PEER_PATIENCE = Seconds(10.0)
"""How long a target may stay unreachable before the orders to it fail."""
STALL_TIMEOUT = Seconds(2.0)
"""With something unanswered, a line on which nothing moves for this long is taken for dead."""
CHECK_INTERVAL = Seconds(0.25)
EVICTION_GRACE = Seconds(3.0)
"""How long an order waits for an evicted block to be written again before it fails."""
SILENCE_LIMIT = Seconds(10.0)
"""Sources ping every second: one that is silent for this long is gone, and others may have what it claimed."""
ROUTER_PATIENCE = Seconds(5.0)
"""A router takes a node that says nothing for so long for dead, and its connection for lost."""
