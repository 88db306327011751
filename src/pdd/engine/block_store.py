"""What an engine needs of its local KV node: the seam between engines and ``kvnode.local``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from pdd.core.blocks import BlockHash


class HeldBlocks(Protocol):
    """A lease: its ``slots`` hold the first of the blocks asked for, in order, and stay as they are until it is
    released.
    """

    @property
    def slots(self) -> Sequence[int]: ...


class OpenSlot(Protocol):
    """A slot to be filled with the block named ``hash``; invisible to others before it is committed."""

    @property
    def hash(self) -> BlockHash: ...

    @property
    def slot(self) -> int: ...


_LeaseT = TypeVar("_LeaseT", bound=HeldBlocks)
_SlotT = TypeVar("_SlotT", bound=OpenSlot)


class BlockStore(Protocol[_LeaseT, _SlotT]):
    """Implemented by ``kvnode.local.LocalNode``. Every call is short.

    Any of them may raise NodeFailed; then the node is gone and the store is closed and dropped.
    """

    def lease(self, hashes: Sequence[BlockHash], /) -> _LeaseT:
        """Leases the longest prefix of ``hashes`` that is held."""
        ...

    def release(self, lease: _LeaseT, /) -> None: ...

    def begin_write(self, hashes: Sequence[BlockHash], /) -> tuple[_SlotT, ...]:
        """Slots for those of ``hashes`` that are neither held nor being written; fewer, or CapacityExhausted, when
        full.
        """
        ...

    def commit(self, slots: Sequence[_SlotT], /) -> None: ...

    def abort(self, slots: Sequence[_SlotT], /) -> None: ...

    def view(self, slot: int, /) -> memoryview:
        """The slot's bytes, ``block_bytes`` long, in the mapped arena."""
        ...

    def is_alive(self) -> bool:
        """False once the connection has broken, as far as this side can tell without asking the node: in
        microseconds.
        """
        ...

    def close(self) -> None: ...


ConnectStore = Callable[[], BlockStore[Any, Any]]
"""Opens a store. Raises NodeFailed when the node is not up, Incompatible when it never will do."""
