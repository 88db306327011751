"""Server-sent events as bytes: written by the engine server, read from any engine. No I/O."""

from __future__ import annotations

from pdd.core.errors import RemoteProtocolError

DONE = b"[DONE]"
"""The payload that ends a stream in OpenAI's manner."""

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: readers skip it, but it shows that the line and the server live."""

MAX_EVENT_BYTES = 4 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


def encode_event(data: bytes) -> bytes:
    """One event. ``data`` holds no line break (JSON as encoded here never does)."""
    return b"data: " + data + b"\n\n"


class EventReader:
    """Cuts a byte stream, in pieces of any size, into the data of its events. Comments and other fields are skipped."""

    __slots__ = ("_buffer", "_data", "_held_bytes", "_started")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[bytes] = []
        self._held_bytes = 0
        self._started = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that ``piece`` completed, in order.

        Raises:
            RemoteProtocolError: an event is longer than ``MAX_EVENT_BYTES``.
        """
        self._buffer += piece
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        events = [event for line in lines if (event := self._take_line(line)) is not None]
        if len(self._buffer) + self._held_bytes > MAX_EVENT_BYTES:
            raise RemoteProtocolError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def _take_line(self, line: bytes) -> bytes | None:
        line = self._strip_start(line).removesuffix(b"\r")
        if line:
            self._keep_data(line)
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data)
        self._data.clear()
        self._held_bytes = 0
        return event

    def _keep_data(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._held_bytes += len(value)

    def _strip_start(self, line: bytes) -> bytes:
        if self._started:
            return line
        self._started = True
        return line.removeprefix(_BOM)
