"""The supervisor's end of a fork server: starts it when it is first needed, and again when it has died."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from pdd.cli.deploy.fork_server import MAX_MESSAGE_BYTES, Forked, ForkOrder
from pdd.cli.deploy.processes import AdoptedProcess, RoleProcess, adopt_orphans
from pdd.core.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """What takes long to import, and the environment that must be set before; the user's own settings win."""

    module: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPatience:
    """How long a fork server may take; one that takes longer hangs, and another is started at the next order."""

    first: Seconds = Seconds(600.0)
    """Until it has imported everything and forked its first program."""
    later: Seconds = Seconds(30.0)
    """To fork another, which takes milliseconds."""


@dataclass(slots=True, kw_only=True)
class _Running:
    process: asyncio.subprocess.Process
    orders: socket.socket
    has_forked: bool = False


class ForkServer:
    """Forks programs from one process that holds ``preload``. Its death harms nothing that runs."""

    def __init__(self, preload: Preload, log: Path, *, patience: ForkPatience = ForkPatience()) -> None:
        self._preload = preload
        self._log = log
        self._patience = patience
        self._turn = asyncio.Lock()  # answers carry no name
        self._running: _Running | None = None

    async def fork(self, arguments: tuple[str, ...], *, lifeline: int, ready: int, log: IO[bytes]) -> RoleProcess:
        """Like ``processes.execute``; ``arguments`` begin with ``sys.executable``. Waits until everything is imported.

        Raises:
            OSError: it can't be forked: the server can't import, has died just now, or hangs.
        """
        async with self._turn:
            running = await self._ensure_running()
            patience = self._patience.later if running.has_forked else self._patience.first
            try:
                async with asyncio.timeout(patience):
                    order = msgspec.json.encode(ForkOrder(arguments=arguments))
                    socket.send_fds(running.orders, [order], [lifeline, ready, log.fileno()])
                    answer = await asyncio.get_running_loop().sock_recv(running.orders, MAX_MESSAGE_BYTES)
            except ConnectionError:
                answer = b""
            except TimeoutError:
                await self.close()
                raise self._failure(f"has forked nothing within {patience:g} s") from None
            except BaseException:
                await self.close()
                raise
            if not answer:
                await self.close()
                raise self._failure("has died")
            running.has_forked = True
            return AdoptedProcess(msgspec.json.decode(answer, type=Forked).pid)

    def _failure(self, what: str) -> OSError:
        return OSError(f"the process that imports {self._preload.module} {what}; its log: {self._log}")

    async def _ensure_running(self) -> _Running:
        if self._running is None or self._running.process.returncode is not None:
            await self.close()
            adopt_orphans()
            self._running = await self._start()
        return self._running

    async def _start(self) -> _Running:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pdd.cli.deploy.fork_server"),
                *(f"--socket-fd={theirs.fileno()}", f"--import={self._preload.module}"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                env={**self._preload.environment, **os.environ},
                start_new_session=True,
            )
        return _Running(process=process, orders=ours)

    async def close(self) -> None:
        """Kills the server, which holds nothing. What it has forked goes on, and another ``fork`` starts it again."""
        running, self._running = self._running, None
        if running is not None:
            running.orders.close()
            with contextlib.suppress(ProcessLookupError):
                running.process.kill()
            await running.process.wait()


class ForkServers:
    """One for each preload. Deployments that run in one process may share them; whoever made them closes them."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._servers: dict[str, ForkServer] = {}

    def of(self, preload: Preload) -> ForkServer:
        """Starts nothing yet."""
        if preload.module not in self._servers:
            self._servers[preload.module] = ForkServer(preload, self._log)
        return self._servers[preload.module]

    async def close(self) -> None:
        """Closes them all."""
        for server in self._servers.values():
            await server.close()
