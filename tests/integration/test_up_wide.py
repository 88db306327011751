"""Two engines of each role, as a user runs them: who serves, what status, metrics and the event trace tell."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
PDD = (sys.executable, "-m", "pdd.cli")
ENGINES = {"P1", "P2", "RLD1", "RLD2", "MD1", "MD2"}


@pytest.fixture
def state():
    # Not tmp_path: a Unix socket's path may have no more than 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="pdd-"))
    yield folder
    shutil.rmtree(folder)


@contextmanager
def up(state, *arguments):
    """A running ``pdd up``; yields its announcement."""
    command = [*PDD, "up", *arguments, "--port", "0", "--json", "--state-dir", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield json.loads(line)
        finally:
            process.terminate()
            process.wait(20)


def chat(url, prompt, **fields):
    """One traced answer; returns its body."""
    body = {"model": "scripted", "prompt": prompt, "max_tokens": 32, "temperature": 0, "ignore_eos": True, **fields}
    body["pdd"] = {"trace": True, **fields.get("pdd", {})}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def text_of(url):
    with urllib.request.urlopen(url, timeout=5) as reply:
        return reply.read().decode()


def workers_of(answer):
    return {span["worker"] for span in answer["pdd"]["spans"]}


def test_both_engines_of_each_role_serve_and_everything_that_shows_them_shows_both(state):
    trace = state / "trace.jsonl"
    with up(state, "wide", "--trace", str(trace)) as announced:
        url = announced["url"]
        prompts = [[number, *range(1, 200)] for number in range(12)]
        with ThreadPoolExecutor(12) as clients:
            answers = list(clients.map(lambda prompt: chat(url, prompt, pdd={"route": "relay"}), prompts))
        assert {worker for answer in answers for worker in workers_of(answer)} == ENGINES
        again = chat(url, prompts[0])
        assert again["choices"][0]["text"] == answers[0]["choices"][0]["text"]
        assert again["pdd"]["report"]["missing_blocks_at_main"] == 0

        health = json.loads(text_of(f"{url}/health"))
        assert health["roles"]["prefill"] == {"up": 2, "configured": 2}
        assert set(health["workers"]) == ENGINES
        assert all(worker["up"] and worker["breaker"] == "closed" for worker in health["workers"].values())

        metrics = text_of(f"{url}/metrics")
        for name in sorted(ENGINES):
            assert f'pdd_worker_up{{role="{role_of(name)}",worker="{name}"}} 1.0' in metrics
        assert 'pdd_link_rate_bytes_per_second{source="A",target="B"}' in metrics
        assert "pdd_conversations 12.0" in metrics

        shown = subprocess.run(
            [*PDD, "status", "--state-dir", str(state)], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        assert set(shown.split()) > ENGINES
        assert "engines up: 2/2 P, 2/2 RLD, 2/2 MD" in shown

    events = [json.loads(line) for line in trace.read_text().splitlines()]
    assert events[0]["name"] == "trace_started"
    assert abs(events[0]["unix_s"] - time.time()) < 120
    assert [event["name"] for event in events].count("finished") == 13
    assert {event["name"] for event in events} >= {"opened", "prefill_started", "route_chosen", "handed_off"}
    at = [event["at"] for event in events]
    assert at == sorted(at)


def role_of(name):
    return {"P": "prefill", "RLD": "relay_decode", "MD": "main_decode"}[name.rstrip("12")]


def test_tenants_share_a_full_router_and_the_greedy_one_is_told_to_come_back(state):
    packaged = files("pdd.cli.topology") / "packaged" / "scripted.toml"
    text = packaged.read_text(encoding="utf-8").replace("port = 8000", "port = 8000\nmax_open_requests = 2")
    topology = state / "busy.toml"
    topology.write_text(
        text
        + "\n[router.admission]\nmax_queued_requests = 4\n"
        + '\n[[router.tenants]]\nname = "greedy"\napi_key = "g"\n\n[[router.tenants]]\nname = "modest"\napi_key = "m"\n'
    )

    def one(job):
        key, number = job
        body = {"model": "scripted", "prompt": [number, 1, 2], "max_tokens": 30, "ignore_eos": True}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Authorization": f"Bearer {key}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, None
        except urllib.error.HTTPError as error:
            return error.code, int(error.headers["Retry-After"])

    with up(state, str(topology)) as announced:
        url = announced["url"]
        with ThreadPoolExecutor(12) as clients:
            greedy = clients.map(one, [("g", number) for number in range(10)])
            time.sleep(0.3)
            modest = clients.map(one, [("m", number) for number in range(2)])
            outcomes, served = list(greedy), list(modest)
    assert [status for status, _ in served] == [200, 200]
    assert {status for status, _ in outcomes} == {200, 429}
    assert all(1 <= after <= 60 for status, after in outcomes if status == 429)
