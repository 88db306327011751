"""The yardstick for replication: one process sends a gigabyte over loopback TCP, another takes it. Nothing else.

``send PORT BYTES`` connects, then sends all of it for each line on stdin and prints how many seconds passed until the
receiver had it; ``receive BYTES`` prints the port that it listens on. Both work through one buffer of that size, as
nodes do.
"""

from __future__ import annotations

import socket
import sys
from time import perf_counter

CHUNK = 1024 * 1024
_SOCKET_BUFFER = 4 * 1024 * 1024


def receive(num_bytes: int) -> None:
    """Serves one sender; answers each gigabyte with one byte."""
    memory = memoryview(bytearray(num_bytes))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
        while _fill(connection, memory):
            connection.sendall(b"!")


def _fill(connection: socket.socket, memory: memoryview) -> bool:
    filled = 0
    while filled < len(memory):
        count = connection.recv_into(memory[filled : filled + CHUNK])
        if count == 0:
            return False
        filled += count
    return True


def send(port: int, num_bytes: int) -> None:
    """Sends whenever it is told to."""
    memory = memoryview(bytearray(b"\x5a" * num_bytes))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        for _ in sys.stdin:
            began = perf_counter()
            for start in range(0, num_bytes, CHUNK):
                connection.sendall(memory[start : start + CHUNK])
            connection.recv(1)
            print(perf_counter() - began, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["receive", size]:
            receive(int(size))
        case ["send", port, size]:
            send(int(port), int(size))
        case _:
            raise SystemExit(__doc__)
