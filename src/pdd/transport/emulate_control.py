"""How a live emulated link is asked and told: one JSON object a line, each answered by one, on a loopback port.

Requests: ``{"type": "show"}``, ``{"type": "set", "rate_bits_per_s": 2e7, "delay_s": 0.015, "jitter_s": 0}`` (what is
left out stays), ``{"type": "stall", "seconds": 5}``, ``{"type": "cut", "kind": "drop"}`` or ``"freeze"``, ``{"type":
"restore"}``. Answers: the link's state after the request, or ``{"type": "refusal", "message": ...}``.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from math import isfinite

import msgspec

from pdd.core.errors import InvalidRequest, RemoteProtocolError, Unavailable
from pdd.core.topology import Address
from pdd.core.units import BitsPerSecond, Seconds

MAX_LINE_BYTES = 4096
MAX_DELAY_S = Seconds(60.0)
MAX_STALL_S = Seconds(3600.0)


class CutKind(StrEnum):
    """What happens to connections when the line is cut."""

    DROP = "drop"
    """They are reset, and so is every new one."""
    FREEZE = "freeze"
    """They stay open, but nothing moves: what a dead router on the way looks like."""


class LinkCondition(StrEnum):
    """What a link does now."""

    UP = "up"
    STALLED = "stalled"
    DROPPED = "dropped"
    FROZEN = "frozen"


class Show(msgspec.Struct, frozen=True, kw_only=True, tag="show", forbid_unknown_fields=True):
    """Changes nothing."""


class Change(msgspec.Struct, frozen=True, kw_only=True, tag="set", forbid_unknown_fields=True):
    """New settings, in both directions; None keeps what is."""

    rate_bits_per_s: BitsPerSecond | None = None
    delay_s: Seconds | None = None
    jitter_s: Seconds | None = None


class Stall(msgspec.Struct, frozen=True, kw_only=True, tag="stall", forbid_unknown_fields=True):
    """Nothing moves for so long, then everything goes on."""

    seconds: Seconds


class Cut(msgspec.Struct, frozen=True, kw_only=True, tag="cut", forbid_unknown_fields=True):
    """Cuts the line until it is restored."""

    kind: CutKind


class Restore(msgspec.Struct, frozen=True, kw_only=True, tag="restore", forbid_unknown_fields=True):
    """Ends a cut or a stall."""


LinkRequest = Show | Change | Stall | Cut | Restore


class LinkState(msgspec.Struct, frozen=True, kw_only=True, tag="state", forbid_unknown_fields=True):
    """A link's settings and books. ``sent_bytes`` is payload that went onto the line, by direction (``"A>B"``)."""

    name: str
    condition: LinkCondition
    rate_bits_per_s: BitsPerSecond
    delay_s: Seconds
    jitter_s: Seconds
    connections: int
    sent_bytes: dict[str, int]


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal", forbid_unknown_fields=True):
    """The request was not understood or is out of range; nothing changed."""

    message: str


LinkReply = LinkState | Refusal


def decode_request(line: bytes) -> LinkRequest:
    """Reads and checks one request.

    Raises:
        InvalidRequest: it is no request, or a number in it is out of range.
    """
    try:
        request = msgspec.json.decode(line, type=LinkRequest)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"not a link request: {error}") from error
    check_request(request)
    return request


def check_request(request: LinkRequest) -> None:
    """Raises InvalidRequest if a number in ``request`` is out of range."""
    match request:
        case Change(rate_bits_per_s=rate, delay_s=delay, jitter_s=jitter):
            if rate is not None and not (isfinite(rate) and rate > 0):
                raise InvalidRequest(f"rate is {rate} bit/s; it must be more than 0", param="rate_bits_per_s")
            _check_range("delay_s", delay, MAX_DELAY_S)
            _check_range("jitter_s", jitter, MAX_DELAY_S)
        case Stall(seconds=seconds):
            _check_range("seconds", seconds, MAX_STALL_S)
        case Show() | Cut() | Restore():
            pass


def _check_range(name: str, value: float | None, limit: float) -> None:
    if value is not None and not 0 <= value <= limit:
        raise InvalidRequest(f"{name} is {value:g}; it must be from 0 to {limit:g} seconds", param=name)


async def ask_link(control: Address, request: LinkRequest, *, timeout: Seconds = Seconds(2.0)) -> LinkState:
    """Sends one request to a live link and returns its state afterwards.

    Raises:
        InvalidRequest: the link refused it.
        Unavailable: nothing answers at ``control`` within ``timeout``.
    """
    try:
        async with asyncio.timeout(timeout):
            line = await _exchange(control, msgspec.json.encode(request) + b"\n")
    except (OSError, TimeoutError, ValueError) as error:
        raise Unavailable(f"the link's emulator does not answer at {control}", retry_after_s=Seconds(1.0)) from error
    try:
        reply = msgspec.json.decode(line, type=LinkReply)
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"what answers at {control} is no link emulator") from error
    if isinstance(reply, Refusal):
        raise InvalidRequest(reply.message)
    return reply


async def _exchange(control: Address, line: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(control.host, control.port, limit=MAX_LINE_BYTES)
    try:
        writer.write(line)
        return await reader.readline()
    finally:
        writer.close()
