"""A role's process without a role: does what its first argument says. Run by the supervisor's tests."""

import argparse
import os
import signal
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from pdd.cli.deploy.lifeline import ReadySignal, watch_lifeline
from pdd.core.errors import ConfigError


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    parser.add_argument("--mark", type=Path)
    parser.add_argument("--lifeline-fd", type=int)
    parser.add_argument("--ready-fd", type=int)
    arguments = parser.parse_args()
    watch_lifeline(arguments.lifeline_fd)
    ready = ReadySignal(arguments.ready_fd)
    match arguments.behaviour:
        case "refuse":
            ready.refuse(ConfigError("key = 1: it must be 2"))
            sys.exit(2)
        case "die-at-start":
            print("last words")
            sys.exit(7)
        case "silent":
            signal.pause()
        case "ready-then-refuse":
            # Ready in its first life, refusing in its second, ready in its third.
            lives = len(arguments.mark.read_text()) if arguments.mark.exists() else 0
            arguments.mark.write_text("x" * (lives + 1))
            if lives == 1:
                ready.refuse(ConfigError("port = 1: in use"))
                sys.exit(2)
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "die-when-ready":
            ready.ready()
            os.kill(os.getpid(), signal.SIGKILL)
        case "child-then-die":
            # Never ready, and what it leaves holds its end of the pipe.
            child = subprocess.Popen(["sleep", "600"], close_fds=False)
            arguments.mark.write_text(str(child.pid))
            os.kill(os.getpid(), signal.SIGKILL)
        case "child-and-ready":
            child = subprocess.Popen(["sleep", "600"], close_fds=False)
            arguments.mark.write_text(str(child.pid))
        case "shared-memory-and-ready":
            memory = SharedMemory(create=True, size=4096)
            arguments.mark.write_text(memory.name)
        case "tell-environment":
            print(f"PRELOADED={os.environ.get('PDD_TEST_PRELOADED')} OWN={os.environ.get('PDD_TEST_OWN')}", flush=True)
            print(f"HELD={'colorsys' in sys.modules} INPUT={sys.stdin.read()!r}", flush=True)
        case "ready":
            pass
        case other:
            sys.exit(f"unknown behaviour {other}")
    ready.ready()
    while True:
        time.sleep(60)


main()
