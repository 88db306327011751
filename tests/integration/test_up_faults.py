"""kill -9 of a role in mid-stream: the client still gets the complete, exact answer, and the role comes back."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
PDD = (sys.executable, "-m", "pdd.cli")
NUM_TOKENS = 120


@pytest.fixture(scope="module")
def deployment():
    # Not tmp_path: a Unix socket's path may have no more than 107 bytes.
    state = Path(tempfile.mkdtemp(prefix="pdd-"))
    command = [*PDD, "up", "scripted", "--port", "0", "--json", "--state-dir", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield state, json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            process.wait(timeout=15)
            shutil.rmtree(state)


def status(state):
    found = subprocess.run(
        [*PDD, "status", "--json", "--state-dir", str(state)], capture_output=True, text=True, timeout=30, check=False
    )
    return json.loads(found.stdout)


def healthy(state, seconds=20.0):
    """The roles, once all of them answer."""
    deadline = time.monotonic() + seconds
    while not (found := status(state))["healthy"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return {role["name"]: role for role in found["roles"]}


@contextmanager
def stream(url, salt, **steering):
    body = {
        "model": "scripted",
        "prompt": list(range(3, 259)),
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "pdd": {"cache_salt": salt, "trace": True, **steering},
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        yield (json.loads(line[6:]) for line in reply if line.startswith(b"data: {"))


def read(chunks, *, when=lambda spans: False, then=lambda: None):
    """All token IDs; ``then`` is called once, when ``when`` holds of the spans so far."""
    spans, done = [], False
    for chunk in chunks:
        assert "error" not in chunk, chunk
        if "token_ids" in chunk.get("pdd", {}):
            spans.append(chunk["pdd"])
        if not done and when(spans):
            then()
            done = True
    assert done or when([]) is False
    tokens = [token for span in spans for token in span["token_ids"]]
    return tokens, {span["role"] for span in spans}


@pytest.fixture(scope="module")
def expected(deployment):
    state, url = deployment
    healthy(state)
    with stream(url, "reference", route="direct") as chunks:
        tokens, _ = read(chunks)
    assert len(tokens) == NUM_TOKENS
    return tokens


@pytest.mark.parametrize(
    ("victim", "emitted_by"),
    [
        ("MD", "main_decode"),
        ("MD", "relay_decode"),
        ("RLD", "relay_decode"),
        ("node-md", "main_decode"),
        ("node-md", "relay_decode"),
        ("node-rld", "relay_decode"),
        ("P", "relay_decode"),
        ("node-p", "main_decode"),
        ("wan", "relay_decode"),
        ("wan", "main_decode"),
    ],
)
def test_the_answer_is_complete_and_exact_though_a_role_is_killed(deployment, expected, victim, emitted_by):
    state, url = deployment
    pid = healthy(state)[victim]["pid"]
    killed = []

    def well_into(spans):
        return sum(len(span["token_ids"]) for span in spans if span["role"] == emitted_by) >= 10

    def kill():
        os.kill(pid, signal.SIGKILL)
        killed.append(victim)

    salt = f"{victim}-{emitted_by}"
    with stream(url, salt, route="relay", handoff_after_tokens=40) as chunks:
        tokens, _ = read(chunks, when=well_into, then=kill)
    assert killed
    assert tokens == expected
    roles = healthy(state)
    assert roles[victim]["pid"] != pid
    nodes = [role["details"] for role in roles.values() if role["kind"] == "node"]
    assert all(node["leased_blocks"] == node["reserved_blocks"] == 0 for node in nodes)


def test_a_worker_that_is_not_up_is_a_503_and_recovers_by_itself(deployment, expected):
    state, url = deployment
    pid = healthy(state)["P"]["pid"]
    os.kill(pid, signal.SIGSTOP)  # it can't come back too soon for us to notice
    try:
        time.sleep(4.0)  # longer than health checks take to give it up
        with pytest.raises(urllib.error.HTTPError) as refused, stream(url, "while-p-is-down"):
            pass
        assert refused.value.code == 503
        assert int(refused.value.headers["Retry-After"]) >= 1
        refused.value.close()
    finally:
        os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + 20
    while True:
        try:
            with stream(url, "p-is-back") as chunks:
                assert read(chunks)[0] == expected
        except urllib.error.HTTPError as error:
            error.close()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return
