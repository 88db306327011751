"""What things cost in time. Pure arithmetic, shared by the policies and whoever plans with them."""

from __future__ import annotations

from pdd.core.units import Bytes, BytesPerSecond, Seconds

QUIET_AFTER = Seconds(1.0)
"""So long without any block says something about the rate: well above a round trip and the time of a block."""


def predict_transfer_wait(*, missing: Bytes, backlog: Bytes, num_others: int, rate: BytesPerSecond) -> Seconds:
    """How long until ``missing`` bytes of one request are across a line that it shares with ``num_others`` transfers.

    ``rate`` is above zero: of a line that stands still nothing can be predicted. ``backlog`` is what the line owes to
    everybody, with or without ``missing``.

    Lines are shared fairly, so each of the others gets no more across than this one while it lasts: they slow it down
    by what they still have, but by no more than its own size each.
    """
    others = max(0, backlog - missing)
    return Seconds((missing + min(others, num_others * missing)) / rate)
