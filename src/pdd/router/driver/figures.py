"""What a router shows of itself: for metrics and health, live and simulated."""

from __future__ import annotations

from pdd.router.driver.service import Driver
from pdd.telemetry.figures import RouterReading


def read_router(driver: Driver) -> RouterReading:
    """The driver's state now. Asks nobody."""
    beliefs, now = driver.beliefs, driver.now
    return RouterReading(
        nodes=tuple(beliefs.workers.books.values()),
        workers=beliefs.workers.status(now),
        links=beliefs.links.readings(now),
        num_served=driver.room.num_running,
        num_queued=driver.room.num_waiting,
        shed=driver.room.shed,
        num_transfers=driver.num_transfers,
        num_conversations=beliefs.conversations.num_live(now),
        wan_kv_bytes=driver.wan_kv_bytes,
    )
