"""What a router shows of itself: for metrics and health, live and simulated."""

from __future__ import annotations

from pdd.router.driver.service import Driver
from pdd.telemetry.figures import RouterReading


def read_router(driver: Driver) -> RouterReading:
    """The driver's state now. Asks nobody."""
    return RouterReading(
        nodes=tuple(driver.pool.node_stats.values()),
        workers=driver.pool.status(),
        links=driver.links.readings(driver.now),
        num_served=driver.room.num_running,
        num_queued=driver.room.num_waiting,
        shed=driver.room.shed,
        num_transfers=driver.num_transfers,
        num_conversations=driver.conversations.num_live,
        wan_kv_bytes=driver.wan_kv_bytes,
    )
