"""Which evictable block goes next: the least recently used of those that nobody pinned, then those of the oldest pin.

A block that several pins name counts as one of the newest of them. Callers add a chain from its end to its start, so
that deeper blocks go before their parents; a block that is named but not held costs a name and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NewType

from pdd.core.blocks import BlockHash

Owner = NewType("Owner", str)
"""Who holds leases, writes, a reservation or a pin: a connection, a watch or an order.

Everything of an owner ends with it.
"""

_SPARE_AGES = 64
_ABSENT = object()


@dataclass(slots=True, eq=False)
class _Pin:
    age: int
    hashes: tuple[BlockHash, ...]
    evictable: OrderedDict[BlockHash, None] = field(default_factory=OrderedDict[BlockHash, None])
    """Those of its blocks that may go and that no newer pin names."""
    is_listed: bool = False


class EvictionOrder:
    """Evictable blocks and pins."""

    def __init__(self) -> None:
        self._unpinned: OrderedDict[BlockHash, None] = OrderedDict()
        self._num_pinned = 0
        self._pins: dict[Owner, _Pin] = {}
        self._pins_of: dict[BlockHash, dict[Owner, _Pin]] = {}
        """From the oldest pin to the newest."""
        self._ages: list[tuple[int, _Pin]] = []
        """A heap of pins with evictable blocks; some may have none any more, or be over."""
        self._num_pins_ever = 0
        self.num_named = 0
        """Blocks that pins name, each as often as it is named."""

    def __len__(self) -> int:
        return len(self._unpinned) + self._num_pinned

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._shelf(block)

    def is_pinned(self, block: BlockHash) -> bool:
        return block in self._pins_of

    def add(self, block: BlockHash) -> None:
        """The block may go; the last of its kind to do so."""
        pins = self._pins_of.get(block)
        if pins is None:
            self._unpinned[block] = None
        else:
            self._add_pinned(next(reversed(pins.values())), block)

    def discard(self, block: BlockHash) -> bool:
        """The block must stay. False: it could not have gone before."""
        pins = self._pins_of.get(block)
        if pins is None:
            return self._unpinned.pop(block, _ABSENT) is None
        was_there = next(reversed(pins.values())).evictable.pop(block, _ABSENT) is None
        self._num_pinned -= was_there
        return was_there

    def touch(self, block: BlockHash) -> None:
        """The block was used: it becomes the last of its kind to go, if it may go at all."""
        shelf = self._shelf(block)
        if block in shelf:
            shelf.move_to_end(block)

    def pop(self) -> BlockHash:
        """Takes out the block that goes now. Raises IndexError: none may."""
        if self._unpinned:
            return self._unpinned.popitem(last=False)[0]
        while True:
            _, pin = self._ages[0]
            if pin.evictable:
                self._num_pinned -= 1
                return pin.evictable.popitem(last=False)[0]
            heappop(self._ages)
            pin.is_listed = False

    def _shelf(self, block: BlockHash) -> OrderedDict[BlockHash, None]:
        pins = self._pins_of.get(block)
        return self._unpinned if pins is None else next(reversed(pins.values())).evictable

    def _add_pinned(self, pin: _Pin, block: BlockHash) -> None:
        pin.evictable[block] = None
        self._num_pinned += 1
        if not pin.is_listed:
            pin.is_listed = True
            heappush(self._ages, (pin.age, pin))

    # --- pins

    def pin(self, owner: Owner, hashes: Sequence[BlockHash]) -> None:
        """The pin, the newest of all, of an owner that has none. ``hashes`` are all different."""
        self._num_pins_ever += 1
        pin = self._pins[owner] = _Pin(self._num_pins_ever, tuple(hashes))
        self.num_named += len(pin.hashes)
        for block in reversed(pin.hashes):
            is_evictable = self.discard(block)
            self._pins_of.setdefault(block, {})[owner] = pin
            if is_evictable:
                self._add_pinned(pin, block)

    def unpin(self, owner: Owner) -> tuple[BlockHash, ...]:
        """Ends the owner's pin: nobody is to come back for its blocks, so they are the next to go.

        Returns what it named.
        """
        pin = self._pins.pop(owner, None)
        if pin is None:
            return ()
        self.num_named -= len(pin.hashes)
        for block in pin.hashes:
            is_evictable = self.discard(block)
            pins = self._pins_of[block]
            del pins[owner]
            if not pins:
                del self._pins_of[block]
            if is_evictable:
                self.add(block)
                self._shelf(block).move_to_end(block, last=bool(pins))
        self._forget_ended_pins()
        return pin.hashes

    def _forget_ended_pins(self) -> None:
        if len(self._ages) > len(self._pins) + _SPARE_AGES:
            self._ages = [(age, pin) for age, pin in self._ages if self._is_worth_listing(pin)]
            heapify(self._ages)

    def _is_worth_listing(self, pin: _Pin) -> bool:
        pin.is_listed = bool(pin.evictable)
        return pin.is_listed

    def oldest_pin(self) -> Owner:
        return next(iter(self._pins))

    def check_integrity(self) -> None:
        """Recomputes the books from the pins and asserts that they agree. For tests."""
        named = {block for pin in self._pins.values() for block in pin.hashes}
        assert set(self._pins_of) == named
        assert not named & set(self._unpinned)
        assert self.num_named == sum(len(pin.hashes) for pin in self._pins.values())
        assert self._num_pinned == sum(len(pin.evictable) for pin in self._pins.values())
        for block, pins in self._pins_of.items():
            ages = [pin.age for pin in pins.values()]
            assert ages == sorted(ages)
            holders = [pin.age for pin in self._pins.values() if block in pin.evictable]
            assert holders in ([], [ages[-1]])
        listed = [pin for _, pin in self._ages]
        assert len(listed) <= len(self._pins) + _SPARE_AGES, "pins that are over were kept in mind"
        assert all(pin.is_listed and pin in listed for pin in self._pins.values() if pin.evictable)
