"""What ties a role's process to its supervisor: a pipe that says the supervisor died, and one that says the role is
ready.
"""

from __future__ import annotations

import os
import threading
from typing import IO

import msgspec

from pdd.cli.deploy.processes import kill_group
from pdd.core.errors import ConfigError, PddError

ORPHAN_EXIT_CODE = 3


class RoleReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one line that a role writes: it is ready, or its configuration is wrong."""

    ready: bool = False
    config_error: str | None = None


def watch_lifeline(descriptor: int) -> None:
    """Ends this process at once when the other end of the pipe closes, which nothing can prevent: no orphan survives.

    A process that leads a group ends with all of it: what it has started itself has nobody else to end it.

    Raises:
        ConfigError: ``descriptor`` isn't open.
    """
    lifeline = _open(descriptor, "rb", "--lifeline-fd")
    threading.Thread(target=_exit_at_end, args=(lifeline,), name="lifeline", daemon=True).start()


def _exit_at_end(lifeline: IO[bytes]) -> None:
    while lifeline.read(1):
        pass
    if os.getpgrp() == os.getpid():
        kill_group(os.getpid())
    os._exit(ORPHAN_EXIT_CODE)


class ReadySignal:
    """Tells the supervisor once how starting went; without a supervisor it tells nobody."""

    def __init__(self, descriptor: int | None) -> None:
        self._pipe = None if descriptor is None else _open(descriptor, "wb", "--ready-fd")

    def ready(self) -> None:
        """Later calls change nothing: a role is ready once."""
        self._send(RoleReport(ready=True))

    def refuse(self, error: PddError) -> None:
        """The configuration is wrong: starting this role again can't help."""
        self._send(RoleReport(config_error=str(error)))

    def _send(self, report: RoleReport) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with pipe:
                pipe.write(msgspec.json.encode(report) + b"\n")


def _open(descriptor: int, mode: str, flag: str) -> IO[bytes]:
    try:
        return os.fdopen(descriptor, mode, buffering=0)
    except OSError as error:
        raise ConfigError(f"{flag} {descriptor}: {error.strerror}") from error
