"""What is said about a source's orders: what its ``SourceTransfer`` wants done, and where each of them stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from pdd.core.blocks import BlockHash
from pdd.core.units import Bytes
from pdd.protocol.peer import ErrorKind, FromSource

OrderKey = NewType("OrderKey", str)
"""An order, unique in this node: its router's connection and its id there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send this message to the target."""

    message: FromSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The target wants this held block: keep it from being evicted, if that is possible."""

    hash: BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """The block need not be kept any more."""

    hash: BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderChanged:
    """The order's standing changed, to this."""

    order: OrderKey
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFailure:
    """Why an order ended without success."""

    error: ErrorKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEnded:
    """The order is gone; ``failure`` says why, None means that every block is at the target."""

    order: OrderKey
    standing: Standing
    failure: OrderFailure | None


Command = Send | Keep | LetGo | OrderChanged | OrderEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where an order stands. ``num_missing`` is None until the target has answered for every block."""

    num_missing: int | None
    num_acknowledged: int
    sent_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockToSend:
    """The next block for the line, and the order whose turn it was."""

    hash: BlockHash
    order: OrderKey
