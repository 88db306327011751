"""A process that vLLM started does not outlive the one that started it."""

import os
import select
import signal
import subprocess
import sys

import pytest

PARENT = """
import multiprocessing, signal, sys
def child(ready):
    from pdd.plugins.vllm.parent_watch import end_with_parent
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    ready.set()
    signal.pause()
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ready = context.Event()
    process = context.Process(target=child, args=(ready,))
    process.start()
    ready.wait()
    print(process.pid, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_ends_when_its_parent_is_killed(tmp_path, method):
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(program), method], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert select.select([child], [], [], 30)[0], "the child lives on"
    finally:
        os.close(child)
        parent.stdout.close()


def test_a_process_that_nobody_started_that_way_is_left_alone():
    program = "from pdd.plugins.vllm.parent_watch import end_with_parent as e; import threading; e(); print(threading.active_count())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "1\n"
