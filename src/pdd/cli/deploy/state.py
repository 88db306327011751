"""Where a running deployment keeps its files, and what is in them.

::

    <state root>/<topology's name>/
        up.lock         held by ``pdd up`` while it lives; its pid is inside
        topology.json   the resolved topology that every role was started from
        status.json     what the supervisor knows of each role, rewritten whenever that changes
        <node>.sock     the door of a KV node for its local engines
        logs/<role>.log what a role wrote to stdout and stderr; <role>.old.log is the previous run's
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import sleep
from typing import IO

import msgspec

from pdd.cli.given_text import require_text
from pdd.core.errors import ConfigError, Unavailable
from pdd.core.ids import NodeId
from pdd.core.units import Seconds

_MAX_SOCKET_PATH_BYTES = 107
"""What fits into a Unix socket's address."""
_LOCK_ATTEMPTS = 10
_LOCK_PAUSE = Seconds(0.02)


class RoleKind(StrEnum):
    """The kinds of processes that make up a deployment; also the commands that run them."""

    NODE = "node"
    WAN = "wan"
    ENGINE = "engine"
    ROUTER = "router"

    @property
    def keeps_files(self) -> bool:
        """Whether its process uses the state directory: an engine finds its node's socket there."""
        return self in {RoleKind.NODE, RoleKind.ENGINE}


class Phase(StrEnum):
    """Where a role's process is in its life."""

    WAITING = "waiting"
    """Not started yet: others come first."""
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    """It died and is started again after a pause."""
    REFUSED = "refused"
    """It found its configuration wrong."""
    STOPPED = "stopped"


class RoleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor knows of one role."""

    name: str
    kind: RoleKind
    phase: Phase = Phase.WAITING
    pid: int | None = None
    restarts: int = 0
    ready_after_s: float | None = None
    """How long its process took from its start until it was ready."""
    last_exit: str | None = None
    log: str = ""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What ``status.json`` holds."""

    topology: str
    pid: int
    roles: tuple[RoleStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """The files of one deployment."""

    path: Path

    @property
    def topology_file(self) -> Path:
        return self.path / "topology.json"

    @property
    def status_file(self) -> Path:
        return self.path / "status.json"

    @property
    def lock_file(self) -> Path:
        return self.path / "up.lock"

    def log_file(self, role: str) -> Path:
        return self.path / "logs" / f"{role}.log"

    def set_old_logs_aside(self) -> None:
        """Makes room for a new run's logs; those of the run before the previous one go."""
        for log in self.log_file("any").parent.glob("*.log"):
            if not log.name.endswith(".old.log"):
                log.replace(log.with_suffix(".old.log"))

    def node_socket(self, node: NodeId) -> Path:
        """Raises ConfigError when the path is longer than a Unix socket's address may be."""
        path = self.path / f"{node}.sock"
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"--state-dir: {path} is longer than the {_MAX_SOCKET_PATH_BYTES} bytes of a socket's address; "
                "give a shorter directory"
            )
        return path

    def write_status(self, status: RunStatus) -> None:
        """Replaces the file at once, so that a reader never sees half of it."""
        draft = self.status_file.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(status))
        draft.replace(self.status_file)

    def read_status(self) -> RunStatus | None:
        """None when there is none that can be read."""
        try:
            return msgspec.json.decode(self.status_file.read_bytes(), type=RunStatus)
        except (OSError, msgspec.DecodeError):
            return None

    def is_live(self) -> bool:
        """Whether a ``pdd up`` holds this directory now."""
        try:
            with self.lock_file.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _open_lock(self) -> IO[str]:
        try:
            return self.lock_file.open("a+")
        except OSError as error:
            raise ConfigError(f"--state-dir: can't write {self.lock_file}: {error.strerror}") from error

    @contextmanager
    def hold(self) -> Generator[None]:
        """Holds the directory for one ``pdd up``; the lock ends with its process, however that ends.

        Raises:
            ConfigError: another one holds it, or it can't be made.
        """
        for folder in (self.path.parent, self.path, self.path / "logs"):
            _make_private(folder)
        with self._open_lock() as lock:
            if not _take(lock):
                lock.seek(0)
                raise ConfigError(
                    f"{self.path.name!r} is already running here (pid {lock.read().strip()}); stop it, give another "
                    "--state-dir, or change the topology's name"
                )
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield


def run_directory(root: Path, topology: str) -> RunDirectory:
    """Where the deployment named ``topology`` lives below ``root``.

    Raises:
        ConfigError: its name is no text.
    """
    return RunDirectory(path=require_text("--state-dir", (root / topology).absolute()))


def live_runs(root: Path) -> tuple[RunDirectory, ...]:
    """The deployments that run below ``root`` now, by name."""
    try:
        folders = sorted(entry for entry in root.iterdir() if entry.is_dir())
    except OSError:
        return ()
    runs = (RunDirectory(path=folder.absolute()) for folder in folders)
    return tuple(run for run in runs if run.is_live())


def find_live_run(root: Path, name: str | None) -> RunDirectory:
    """The one deployment that is meant.

    Raises:
        Unavailable: nothing runs.
        ConfigError: nothing of that name does, or several run and no name was given.
    """
    runs = live_runs(root)
    if not runs:
        raise Unavailable(
            f"nothing runs below {root}; start something with `pdd up`, or give its --state-dir",
            retry_after_s=Seconds(1.0),
        )
    names = ", ".join(run.path.name for run in runs)
    chosen = runs if name is None else tuple(run for run in runs if run.path.name == name)
    match chosen:
        case ():
            raise ConfigError(f"--run: {name!r} does not run below {root}; running: {names}")
        case (only,):
            return only
        case _:
            raise ConfigError(f"several deployments run below {root}: {names}; say which with --run NAME")


def _take(lock: IO[str]) -> bool:
    """Whether the lock could be had. Somebody who only looks (``is_live``) holds it for a moment too: hence again."""
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sleep(_LOCK_PAUSE)
        else:
            return True
    return False


def _make_private(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = path.stat().st_uid
    except OSError as error:
        raise ConfigError(f"--state-dir: can't make {path}: {error.strerror}") from error
    # Whoever owns a folder can put another in its place; root can do so anyway.
    if owner not in {os.getuid(), 0}:
        raise ConfigError(f"--state-dir: {path} belongs to another user; give a directory of your own")
