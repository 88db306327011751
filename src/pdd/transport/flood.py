"""Logging what strangers can cause at will, without letting them fill the disk."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

from pdd.core.units import Seconds

_logger = logging.getLogger(__name__)
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
LOG_INTERVAL = Seconds(10.0)
LINES_PER_INTERVAL = 20


class LogThrottle:
    """Lets ``max_lines`` of one kind pass in each ``interval``, and counts the rest."""

    def __init__(self, *, interval: Seconds = LOG_INTERVAL, max_lines: int = LINES_PER_INTERVAL) -> None:
        self._interval = interval
        self._max_lines = max_lines
        self._since: Seconds | None = None
        self._num_passed = 0
        self._num_suppressed = 0

    def admit(self, now: Seconds) -> int | None:
        """How many lines were left out before this one; None: leave this one out too."""
        if self._since is None or now - self._since >= self._interval:
            self._since, self._num_passed = now, 0
        if self._num_passed >= self._max_lines:
            self._num_suppressed += 1
            return None
        self._num_passed += 1
        suppressed, self._num_suppressed = self._num_suppressed, 0
        return suppressed


class LoopErrorLog:
    """An event loop's exception handler: out of descriptors, a loop reports every attempt to accept, with a traceback.

    One line an interval is enough to say so. All else goes where it goes by default.
    """

    def __init__(self, *, interval: Seconds = LOG_INTERVAL) -> None:
        self._throttle = LogThrottle(interval=interval, max_lines=1)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _OUT_OF_RESOURCES:
            loop.default_exception_handler(context)
            return
        suppressed = self._throttle.admit(Seconds(loop.time()))
        if suppressed is not None:
            _logger.warning("accept_failed reason=%r suppressed=%d", error.strerror, suppressed)
