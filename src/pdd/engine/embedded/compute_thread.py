# pyright: basic
"""The thread that computes: it takes commands between two steps and hands tokens to the event loop after each.

Everything of the engine's core is touched on this thread only. Commands are few and bounded by the requests that are
open; answers go through ``call_soon_threadsafe``, one call a step.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from pdd.core.errors import PddError, WorkerFailed
from pdd.core.units import Seconds
from pdd.engine.embedded.core import DrawnToken, EngineCore
from pdd.engine.embedded.sequence import EngineSequence

_logger = logging.getLogger(__name__)


class ThreadObserver(Protocol):
    """Told on the event loop's thread."""

    def on_ready(self) -> None:
        """The core was built; commands are taken from now on."""
        ...

    def on_drawn(self, drawn: list[DrawnToken], /) -> None:
        """One step's tokens."""
        ...

    def on_end(self, error: PddError | None, /) -> None:
        """The thread is over: stopped, or failed with ``error``. Always the last call."""
        ...


class ComputeThread:
    """Builds the core, then steps it until stopped. ``start`` once, ``stop`` once."""

    __slots__ = (
        "_build",
        "_changed",
        "_commands",
        "_loop",
        "_observer",
        "_step_began",
        "_stopping",
        "_thread",
        "_torch_threads",
    )

    def __init__(
        self,
        build: Callable[[], EngineCore],
        observer: ThreadObserver,
        loop: asyncio.AbstractEventLoop,
        *,
        torch_threads: int,
    ) -> None:
        self._build = build
        self._observer = observer
        self._loop = loop
        self._torch_threads = torch_threads
        self._commands: deque[Callable[[EngineCore], None]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._step_began: float | None = None  # None while there is nothing to do; one word, so read without the lock
        self._thread = threading.Thread(target=self._run, name="pdd-engine-compute", daemon=True)

    @property
    def step_time(self) -> Seconds:
        """How long the step under way has taken; 0 while there is nothing to do."""
        began = self._step_began
        return Seconds(0.0 if began is None else time.monotonic() - began)

    def start(self) -> None:
        self._thread.start()

    def add(self, sequence: EngineSequence) -> None:
        self.submit(lambda core: core.add(sequence))

    def remove(self, sequence: EngineSequence) -> None:
        self.submit(lambda core: core.remove(sequence))

    def wake(self) -> None:
        """Something outside changed: a reader caught up."""
        with self._changed:
            self._changed.notify()

    def submit(self, command: Callable[[EngineCore], None]) -> None:
        """Runs ``command`` on the thread, between two steps, in order; never if the thread has ended."""
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def stop(self) -> None:
        """Asks it to end after the current step; ``on_end`` tells when it has."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self) -> None:
        """Blocks until the thread is gone; call from a thread that may."""
        self._thread.join()

    def _run(self) -> None:
        error: PddError | None = None
        try:
            torch.set_num_threads(self._torch_threads)  # a property of the calling thread
            with torch.inference_mode():
                self._compute()
        except PddError as raised:
            error = raised
        except Exception as raised:  # the outermost edge of this thread
            _logger.exception("engine_compute_failed")
            error = WorkerFailed(f"the engine failed: {type(raised).__name__}")
        self._tell(self._observer.on_end, error)

    def _compute(self) -> None:
        core = self._build()
        try:
            self._tell(self._observer.on_ready)
            while self._take_commands(core):
                drawn = core.step()
                if drawn:
                    self._tell(self._observer.on_drawn, drawn)
        finally:
            core.close()

    def _take_commands(self, core: EngineCore) -> bool:
        """Waits until there is something to compute; False when it is time to stop."""
        while True:
            with self._changed:
                while not (self._commands or self._stopping or core.has_work):
                    self._step_began = None
                    self._changed.wait()
                self._step_began = time.monotonic()
                if self._stopping:
                    return False
                commands = tuple(self._commands)
                self._commands.clear()
            for command in commands:
                command(core)
            if core.has_work:
                return True

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop was closed under us: nobody is left to be told
            self.stop()
