"""What things cost in time. Pure arithmetic, shared by the policies and whoever plans with them."""

from __future__ import annotations

from pdd.core.units import Bytes, BytesPerSecond, Seconds


def predict_transfer_wait(*, missing: Bytes, backlog: Bytes, rate: BytesPerSecond) -> Seconds:
    """How long until ``missing`` bytes of one request are across a line that still owes ``backlog`` to everybody.

    ``backlog`` includes ``missing``. Lines are shared fairly, so the truth lies between the request's bytes alone and
    the whole backlog; this returns the fair-share estimate: others slow it down, but by no more than its own size each
    time, hence at most twice its own time unless the backlog is what it is waiting behind.
    """
    others = max(0, backlog - missing)
    return Seconds((missing + min(others, missing)) / rate)
