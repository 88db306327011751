"""What things cost in time. Pure arithmetic, shared by the policies and whoever plans with them."""

from __future__ import annotations

from pdd.core.units import Bytes, BytesPerSecond, Seconds


def predict_transfer_wait(*, missing: Bytes, backlog: Bytes, rate: BytesPerSecond) -> Seconds:
    """How long until ``missing`` bytes of one request are across a line that still owes ``backlog`` to everybody.

    ``rate`` is above zero: of a line that stands still nothing can be predicted.

    ``backlog`` may or may not include ``missing`` yet. Lines are shared fairly, so the truth lies between the request's bytes
    alone and the whole backlog. This counts all others as one equal sharer: they slow the request down by their backlog, but
    by no more than its own size, hence to at most twice its own time.
    """
    others = max(0, backlog - missing)
    return Seconds((missing + min(others, missing)) / rate)
