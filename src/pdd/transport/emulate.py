"""A wide-area line on one machine: forwards TCP connections at a shared rate, with delay, jitter, stalls and cuts.

Runs as a process of its own (``pdd wan``). Both directions have the full rate each, shared fairly between connections.
What it buffers is clamped to about the bandwidth-delay product, in its own memory and in its sockets, so that a sender
feels the line's rate at once and a cut loses what a real one would. The rate counts payload bytes. Opening a connection
takes one round trip of the line, as a real handshake does; half-closes and resets take one delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import assert_never

import msgspec

from pdd.core.errors import ConfigError, InvalidRequest
from pdd.core.topology import Address
from pdd.core.units import Bytes, Seconds, bytes_per_second
from pdd.transport.emulate_control import (
    MAX_LINE_BYTES,
    Change,
    Cut,
    CutKind,
    LinkCondition,
    LinkReply,
    LinkRequest,
    LinkState,
    Refusal,
    Restore,
    Show,
    Stall,
    decode_request,
)
from pdd.transport.emulate_lane import Lane, Pipe, ResetByPeer
from pdd.transport.shaping import BURST_S, LineClock, LineSettings

_logger = logging.getLogger(__name__)

_MIN_SOCKET_BUFFER = Bytes(16 * 1024)
_MAX_SOCKET_BUFFER = Bytes(1024 * 1024)
_BACKLOG = 128
_ACCEPT_RETRY_S = Seconds(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One endpoint that is reached across the link: connections to ``listen`` end at ``target`` in cluster
    ``toward``.
    """

    endpoint: str
    listen: Address
    target: Address
    toward: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """Everything one emulated link needs to know when it starts."""

    name: str
    clusters: tuple[str, str]
    settings: LineSettings
    forwards: tuple[Forward, ...]
    control: Address
    seed: int = 0
    """Of the jitter."""


async def run_link(plan: LinkPlan, *, on_ready: Callable[[], None]) -> None:
    """Emulates one link until cancelled; calls ``on_ready`` when every port accepts.

    Raises:
        ConfigError: a port can't be bound.
    """
    link = EmulatedLink(plan)
    with contextlib.ExitStack() as sockets:
        control = sockets.enter_context(_listener(plan.control, _MIN_SOCKET_BUFFER))
        buffer = _socket_buffer(plan.settings)
        listeners = [(each, sockets.enter_context(_listener(each.listen, buffer))) for each in plan.forwards]
        async with asyncio.TaskGroup() as group:
            link.start(group)
            group.create_task(_accept(control, group, link.serve_control))
            for forward, listener in listeners:
                group.create_task(_accept(listener, group, _Acceptor(link, forward)))
            on_ready()


class EmulatedLink:
    """One live link: two lanes on one clock, and the connections that cross them."""

    def __init__(self, plan: LinkPlan) -> None:
        self._plan = plan
        self._clock = LineClock(Seconds(asyncio.get_running_loop().time()))
        one, other = plan.clusters
        self._lanes = {
            other: Lane(plan.settings, self._clock, 2 * plan.seed),
            one: Lane(plan.settings, self._clock, 2 * plan.seed + 1),
        }
        self._condition = LinkCondition.UP
        self._stall_end: asyncio.TimerHandle | None = None
        self._connections: dict[asyncio.Task[None], tuple[socket.socket, ...]] = {}

    def start(self, group: asyncio.TaskGroup) -> None:
        for lane in self._lanes.values():
            group.create_task(lane.run())

    @property
    def settings(self) -> LineSettings:
        return next(iter(self._lanes.values())).settings

    def state(self) -> LinkState:
        one, other = self._plan.clusters
        settings = self.settings
        return LinkState(
            name=self._plan.name,
            condition=self._condition,
            rate_bits_per_s=settings.rate_bits_per_s,
            delay_s=settings.delay_s,
            jitter_s=settings.jitter_s,
            connections=len(self._connections),
            sent_bytes={
                f"{one}>{other}": self._lanes[other].sent_bytes,
                f"{other}>{one}": self._lanes[one].sent_bytes,
            },
        )

    def apply(self, request: LinkRequest) -> LinkState:
        """Does what was asked, at once; returns the state after it."""
        match request:
            case Show():
                return self.state()
            case Change():
                self._change(request)
            case Stall(seconds=seconds):
                self._stall(seconds)
            case Cut(kind=kind):
                self._cut(kind)
            case Restore():
                self._restore()
            case _:
                assert_never(request)
        state = self.state()
        _logger.info(
            "link_changed link=%s condition=%s rate_bits_per_s=%.0f delay_s=%g jitter_s=%g connections=%d",
            state.name,
            state.condition,
            state.rate_bits_per_s,
            state.delay_s,
            state.jitter_s,
            state.connections,
        )
        return state

    async def serve_connection(self, client: socket.socket, forward: Forward) -> None:
        """Carries one accepted connection to its end."""
        if self._condition is LinkCondition.DROPPED:
            _reset(client)
            return
        target = socket.socket(socket.AF_INET6 if ":" in forward.target.host else socket.AF_INET, socket.SOCK_STREAM)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = (client, target)
        closed_cleanly = False
        try:
            closed_cleanly = await self._carry(client, target, forward)
        finally:
            del self._connections[task]
            for end in (client, target):
                if closed_cleanly:
                    end.close()
                else:
                    _reset(end)

    async def serve_control(self, connection: socket.socket) -> None:
        """Answers control requests until the asker hangs up or sends a line that is too long."""
        with contextlib.suppress(OSError), connection:
            async for line in _lines(connection):
                reply = self._reply(line)
                await asyncio.get_running_loop().sock_sendall(connection, msgspec.json.encode(reply) + b"\n")

    def _reply(self, line: bytes) -> LinkReply:
        try:
            return self.apply(decode_request(line))
        except InvalidRequest as error:
            return Refusal(message=error.message)

    async def _carry(self, client: socket.socket, target: socket.socket, forward: Forward) -> bool:
        """True if both ends closed in good order."""
        one, other = self._plan.clusters
        there = self._lanes[forward.toward]
        back = self._lanes[one if forward.toward == other else other]
        for end in (client, target):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _size_buffers(end, _socket_buffer(self.settings))
        await there.cross()
        try:
            await asyncio.get_running_loop().sock_connect(target, (forward.target.host, forward.target.port))
        except OSError:
            await back.cross()
            return False
        clean = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(Pipe(back, target, client).carry())
                await back.cross()
                group.create_task(Pipe(there, client, target).carry())
        except* ResetByPeer:
            clean = False
        return clean

    def _change(self, request: Change) -> None:
        settings = self.settings
        if request.rate_bits_per_s is not None:
            settings = replace(settings, rate_bits_per_s=request.rate_bits_per_s)
        if request.delay_s is not None:
            settings = replace(settings, delay_s=request.delay_s)
        if request.jitter_s is not None:
            settings = replace(settings, jitter_s=request.jitter_s)
        for lane in self._lanes.values():
            lane.change(settings)
        for ends in self._connections.values():
            for end in ends:
                _size_buffers(end, _socket_buffer(settings))

    def _stall(self, seconds: Seconds) -> None:
        """A stall of a cut line changes nothing: it stays cut."""
        if self._condition in {LinkCondition.DROPPED, LinkCondition.FROZEN}:
            return
        self._pause(LinkCondition.STALLED)
        self._stall_end = asyncio.get_running_loop().call_later(seconds, self._restore)

    def _cut(self, kind: CutKind) -> None:
        if kind is CutKind.FREEZE:
            self._pause(LinkCondition.FROZEN)
            return
        self._restore()
        self._condition = LinkCondition.DROPPED
        for connection in tuple(self._connections):
            connection.cancel()

    def _pause(self, condition: LinkCondition) -> None:
        self._end_stall()
        self._condition = condition
        self._clock.pause(Seconds(asyncio.get_running_loop().time()))
        self._wake()

    def _restore(self) -> None:
        self._end_stall()
        self._condition = LinkCondition.UP
        self._clock.resume(Seconds(asyncio.get_running_loop().time()))
        self._wake()

    def _end_stall(self) -> None:
        if self._stall_end is not None:
            self._stall_end.cancel()
            self._stall_end = None

    def _wake(self) -> None:
        for lane in self._lanes.values():
            lane.wake()


class _Acceptor:
    """What to do with a connection that was accepted for one endpoint."""

    def __init__(self, link: EmulatedLink, forward: Forward) -> None:
        self._link = link
        self._forward = forward

    async def __call__(self, connection: socket.socket) -> None:
        try:
            await self._link.serve_connection(connection, self._forward)
        except Exception:
            # The outermost edge of one connection: whatever is wrong with it, the link lives on.
            _logger.exception("connection_failed endpoint=%s", self._forward.endpoint)


_Handler = Callable[[socket.socket], Coroutine[None, None, None]]


async def _accept(listener: socket.socket, group: asyncio.TaskGroup, handle: _Handler) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
        except OSError as error:
            _logger.warning("accept_failed reason=%s", error)  # out of descriptors: some will be free again
            await asyncio.sleep(_ACCEPT_RETRY_S)
            continue
        group.create_task(handle(connection))


def _listener(address: Address, buffer: Bytes) -> socket.socket:
    """A listening socket; connections that it accepts inherit its small buffers, from their handshake on."""
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _size_buffers(listener, buffer)
    try:
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"link: can't listen on {address}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _socket_buffer(settings: LineSettings) -> Bytes:
    size = int(bytes_per_second(settings.rate_bits_per_s) * BURST_S)
    return Bytes(min(_MAX_SOCKET_BUFFER, max(_MIN_SOCKET_BUFFER, size)))


def _size_buffers(end: socket.socket, size: Bytes) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def _reset(end: socket.socket) -> None:
    """Closes at once: the peer gets a reset, and nothing that is still buffered."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


async def _lines(connection: socket.socket) -> AsyncIterator[bytes]:
    """Yields lines, each at most ``MAX_LINE_BYTES`` long; a longer one ends it."""
    connection.setblocking(False)
    buffer = bytearray()
    while len(buffer) <= MAX_LINE_BYTES:
        line, newline, rest = bytes(buffer).partition(b"\n")
        if newline:
            buffer = bytearray(rest)
            yield line
            continue
        data = await asyncio.get_running_loop().sock_recv(connection, MAX_LINE_BYTES)
        if not data:
            return
        buffer += data
