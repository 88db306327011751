"""What strangers can cause at will is logged, but not without bound."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest

from pdd.core.units import Seconds
from pdd.transport.flood import LogThrottle, LoopErrorLog


def test_lines_over_the_rate_are_left_out_and_counted():
    throttle = LogThrottle(interval=Seconds(10.0), max_lines=2)
    admitted = [throttle.admit(Seconds(now)) for now in (0.0, 1.0, 2.0, 9.9, 10.0, 11.0)]
    assert admitted == [0, 0, None, None, 2, 0]


def test_running_out_of_descriptors_is_one_line_and_no_traceback(caplog: pytest.LogCaptureFixture):
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(LoopErrorLog())
    error = OSError(errno.EMFILE, "Too many open files")
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": error})
    loop.close()
    assert [record.getMessage() for record in caplog.records] == [
        "accept_failed reason='Too many open files' suppressed=0"
    ]
    assert caplog.records[0].exc_info is None


def test_other_failures_of_a_loop_are_reported_in_full(caplog: pytest.LogCaptureFixture):
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(LoopErrorLog())
    loop.call_exception_handler({"message": "a callback failed", "exception": OSError(errno.EPIPE, "broken")})
    loop.close()
    assert "a callback failed" in caplog.text
