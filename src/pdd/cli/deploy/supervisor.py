"""Runs a deployment's roles as child processes: starts them in stages, starts dead ones again, leaves no orphan.

A role says through a pipe that it is ready, or that its configuration is wrong; then everything stops, unless it was
ready before. Stopping is cancelling: every role gets SIGTERM, then SIGKILL. If the supervisor itself is killed, each
role notices at its lifeline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO

import msgspec

from pdd.cli.deploy.forking import ForkServers, Preload
from pdd.cli.deploy.lifeline import RoleReport
from pdd.cli.deploy.processes import RoleProcess, execute, wait_with_group
from pdd.cli.deploy.state import Phase, RoleKind, RoleStatus, RunDirectory, RunStatus
from pdd.core.errors import ConfigError
from pdd.core.units import Seconds

_logger = logging.getLogger(__name__)
FORK_SERVER_LOG = "fork-server"
"""Names the log of the process from which roles are forked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCommand:
    """One role to run. Roles of a later ``stage`` are started when all of the earlier ones have been ready.

    ``arguments`` is the program and its arguments, to which the descriptors of lifeline and ready pipe are added. With
    a ``preload`` the program is not executed but forked from a process that holds those imports.
    """

    name: str
    kind: RoleKind
    stage: int
    arguments: tuple[str, ...]
    preload: Preload | None = None
    ready_within: Seconds | None = None
    """In place of ``Timing.ready_within``, for what takes longer than other roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How patient the supervisor is."""

    first_pause: Seconds = Seconds(0.25)
    """Before a dead role is started again; doubled each time,"""
    longest_pause: Seconds = Seconds(8.0)
    """up to this,"""
    stable_after: Seconds = Seconds(10.0)
    """and back to the first once the role has lived so long."""
    ready_within: Seconds = Seconds(120.0)
    """A role that isn't ready by then is killed, and started again."""
    stop_grace: Seconds = Seconds(5.0)
    """Between SIGTERM and SIGKILL."""


class Backoff:
    """How long to wait before starting a role again."""

    __slots__ = ("_next", "_timing")

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._next = float(timing.first_pause)

    def after_exit(self, lived: Seconds) -> Seconds:
        """The pause after a process that ``lived`` so long."""
        if lived >= self._timing.stable_after:
            self._next = float(self._timing.first_pause)
        pause = Seconds(self._next)
        self._next = min(2 * self._next, self._timing.longest_pause)
        return pause


@dataclass(slots=True, kw_only=True)
class _Role:
    command: RoleCommand
    status: RoleStatus
    was_ready: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    """A running process and the end of the pipe on which it reports."""

    process: RoleProcess
    reports: IO[bytes]


class Supervisor:
    """Runs the roles of one deployment; ``on_change`` hears of every change of a role's status.

    What is forked comes from ``forks``, which somebody else closes; by default from fork servers of its own.
    """

    def __init__(
        self,
        commands: tuple[RoleCommand, ...],
        run: RunDirectory,
        *,
        on_change: Callable[[RoleStatus], None],
        timing: Timing = Timing(),
        forks: ForkServers | None = None,
    ) -> None:
        self._run = run
        self._on_change = on_change
        self._timing = timing
        self._roles = [_Role(command=command, status=self._initial(command)) for command in commands]
        self._lifeline, self._write_end = os.pipe()
        self._own_forks = ForkServers(run.log_file(FORK_SERVER_LOG))
        self._forks = forks or self._own_forks

    @property
    def statuses(self) -> tuple[RoleStatus, ...]:
        return tuple(role.status for role in self._roles)

    async def wait_until_ready(self) -> None:
        """Returns when every role has been ready once."""
        for role in self._roles:
            await role.was_ready.wait()

    async def run(self) -> None:
        """Runs everything until cancelled.

        Raises:
            ConfigError: a role found its configuration wrong; all others have been stopped.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for stage in self._stages():
                    for role in stage:
                        group.create_task(self._supervise(role))
                    for role in stage:
                        await role.was_ready.wait()
        except* ConfigError as errors:
            raise _first(errors) from None
        finally:
            os.close(self._lifeline)
            os.close(self._write_end)
            await self._own_forks.close()

    def _stages(self) -> Iterator[list[_Role]]:
        for stage in sorted({role.command.stage for role in self._roles}):
            yield [role for role in self._roles if role.command.stage == stage]

    async def _supervise(self, role: _Role) -> None:
        backoff = Backoff(self._timing)
        loop = asyncio.get_running_loop()
        try:
            while True:
                started = loop.time()
                reason = await self._live_once(role)
                pause = backoff.after_exit(Seconds(loop.time() - started))
                _logger.warning("role_died role=%s pause_s=%g reason=%s", role.command.name, pause, reason)
                restarts = role.status.restarts + 1
                self._set(role, phase=Phase.RESTARTING, pid=None, last_exit=reason, restarts=restarts)
                await asyncio.sleep(pause)
        except ConfigError:
            self._set(role, phase=Phase.REFUSED, pid=None)
            raise
        except asyncio.CancelledError:
            self._set(role, phase=Phase.STOPPED, pid=None)
            raise

    async def _live_once(self, role: _Role) -> str:
        """Runs the role's process to its end; returns how it ended. Cancelled, it stops the process first."""
        try:
            child = await self._spawn(role.command)
        except OSError as error:
            return f"can't be started: {error}"
        try:
            return await self._watch(role, child)
        finally:
            child.reports.close()
            await self._stop(child.process)

    async def _watch(self, role: _Role, child: _Child) -> str:
        started = asyncio.get_running_loop().time()
        self._set(role, phase=Phase.STARTING, pid=child.process.pid)
        patience = role.command.ready_within or self._timing.ready_within
        try:
            async with asyncio.timeout(patience), asyncio.TaskGroup() as group:
                # What a dead process has left of its group would hold the other end of the pipe.
                sweeper = group.create_task(wait_with_group(child.process))
                report = await _read_report(child.reports)
                sweeper.cancel()
        except TimeoutError:
            return f"not ready within {patience:g} s"
        self._heed(role, report, Seconds(asyncio.get_running_loop().time() - started))
        exit_code = await wait_with_group(child.process)
        return _describe_exit(exit_code) if report.config_error is None else report.config_error

    def _heed(self, role: _Role, report: RoleReport, took: Seconds) -> None:
        if report.config_error is not None and not role.was_ready.is_set():
            raise ConfigError(f"{role.command.kind.value} {role.command.name!r}: {report.config_error}")
        if report.ready:
            self._set(role, phase=Phase.READY, ready_after_s=round(took, 3))
            role.was_ready.set()

    async def _spawn(self, command: RoleCommand) -> _Child:
        reports, ready = os.pipe()
        start = execute if command.preload is None else self._forks.of(command.preload).fork
        try:
            with self._run.log_file(command.name).open("ab") as log:
                process = await start(command.arguments, lifeline=self._lifeline, ready=ready, log=log)
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(ready)
        return _Child(process=process, reports=os.fdopen(reports, "rb", buffering=0))

    async def _stop(self, process: RoleProcess) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._timing.stop_grace):
                await wait_with_group(process)
        except (TimeoutError, asyncio.CancelledError):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await wait_with_group(process)

    def _initial(self, command: RoleCommand) -> RoleStatus:
        return RoleStatus(name=command.name, kind=command.kind, log=str(self._run.log_file(command.name)))

    def _set(self, role: _Role, **changes: object) -> None:
        role.status = msgspec.structs.replace(role.status, **changes)
        status = RunStatus(topology=self._run.path.name, pid=os.getpid(), roles=self.statuses)
        try:
            self._run.write_status(status)
        except OSError as error:
            _logger.warning("status_not_written reason=%s", error)  # a full disk is no reason to stop serving
        self._on_change(role.status)


async def _read_report(pipe: IO[bytes]) -> RoleReport:
    """The role's one line; an empty report if it died without one."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * 1024)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        line = await reader.readline()
    finally:
        transport.close()
    try:
        return msgspec.json.decode(line, type=RoleReport) if line else RoleReport()
    except (msgspec.DecodeError, ValueError):
        return RoleReport()


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    return f"killed by {signal.Signals(-code).name}"


def _first(errors: BaseExceptionGroup[ConfigError]) -> ConfigError:
    for error in errors.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an exception group is never empty")
