"""Two datacenters on one machine: network namespaces with one shaped line between them, for software that is not PDD's
too.

Needs root, ``ip`` and ``/dev/net/tun``. Nothing of it touches the machine's own network.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from pdd.core.errors import ConfigError
from pdd.core.units import BitsPerSecond, Bytes, Seconds

_QUIET_BYTES = Bytes(20_000)
"""So little in ``_QUIET_FOR`` is health checks and heartbeats, no transfer."""
_QUIET_FOR = Seconds(0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One namespace; the line reaches it at ``host``."""

    namespace: str
    host: str

    def inside(self, *command: str) -> tuple[str, ...]:
        """The command that runs ``command`` here: the same process, its descriptors and signals included."""
        return ("ip", "netns", "exec", self.namespace, *command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Both ends, and the line's process."""

    near: Site
    far: Site
    line: subprocess.Popen[str]

    def sent_bytes(self) -> Bytes:
        """What ``near`` has sent to ``far`` so far, packet headers included."""
        assert self.line.stdin is not None
        assert self.line.stdout is not None
        self.line.stdin.write("\n")
        self.line.stdin.flush()
        return Bytes(json.loads(self.line.stdout.readline())[0])

    def wait_until_quiet(self, timeout: Seconds) -> None:
        """Returns when next to nothing crosses any more: what an answer still owed is through."""
        deadline = monotonic() + timeout
        before = self.sent_bytes()
        while True:
            sleep(_QUIET_FOR)
            now = self.sent_bytes()
            if now - before < _QUIET_BYTES:
                return
            if monotonic() > deadline:
                raise TimeoutError(f"the line is still busy after {timeout:g} s")
            before = now


@contextlib.contextmanager
def two_sites(*, rate: BitsPerSecond, delay: Seconds) -> Generator[Sites]:
    """Both exist as long as the context lasts; ``delay`` is one way.

    Raises:
        ConfigError: this machine can't have them.
    """
    _require()
    near = Site(namespace=f"pdd-near-{os.getpid()}", host="10.77.0.1")
    far = Site(namespace=f"pdd-far-{os.getpid()}", host="10.77.0.2")
    with contextlib.ExitStack() as stack:
        for site in (near, far):
            subprocess.run(("ip", "netns", "add", site.namespace), check=True)
            stack.callback(subprocess.run, ("ip", "netns", "del", site.namespace), check=False)
        ends = (near.namespace, near.host, far.namespace, far.host)
        line = stack.enter_context(
            subprocess.Popen(
                (sys.executable, "-m", "benchmarks.line_process", *ends, str(rate), str(delay)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(line.terminate)
        assert line.stdout is not None
        if line.stdout.readline().strip() != "ready":
            raise ConfigError("the line between the sites could not be set up; what it said is above")
        yield Sites(near=near, far=far, line=line)


def _require() -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None or not Path("/dev/net/tun").exists():
        raise ConfigError("two sites on one machine need root, the `ip` command (iproute2) and /dev/net/tun")
