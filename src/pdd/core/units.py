"""Units as types, so that a signature says what a number measures."""

from typing import NewType

Seconds = NewType("Seconds", float)
Bytes = NewType("Bytes", int)
BitsPerSecond = NewType("BitsPerSecond", float)
BytesPerSecond = NewType("BytesPerSecond", float)

BITS_PER_BYTE = 8


def transfer_time(size: Bytes, rate: BytesPerSecond) -> Seconds:
    """How long ``size`` takes at ``rate``, without any delay of the line itself."""
    return Seconds(size / rate)


def bytes_per_second(rate: BitsPerSecond) -> BytesPerSecond:
    """Lines are sold in bits, payloads are counted in bytes."""
    return BytesPerSecond(rate / BITS_PER_BYTE)
