"""What a KV node's process holds in memory before it serves: the modules that it has imported, and how large it is.

A real ``pdd node`` runs in a fresh interpreter until it would bind its first socket; there it tells and ends. Nothing
of PDD is replaced, so that the measure stays true however the command finds its way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

OWN_PACKAGES = (
    *("pdd.core", "pdd.index", "pdd.protocol", "pdd.kvnode", "pdd.transport"),
    *("pdd.cli.roles", "pdd.cli.topology"),
    *(f"pdd.cli.{name}" for name in ("program", "commands", "options", "quantities", "given_text")),
    *("pdd.cli.output", "pdd.cli.environment"),
    *(f"pdd.cli.deploy.{name}" for name in ("lifeline", "processes", "state")),
)
"""What a node is made of: modules may come and go there. Anything else of PDD is foreign.

The program around every command, and what ties a role to its supervisor, are named one by one: the rest of ``pdd.cli``
is other commands.
"""
FORBIDDEN_LIBRARIES = (
    *("aiohttp", "huggingface_hub", "jinja2", "numpy", "prometheus_client"),
    *("rich", "safetensors", "tokenizers", "torch", "transformers", "vllm"),
)

_PROGRAM = """
import json, os, sys

def tell(event, _):
    if event == "socket.bind":
        with open("/proc/self/status") as status:
            kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        names = sorted(name for name, module in list(sys.modules.items()) if module is not None)
        print(json.dumps({"modules": names, "rss_mib": round(kib / 1024, 1)}), flush=True)
        os._exit(0)

sys.addaudithook(tell)
from pdd.cli import main
sys.exit(main(sys.argv[1:]))
"""


class NodeNeverBound(Exception):
    """The process ended before it had a socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcess:
    """``foreign`` are modules of PDD that a node has no use for, ``libraries`` the forbidden ones of others."""

    pdd_modules: tuple[str, ...]
    foreign: tuple[str, ...]
    libraries: tuple[str, ...]
    rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedNode:
    """Started early and read late: the other measures run meanwhile."""

    process: subprocess.Popen[str]
    state: tempfile.TemporaryDirectory[str]

    def read(self, *, timeout_s: float = 30) -> NodeProcess:
        """Waits until it has told.

        Raises:
            NodeNeverBound: it ended otherwise; with what it said.
        """
        with self.state:
            try:
                out, err = self.process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                out, err = self.process.communicate()
        if not out.startswith("{"):
            raise NodeNeverBound(f"`pdd node` bound no socket (exit code {self.process.returncode}): {err or out}")
        told = json.loads(out)
        return sort_modules(told["modules"], rss_mib=told["rss_mib"])


def start_node(root: Path) -> StartedNode:
    """Starts the node of ``tests/data/node.toml``."""
    state = tempfile.TemporaryDirectory()
    topology = root / "tests" / "data" / "node.toml"
    flags = ["--topology", str(topology), "--name", "node", "--state-dir", state.name]
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "node", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
    )
    return StartedNode(process=process, state=state)


def sort_modules(modules: Iterable[str], *, rss_mib: float) -> NodeProcess:
    """Tells a node's own modules from others'."""
    names = sorted(modules)
    pdd_modules = tuple(name for name in names if name.split(".")[0] == "pdd")
    return NodeProcess(
        pdd_modules=pdd_modules,
        foreign=tuple(name for name in pdd_modules if not _is_own(name)),
        libraries=tuple(name for name in FORBIDDEN_LIBRARIES if name in names),
        rss_mib=rss_mib,
    )


def _is_own(module: str) -> bool:
    """Packages above a node's own come with them."""
    return any(f"{module}.".startswith(f"{own}.") or f"{own}.".startswith(f"{module}.") for own in OWN_PACKAGES)
