"""Ends a process that its parent has left behind.

vLLM's engine runs as a child of its API server and, when that is killed, goes on alone: it keeps its memory and its
link to the KV node, and answers nobody.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading


def end_with_parent() -> None:
    """If this process was started by ``multiprocessing``, it is killed as soon as its parent is gone; else nothing."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    threading.Thread(target=_watch, args=(parent.pid,), name="pdd-parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        pass  # it has gone already
    else:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll()
    # Nobody is left to be told, and nothing of this process outlives it: no handler of a gentler signal may delay that.
    os.kill(os.getpid(), signal.SIGKILL)
