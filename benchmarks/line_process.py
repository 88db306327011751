"""The process that is the line between two network namespaces: every packet of one end comes out at the other.

Started as root with ``NAMESPACE ADDRESS NAMESPACE ADDRESS RATE_BITS_PER_S DELAY_S``. Whatever runs in the two
namespaces has nothing else between them, so any software, unchanged and unknowing, is measured on the same line.
Packets are put on it one after the other at the rate, headers included, wait for the delay, and are never lost: what
doesn't fit waits. Prints ``ready``; then answers each line on stdin with how many bytes each end has sent.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import struct
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from time import monotonic

_DEVICE = "line"
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_QUEUE_PACKETS = 4096
"""Of the kernel, in front of this process."""
_READS_AT_ONCE = 64
_MAX_PACKET = 65536


@dataclass(slots=True, kw_only=True)
class _End:
    """One namespace's device, and what was sent into it and has yet to come out at the other."""

    device: int
    sent_bytes: int = 0
    free_at: float = 0.0
    """When the last packet accepted so far will have been put on the line."""
    under_way: deque[tuple[float, bytes]] = field(default_factory=deque[tuple[float, bytes]])


def _open_end(namespace: str, address: str) -> _End:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22s", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI, b""))
    _ip("link", "set", _DEVICE, "netns", namespace)
    _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", _DEVICE)
    _ip("-n", namespace, "link", "set", _DEVICE, "txqueuelen", str(_QUEUE_PACKETS), "up")
    _ip("-n", namespace, "link", "set", "lo", "up")
    return _End(device=device)


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True)


def _accept(end: _End, rate: float, delay: float) -> None:
    for _ in range(_READS_AT_ONCE):
        try:
            packet = os.read(end.device, _MAX_PACKET)
        except BlockingIOError:
            return
        end.sent_bytes += len(packet)
        end.free_at = max(end.free_at, monotonic()) + len(packet) * 8 / rate
        end.under_way.append((end.free_at + delay, packet))


def _deliver(end: _End, other: _End) -> None:
    while end.under_way and end.under_way[0][0] <= monotonic():
        os.write(other.device, end.under_way.popleft()[1])


def _answer(ends: tuple[_End, _End]) -> bool:
    """False at the end of stdin."""
    if not sys.stdin.readline():
        return False
    print(json.dumps([end.sent_bytes for end in ends]), flush=True)
    return True


def main() -> None:
    one, its_address, other, its_other_address, rate, delay = sys.argv[1:]
    ends = _open_end(one, its_address), _open_end(other, its_other_address)
    there, back = ends
    selector = selectors.DefaultSelector()
    for end in ends:
        selector.register(end.device, selectors.EVENT_READ, end)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        due = min((end.under_way[0][0] for end in ends if end.under_way), default=None)
        for key, _ in selector.select(None if due is None else max(0.0, due - monotonic())):
            if key.data is not None:
                _accept(key.data, float(rate), float(delay))
            elif not _answer(ends):
                return
        _deliver(there, back)
        _deliver(back, there)


if __name__ == "__main__":
    main()
