"""The two pipes between a role and its supervisor."""

import os
import subprocess
import sys

import pytest

from pdd.cli.deploy.lifeline import ORPHAN_EXIT_CODE, ReadySignal
from pdd.core.errors import ConfigError


def test_a_process_ends_when_its_lifeline_does_even_while_it_is_busy():
    program = (
        "import sys; from pdd.cli.deploy.lifeline import watch_lifeline; watch_lifeline(int(sys.argv[1]))\n"
        "print('up', flush=True)\nwhile True: pass"
    )
    read, write = os.pipe()
    command = [sys.executable, "-c", program, str(read)]
    with subprocess.Popen(command, pass_fds=(read,), stdout=subprocess.PIPE, text=True) as process:
        try:
            os.close(read)
            assert process.stdout.readline() == "up\n"
            assert process.poll() is None
            os.close(write)
            assert process.wait(timeout=10) == ORPHAN_EXIT_CODE
        finally:
            process.kill()


def test_a_role_says_once_that_it_is_ready():
    read, write = os.pipe()
    signal = ReadySignal(write)
    signal.ready()
    signal.ready()
    signal.refuse(ConfigError("too late"))
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b'{"ready":true}\n'


def test_a_role_says_what_is_wrong_with_its_configuration():
    read, write = os.pipe()
    ReadySignal(write).refuse(ConfigError("key = 1: it must be 2"))
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b'{"config_error":"key = 1: it must be 2"}\n'


def test_without_a_supervisor_nobody_is_told():
    ReadySignal(None).ready()


def test_a_descriptor_that_is_not_open_is_refused():
    with pytest.raises(ConfigError, match="--ready-fd 9999"):
        ReadySignal(9999)
