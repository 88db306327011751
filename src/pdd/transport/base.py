"""What a line to a peer can do, whatever it is made of, and how it ends."""

from __future__ import annotations

from typing import ClassVar, Protocol

from pdd.core.errors import PddError
from pdd.protocol.frames import BlockHead, FrameHeader


class ConnectionLost(PddError):
    """The other end hung up, could not be reached, or the line broke. Callers translate it to who was lost."""

    retryable: ClassVar[bool] = True


class FramedConnection(Protocol):
    """A bidirectional stream of frames.

    One task receives: a header first, then exactly what it announces. Any number of tasks send; frames never mix. All
    methods raise ConnectionLost. A cancelled call leaves the stream in mid-frame: close it then.
    """

    async def receive_header(self) -> FrameHeader:
        """Raises RemoteProtocolError or Incompatible: the bytes are no frame that may come here."""
        ...

    async def receive_body(self, num_bytes: int) -> bytes:
        """A control frame's whole body."""
        ...

    async def receive_block_head(self) -> BlockHead: ...

    async def receive_into(self, payload: memoryview) -> None:
        """Fills ``payload`` straight from the line."""
        ...

    async def send(self, frame: bytes) -> None:
        """Sends one whole frame."""
        ...

    async def send_block(self, head: bytes, payload: memoryview) -> None:
        """Sends one block frame; ``payload`` must not change until this returns."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...
