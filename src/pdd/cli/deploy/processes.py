"""A role's process, however it came to be: executed, or forked from one that holds its imports (``forking``).

Each is the first of a process group of its own. What belongs to that group ends with it: a vLLM engine is several
processes, of which the others would go on, and hold the port, when the first is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from asyncio import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from pdd.core.units import Seconds

_PR_SET_CHILD_SUBREAPER = 36
_GROUP_GONE_WITHIN = Seconds(5.0)
_TIDY_WITHIN = Seconds(4.0)
_POLL = Seconds(0.01)


class RoleProcess(Protocol):
    """What the supervisor needs of a process; ``asyncio.subprocess.Process`` is one."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""
        ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: int) -> None:
        """Raises ProcessLookupError when it has ended."""
        ...


async def execute(arguments: tuple[str, ...], *, lifeline: int, ready: int, log: IO[bytes]) -> RoleProcess:
    """Runs a program. Raises OSError: it can't be."""
    return await asyncio.create_subprocess_exec(
        *arguments,
        f"--lifeline-fd={lifeline}",
        f"--ready-fd={ready}",
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(lifeline, ready),
        # Its own group: a terminal's Ctrl-C must reach the supervisor only, which then stops all in order.
        start_new_session=True,
    )


class AdoptedProcess:
    """A process that this one did not start but is the parent of, since whoever was has left (``adopt_orphans``)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()

    async def wait(self) -> int:
        """Returns how it ended."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signal: int) -> None:
        """Until it is reaped its pid is nobody else's."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, signal)


def adopt_orphans() -> None:
    """From now on this process is the parent of all its descendants whose own parent ends. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


async def wait_with_group(process: RoleProcess) -> int:
    """Waits for the process, then kills what is left of its group, and waits for that; returns how the first ended."""
    code = await process.wait()
    tidied_at = asyncio.get_running_loop().time() + _TIDY_WITHIN
    with contextlib.suppress(TimeoutError, ProcessLookupError):
        async with asyncio.timeout(_GROUP_GONE_WITHIN):
            while True:
                os.killpg(process.pid, 0)  # fails once nobody is left
                if asyncio.get_running_loop().time() < tidied_at:
                    kill_group(process.pid)
                else:
                    os.killpg(process.pid, signal.SIGKILL)
                _reap_group(process.pid)
                await asyncio.sleep(_POLL)
    return code


def kill_group(group: int) -> None:
    """Kills all members of a process group, this process last, but Python's trackers of shared memory.

    Those end by themselves when the others have, and only they remove what the others have left in /dev/shm.
    """
    members = [pid for pid in _members(group) if not _is_tracker(pid)]
    for pid in sorted(members, key=lambda pid: pid == os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _members(group: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                yield pid


def _is_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended just now
        return False


def _reap_group(group: int) -> None:
    """Those of them whose parent this process has become."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
