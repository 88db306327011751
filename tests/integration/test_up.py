"""``pdd up`` as a user runs it: a whole scripted deployment in processes, seen through ``pdd status`` and
``pdd link``.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
PDD = (sys.executable, "-m", "pdd.cli")
ROLES = {"node-p", "node-rld", "node-md", "wan", "P", "RLD", "MD", "router"}


@pytest.fixture
def state():
    # Not tmp_path: a Unix socket's path may have no more than 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="pdd-"))
    yield folder
    shutil.rmtree(folder)


def run(*arguments, state=None, timeout=30):
    place = () if state is None else ("--state-dir", str(state))
    return subprocess.run([*PDD, *arguments, *place], capture_output=True, text=True, timeout=timeout, check=False)


class Up:
    def __init__(self, process, announcement):
        self.process = process
        self.url = announcement["url"]
        self.announcement = announcement
        self.pids = {role["name"]: role["pid"] for role in announcement["roles"]}


@contextmanager
def up(state, *arguments, topology="scripted"):
    """A running ``pdd up``; whatever a test leaves alive is killed."""
    command = [*PDD, "up", topology, "--port", "0", "--json", "--state-dir", str(state), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield Up(process, json.loads(line))
        finally:
            process.kill()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def status(state):
    return json.loads(run("status", "--json", state=state).stdout)


def get(url):
    with urllib.request.urlopen(url, timeout=5) as reply:
        return json.load(reply)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_every_role_and_leaves_nothing(state, number):
    with up(state) as running:
        assert set(running.pids) == ROLES
        assert all(is_alive(pid) for pid in running.pids.values())
        running.process.send_signal(number)
        assert running.process.wait(timeout=15) == 0
        assert running.process.stdout.read() == ""  # one object, and nothing after it
        assert "Traceback" not in running.process.stderr.read()
        assert not any(is_alive(pid) for pid in running.pids.values())
    assert not list((state / "scripted").glob("*.sock"))
    assert run("status", state=state).returncode == 1


def test_kill_9_of_up_leaves_no_orphan_and_it_can_start_again(state):
    with up(state) as running:
        running.process.kill()
        running.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in running.pids.values()), seconds=5)
    assert "nothing runs" in run("status", state=state).stderr
    with up(state) as again:
        assert set(again.pids) == ROLES


def test_a_web_page_is_let_in_if_a_flag_names_it_and_commands_work_as_ever(state):
    page, stranger = "http://localhost:3000", "https://evil.example"
    with up(state, "--allow-origin", page, "--allow-host", "gpu1.example") as running:

        def status_of(**headers):
            body = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
            request = urllib.request.Request(running.url + "/v1/completions", body, headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as reply:
                    return reply.status, reply.headers["Access-Control-Allow-Origin"]
            except urllib.error.HTTPError as refused:
                return refused.code, refused.headers["Access-Control-Allow-Origin"]

        assert status_of(Origin=page) == (200, page)
        assert status_of(Origin=stranger) == (403, None)
        assert status_of(Host="evil.example:8000", Origin="http://evil.example:8000") == (403, None)
        assert status_of(Host="gpu1.example:8000") == status_of() == (200, None)
        assert run("ask", "hi", "--url", running.url, "--max-tokens", "1").returncode == 0
        assert run("status", state=state).returncode == 0


def test_a_killed_role_comes_back_and_is_counted(state):
    with up(state) as running:
        os.kill(running.pids["MD"], signal.SIGKILL)

        def is_back():
            role = next(role for role in status(state)["roles"] if role["name"] == "MD")
            return role["restarts"] == 1 and role["answers"]

        wait_until(is_back)
        roles = {role["name"]: role for role in status(state)["roles"]}
        assert roles["MD"]["pid"] != running.pids["MD"]
        assert roles["MD"]["last_exit"] == "killed by SIGKILL"
        assert all(roles[name]["restarts"] == 0 for name in ROLES - {"MD"})


def test_status_is_one_object_asked_of_live_processes(state):
    with up(state) as running:
        found = run("status", "--json", state=state)
        assert found.returncode == 0
        assert found.stderr == ""
        report = json.loads(found.stdout)
        assert (report["topology"], report["url"], report["healthy"]) == ("scripted", running.url, True)
        roles = {role["name"]: role for role in report["roles"]}
        assert {name: role["pid"] for name, role in roles.items()} == running.pids
        assert roles["node-md"]["details"]["capacity_blocks"] > 0
        assert roles["wan"]["details"]["rate_bits_per_s"] == 20e6
        assert roles["MD"]["details"]["node"] == "node-md"
        assert roles["router"]["details"]["status"] == "ok"
        text = run("status", state=state)
        assert text.returncode == 0
        assert all(name in text.stdout for name in ROLES)
        assert len(text.stdout.splitlines()) == 2 + len(ROLES)
        assert "ok, engines up: 1/1 P, 1/1 RLD, 1/1 MD" in text.stdout
        log = Path(roles["RLD"]["log"]).read_text()
        assert "engine_ready engine=RLD kind=scripted role=relay_decode" in log


def test_status_notices_a_process_that_hangs(state):
    with up(state) as running:
        os.kill(running.pids["node-md"], signal.SIGSTOP)
        try:
            found = run("status", "--json", state=state)
        finally:
            os.kill(running.pids["node-md"], signal.SIGCONT)
        assert found.returncode == 1
        report = json.loads(found.stdout)
        assert [role["name"] for role in report["roles"] if not role["answers"]] == ["node-md"]


def test_a_link_is_changed_while_it_runs(state):
    with up(state):
        changed = run("link", "wan", "--rate", "50 Mbit/s", "--delay", "3 ms", "--json", state=state)
        assert changed.returncode == 0, changed.stderr
        link = json.loads(changed.stdout)
        assert (link["rate_bits_per_s"], link["delay_s"], link["condition"]) == (50e6, 0.003, "up")
        assert json.loads(run("link", "wan", "--cut", "freeze", "--json", state=state).stdout)["condition"] == "frozen"
        restored = run("link", "wan", "--restore", state=state)
        assert re.fullmatch(r"link wan: up, 50 Mbit/s, delay 3 ms one way, .*\n", restored.stdout)
        unknown = run("link", "lan", "--json", state=state)
        assert unknown.returncode == 2
        assert "links: wan" in json.loads(unknown.stdout)["error"]["message"]


def test_the_router_answers_as_soon_as_up_says_so(state):
    with up(state) as running:
        assert get(f"{running.url}/health")["status"] == "ok"
        assert [model["id"] for model in get(f"{running.url}/v1/models")["data"]] == ["scripted"]


def test_a_relayed_answer_is_the_direct_one_through_real_processes(state):
    answers = {}
    with up(state) as running:
        for route in ("relay", "direct"):
            body = {
                "model": "scripted",
                "prompt": list(range(3, 259)),
                "max_tokens": 40,
                "ignore_eos": True,
                "temperature": 0,
                "pdd": {"route": route, "cache_salt": route, "trace": True},
            }
            answers[route] = post(f"{running.url}/v1/completions", body)
        nodes = {role["name"]: role["details"] for role in status(state)["roles"] if role["kind"] == "node"}
    assert answers["relay"]["choices"][0]["text"] == answers["direct"]["choices"][0]["text"]
    routes = {route: answer["pdd"]["report"]["route"] for route, answer in answers.items()}
    assert routes == {"relay": "relay", "direct": "direct"}
    computed = answers["relay"]["pdd"]["report"]["tokens_by_role"]
    assert computed["prefill"] == 1
    assert computed["relay_decode"] > 0
    assert sum(computed.values()) == 40
    assert nodes["node-p"]["sent_bytes"]["node-md"] >= 2 * 16 * nodes["node-p"]["block_bytes"]
    assert all(node["leased_blocks"] == node["reserved_blocks"] == node["orders"] == 0 for node in nodes.values())


def test_two_deployments_run_side_by_side_and_the_same_twice_does_not(state):
    with up(state / "one") as one, up(state / "two") as two:
        assert one.url != two.url
        assert status(state / "one")["healthy"]
        assert status(state / "two")["healthy"]
        again = run("up", "scripted", "--port", "0", "--json", state=state / "one")
        assert again.returncode == 2
        assert f"already running here (pid {one.process.pid})" in json.loads(again.stdout)["error"]["message"]
        assert status(state / "one")["healthy"]


def test_a_port_in_use_is_refused_before_anything_starts(state):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        found = run("up", "scripted", "--port", str(port), state=state)
    assert found.returncode == 2
    assert re.search(rf"router\.port = {port}: .*in use", found.stderr)
    assert "Traceback" not in found.stderr
    assert not list((state / "scripted" / "logs").iterdir())


def test_a_port_that_is_taken_while_others_start_stops_up_with_one_line_and_no_restarts(state):
    port = free_port()
    command = [*PDD, "up", "scripted", "--port", str(port), "--state-dir", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            # From here on nothing holds the port until the router, which starts last, listens there.
            wait_until((state / "scripted" / "logs" / "node-p.log").exists)
            with socket.create_server(("127.0.0.1", port)):
                out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 2
    assert re.fullmatch(rf"pdd: router 'router': router: can't listen on 127\.0\.0\.1:{port}: .*in use.*\n", err)
    assert "restart" not in out


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        return holder.getsockname()[1]


def changed_topology(state, old, new, *, base="scripted.toml"):
    text = (files("pdd.cli.topology") / "packaged" / base).read_text().replace("port = 8000", "port = 0")
    assert old in text
    topology = state / "changed.toml"
    topology.write_text(text.replace(old, new, 1))
    return str(topology)


def test_a_role_that_refuses_its_configuration_stops_up_with_its_message(state):
    # Only the engine knows how many rows its operators compute exactly.
    topology = changed_topology(
        state, 'role = "prefill"', 'role = "prefill"\nprefill_chunk_tokens = 4000', base="tiny.toml"
    )
    found = run("up", topology, "--json", state=state)
    assert found.returncode == 2
    error = json.loads(found.stdout)["error"]
    assert error["type"] == "config_error"
    assert error["message"].startswith("engine 'P': ")
    assert "511" in error["message"]
    assert "ready" in found.stderr
    assert "Traceback" not in found.stderr


def test_more_memory_than_the_machine_has_is_refused_before_anything_starts(state):
    topology = changed_topology(state, 'arena = "64 MiB"', 'arena = "100 TiB"')
    found = run("up", topology, state=state)
    assert found.returncode == 2
    assert "this machine has" in found.stderr
    assert not list((state / "scripted" / "logs").iterdir())


def test_one_role_runs_alone_from_the_resolved_topology(state):
    with up(state) as running:
        topology = Path(running.announcement["state_dir"]) / "topology.json"
        found = run("engine", "--topology", str(topology), "--name", "nobody", state=state)
        assert found.returncode == 2
        assert "no engine named 'nobody'; engines: P, RLD, MD" in found.stderr
        assert "Traceback" not in found.stderr
        taken = run("wan", "--topology", str(topology), "--name", "wan")
        assert taken.returncode == 2
        assert "can't listen" in taken.stderr
