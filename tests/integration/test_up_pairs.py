"""``pdd up wide`` while its engines and nodes die and hang: one of a pair is not missed, both are, until
they are back.
"""

import os
import signal
import time
import urllib.error

import pytest

from tests.integration.test_up import get, post, run, state, status, up, wait_until  # noqa: F401 (``state`` is a fixture)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]
ROLES = {f"{kind}{number}" for kind in ("P", "RLD", "MD", "node-p", "node-rld", "node-md") for number in (1, 2)}


@pytest.fixture
def wide(state):  # noqa: F811 (the fixture)
    with up(state, topology="wide") as running:
        yield state, running


def ask(url: str, salt: str) -> str:
    body = {
        "model": "scripted",
        "prompt": list(range(3, 259)),
        "max_tokens": 20,
        "ignore_eos": True,
        "temperature": 0,
        "pdd": {"cache_salt": salt, "route": "relay"},
    }
    return post(f"{url}/v1/completions", body)["choices"][0]["text"]


def test_any_one_may_die_and_nobody_is_turned_away(wide):
    folder, running = wide
    expected = ask(running.url, "peace")
    for victim in sorted(ROLES):
        os.kill(running.pids[victim], signal.SIGKILL)
        for turn in range(3):
            assert ask(running.url, f"{victim}-{turn}") == expected
        wait_until(lambda: is_whole(running.url))
    restarts = {role["name"]: role["restarts"] for role in status(folder)["roles"]}
    assert restarts == {**dict.fromkeys(ROLES, 1), "wan": 0, "router": 0}


def test_a_pair_that_hangs_is_missed_and_its_return_needs_no_restart(wide):
    folder, running = wide
    pair = [running.pids[name] for name in ("P1", "P2")]
    for pid in pair:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: refusal(running.url) is not None)
        refused = refusal(running.url)
        assert "0/2 P" in run("status", state=folder).stdout
    finally:
        for pid in pair:
            os.kill(pid, signal.SIGCONT)
    assert refused is not None
    assert refused.code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    wait_until(lambda: refusal(running.url) is None)
    assert get(f"{running.url}/health")["status"] == "ok"
    assert {role["restarts"] for role in status(folder)["roles"]} == {0}


def refusal(url: str) -> urllib.error.HTTPError | None:
    try:
        ask(url, str(time.monotonic()))
    except urllib.error.HTTPError as error:
        error.close()
        return error
    return None


def is_whole(url: str) -> bool:
    return all(count["up"] == count["configured"] for count in get(f"{url}/health")["roles"].values())
