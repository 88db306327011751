"""Beliefs around a pool, for tests of one part of the driver."""

from __future__ import annotations

from pdd.belief.beliefs import Beliefs
from pdd.belief.links import Links
from pdd.core.topology import PolicyTable
from pdd.core.units import Bytes, BytesPerSecond
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.workers.pins import PinBoard
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.worker import Worker


def beliefs_around(pool: Pool, *, links: Links | None = None, block_bytes: Bytes = Bytes(1)) -> Beliefs[Worker]:
    """Nothing was seen yet, and no link is declared unless ``links`` say so."""
    return Beliefs[Worker].begin(
        pool.workers,
        PinBoard(pool, DriverSettings(), LoopClock()),
        links or Links({}, local_rate=BytesPerSecond(1e9), block_bytes=block_bytes),
        block_bytes=block_bytes,
        settings=PolicyTable(),
    )
