"""Beliefs around a pool, for tests of one part of the driver."""

from __future__ import annotations

from pdd.belief.beliefs import Beliefs
from pdd.belief.conversations import Conversations
from pdd.belief.links import Links
from pdd.belief.prefixes import Prefixes
from pdd.belief.traffic import FilterShare, OutputLengths
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.workers.pins import PinBoard
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.worker import Worker


def beliefs_around(pool: Pool, *, links: Links | None = None, block_bytes: Bytes = Bytes(1)) -> Beliefs[Worker]:
    """Nothing was seen yet, and no link is declared unless ``links`` say so."""
    return Beliefs(
        workers=pool.workers,
        links=links or Links({}, local_rate=BytesPerSecond(1e9), block_bytes=block_bytes),
        prefixes=Prefixes(pool.workers.books),
        conversations=Conversations(PinBoard(pool, DriverSettings(), LoopClock()), ttl=Seconds(600.0)),
        lengths=OutputLengths(),
        filter_share=FilterShare(0.0),
        block_bytes=block_bytes,
    )
