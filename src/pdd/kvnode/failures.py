"""From the kinds of failure that nodes tell of to the errors that their clients raise."""

from __future__ import annotations

from typing import assert_never

from pdd.core.errors import BlocksLost, CapacityExhausted, ContextTooLong, Incompatible, NodeFailed, PddError
from pdd.index.blocks import RETRY_AFTER
from pdd.protocol.peer import ErrorKind


def error_of(kind: ErrorKind, reason: str) -> PddError:
    """A new error for each caller: one that is raised in many places would collect all their tracebacks."""
    match kind:
        case ErrorKind.NODE_FAILED:
            return NodeFailed(reason)
        case ErrorKind.INCOMPATIBLE:
            return Incompatible(reason)
        case ErrorKind.CAPACITY_EXHAUSTED:
            return CapacityExhausted(reason, retry_after_s=RETRY_AFTER)
        case ErrorKind.CONTEXT_TOO_LONG:
            return ContextTooLong(reason, code="context_length_exceeded")
        case ErrorKind.BLOCKS_LOST:
            return BlocksLost(reason)
        case _:
            assert_never(kind)
