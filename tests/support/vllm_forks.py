"""Runs programs of tests in processes that hold vLLM already: importing it takes longer than most of them."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pdd.cli.deploy.forking import ForkServers, Preload
from pdd.cli.deploy.processes import wait_with_group
from pdd.plugins.vllm.server import PRELOAD_MODULE, VLLM_ENVIRONMENT, require_vllm


async def run_forked(forks: ForkServers, module: str, *arguments: str, seconds: float) -> str:
    """What ``python -m module`` with ``arguments`` wrote; it must succeed. It reads them with ``arguments_of``."""
    server = forks.of(Preload(module=PRELOAD_MODULE, environment=VLLM_ENVIRONMENT[require_vllm()]))
    lifeline, ready = os.pipe()
    with tempfile.NamedTemporaryFile() as log:
        try:
            process = await server.fork(
                (sys.executable, "-m", module, *arguments), lifeline=lifeline, ready=ready, log=log.file
            )
        finally:
            os.close(lifeline)
            os.close(ready)
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = await wait_with_group(process)
        said = Path(log.name).read_text(errors="replace")  # noqa: ASYNC240
    assert code == 0, said[-5000:]
    return said


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Without the descriptors that only roles of a deployment need."""
    for flag in ("--lifeline-fd", "--ready-fd"):
        parser.add_argument(flag, help=argparse.SUPPRESS)
    return parser.parse_args()
