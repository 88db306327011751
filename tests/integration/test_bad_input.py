"""Wrong input to real processes: each is refused at once, in one line that says what, where, and what would
be right.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from tests.support.live import Live, live, packaged_topology

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

PDD = (sys.executable, "-m", "pdd.cli")
CONFIG_ERROR = 2


class Run(NamedTuple):
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def folder() -> Generator[Path]:
    # Not tmp_path: a Unix socket's path may have no more than 107 bytes.
    path = Path(tempfile.mkdtemp(prefix="pdd-"))
    yield path
    shutil.rmtree(path)


def pdd(folder: Path, *arguments: str) -> Run:
    """A command that should end by itself, soon."""
    done = subprocess.run(
        [*PDD, *arguments, "--state-dir", str(folder)], capture_output=True, text=True, timeout=20, check=False
    )
    assert "Traceback" not in done.stdout + done.stderr
    return Run(done.returncode, done.stdout, done.stderr)


def scripted_with(folder: Path, old: str, new: str, *, count: int = 1) -> Path:
    """The packaged scripted topology, changed in one place, in a file of its own."""
    text = (files("pdd.cli.topology") / "packaged" / "scripted.toml").read_text().replace("port = 8000", "port = 0")
    assert old in text
    path = folder / "mine.toml"
    path.write_text(text.replace(old, new, count))
    return path


RLD_TABLE = '[[engines]]\nname = "RLD"\nrole = "relay_decode"'

WRONG_TOPOLOGIES = {
    "an unknown key": ('rate = "20 Mbit/s" #', 'rait = "20 Mbit/s" #', ["links[0].rait", "did you mean 'rate'"]),
    "an unknown top-level key": ('model = "scripted"', 'model = "scripted"\nspeed = 3', ["speed"]),
    "a missing role": (RLD_TABLE, RLD_TABLE.replace("relay_decode", "prefill"), ["engines", 'role = "relay_decode"']),
    "a missing key": ('node = "node-rld"\n', "", ["engines[1].node", "missing"]),
    "KV formats that differ": (
        'name = "node-md"\ncluster = "B"',
        'name = "node-md"\ncluster = "B"\nblock_tokens = 32',
        ["nodes[2].block_tokens = 32", "scripted", "node-p", "must agree"],
    ),
    "an arena smaller than one request": (
        'arena = "64 MiB"',
        'arena = "64 KiB"',
        ["nodes[0].arena", "64 KiB", "max_model_tokens = 4096", "262144 bytes"],
    ),
    "an unknown model": ('model = "scripted"', 'model = "gpt-17"', ["model = 'gpt-17'", "smollm2-135m-instruct"]),
    "a value of another type": ('cluster = "B"', "cluster = 7", ["nodes[2].cluster = 7", "str"]),
    "a rate without a unit": ('rate = "20 Mbit/s" #', 'rate = "20" #', ["links[0].rate", "Mbit/s"]),
    "a role that is none": ('role = "prefill"', 'role = "prefil"', ["engines[0].role", "prefil", "main_decode"]),
    "a node that is none": ('node = "node-p"', 'node = "node-q"', ["engines[0].node", "node-q", "node-p"]),
    "a name taken twice": ('name = "node-rld"', 'name = "node-p"', ["nodes[1].name", "node-p", "already"]),
    "a port out of range": ("port = 0", "port = 70000", ["router.port = 70000", "65535"]),
    "a negative delay": ('delay = "15 ms" ', "delay_s = -1 ", ["links[0].delay_s = -1", "at least 0"]),
    "a host that everybody can reach": (
        'name = "node-p"\n',
        'name = "node-p"\nhost = "0.0.0.0"\n',
        ["nodes[0].host", "0.0.0.0", "--insecure-plaintext"],
    ),
    "a router without keys that everybody can reach": (
        "port = 0",
        'port = 0\nhost = "0.0.0.0"',
        ["router.host", "[[router.tenants]]"],
    ),
    "no TOML at all": ('name = "scripted"', "name = ", ["line "]),
}


@pytest.mark.parametrize("wrong", WRONG_TOPOLOGIES)
def test_a_wrong_topology_is_refused_with_file_key_and_value_before_anything_starts(folder: Path, wrong: str):
    old, new, said = WRONG_TOPOLOGIES[wrong]
    path = scripted_with(folder, old, new)
    found = pdd(folder, "up", str(path))
    assert found.code == CONFIG_ERROR
    assert found.stdout == ""
    assert found.stderr.startswith(f"pdd: {path}: ")
    assert found.stderr.count("\n") == 1
    for words in said:
        assert words in found.stderr
    assert not list(folder.glob("*/logs/*"))


def test_a_port_in_use_is_named_with_its_key(folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        path = scripted_with(folder, 'node = "node-md"', f'node = "node-md"\nport = {port}')
        found = pdd(folder, "up", str(path), "--json")
    assert found.code == CONFIG_ERROR
    error = json.loads(found.stdout)["error"]
    assert error["type"] == "config_error"
    assert f"engines[2].port = {port}" in error["message"]
    assert "in use" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "nowhere.toml"], ["nowhere.toml"]),
        (["up", "."], ["."]),
        (["up", "scripted", "--port", "seventy"], ["--port", "seventy"]),
        (["up", "scripted", "--port", "70000"], ["--port", "70000", "65535"]),
        (["link", "wan", "--rate", "fast"], ["--rate", "fast", "Mbit/s"]),
        (["node", "--topology", "nowhere.json", "--name", "n"], ["nowhere.json"]),
        (["engine", "--topology", "scripted", "--name", "P"], ["port", "= 0"]),
        (["node", "--topology", "scripted", "--name", "node-p"], ["port", "= 0"]),
        (["quickly"], ["quickly", "up"]),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_argument_and_what_would_be_right(
    folder: Path, arguments: list[str], said: list[str]
):
    state = [] if arguments == ["quickly"] else ["--state-dir", str(folder)]
    done = subprocess.run([*PDD, *arguments, *state], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == CONFIG_ERROR
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in done.stderr


def test_asking_where_nothing_runs_says_so(folder: Path):
    for arguments in (["status"], ["link", "wan"]):
        found = pdd(folder, *arguments)
        assert found.code == 1
        assert "nothing runs" in found.stderr
        assert "pdd up" in found.stderr


CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
COMPLETION = {"model": "scripted", "prompt": "hello", "max_tokens": 4}
MISSING = object()


class Wrong(NamedTuple):
    """What is sent (fields over a good body), and what must come back."""

    fields: dict[str, object]
    param: str | None
    said: tuple[str, ...]
    status: int = 400
    base: dict[str, object] = CHAT


WRONG_REQUESTS = {
    "an unknown model": Wrong({"model": "gpt-17"}, "model", ("gpt-17", "scripted"), status=404),
    "a model of another type": Wrong({"model": 5}, "model", ("5", "text")),
    "no messages": Wrong({"messages": MISSING}, "messages", ("messages",)),
    "empty messages": Wrong({"messages": []}, "messages", ("messages",)),
    "a message without a role": Wrong({"messages": [{"content": "x"}]}, "messages[0].role", ("role",)),
    "a role that is none": Wrong({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", ("king",)),
    "content of another type": Wrong({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", ("3",)),
    "an empty prompt": Wrong({"prompt": ""}, "prompt", ("empty",), base=COMPLETION),
    "an empty prompt of token IDs": Wrong({"prompt": []}, "prompt", ("empty",), base=COMPLETION),
    "a token ID out of range": Wrong({"prompt": [1, 512]}, "prompt", ("512", "index 1", "511"), base=COMPLETION),
    "a prompt that is too long": Wrong({"prompt": [1] * 5000}, "prompt", ("5000", "4096"), base=COMPLETION),
    "too many tokens to come": Wrong({"max_tokens": 4096}, "max_tokens", ("4096", "limit")),
    "no tokens to come": Wrong({"max_tokens": 0}, "max_tokens", ("0", "1")),
    "tokens of another type": Wrong({"max_tokens": "5"}, "max_tokens", ('"5" is not a whole number',)),
    "half a surrogate pair": Wrong({"stop": ["\ud83d"]}, "stop[0]", ("half a surrogate pair",)),
    "a temperature out of range": Wrong({"temperature": 3}, "temperature", ("3", "2")),
    "a negative temperature": Wrong({"temperature": -0.5}, "temperature", ("-0.5", "0")),
    "top_p out of range": Wrong({"top_p": 1.5}, "top_p", ("1.5", "1")),
    "a seed out of range": Wrong({"seed": 2**63}, "seed", (str(2**63),)),
    "an unknown parameter": Wrong({"temprature": 1}, "temprature", ("temprature",)),
    "an unsupported parameter": Wrong({"logprobs": True}, "logprobs", ("logprobs",)),
    "several choices": Wrong({"n": 3}, "n", ("3", "1")),
    "an unknown steering field": Wrong({"pdd": {"rout": "relay"}}, "pdd.rout", ("rout",)),
    "an unknown route": Wrong({"pdd": {"route": "north"}}, "pdd.route", ("north", "relay")),
    "a hand-off after less than nothing": Wrong(
        {"pdd": {"handoff_after_tokens": -1}}, "pdd.handoff_after_tokens", ("-1", "from 1")
    ),
}


@pytest.mark.anyio
async def test_wrong_requests_get_openai_errors_that_name_field_value_and_limit():
    async with live(packaged_topology("scripted")) as deployment:
        failures = [
            found for name, wrong in WRONG_REQUESTS.items() if (found := await refused(deployment, name, wrong))
        ]
        assert failures == [], "\n".join(failures)
        await check_bodies(deployment)
        await deployment.until_clean()
        assert all("Traceback" not in deployment.log(name) for name in deployment.names)
        assert all(role.restarts == 0 for role in deployment.deployment.roles)


async def refused(deployment: Live, name: str, wrong: Wrong) -> str | None:
    """What is wrong with the refusal, if anything."""
    body = {key: value for key, value in (wrong.base | wrong.fields).items() if value is not MISSING}
    path = "/v1/completions" if wrong.base is COMPLETION else "/v1/chat/completions"
    for stream in (False, True):
        async with (
            asyncio.timeout(5),
            deployment.http.post(deployment.url + path, json=body | {"stream": stream}) as reply,
        ):
            status, text = reply.status, await reply.text()
        problem = judge(wrong, status, text)
        if problem is not None:
            return f"{name}: {problem}: {status} {text[:300]}"
    return None


def judge(wrong: Wrong, status: int, text: str) -> str | None:
    error = json.loads(text).get("error")
    if error is None:
        return "it is no error"
    if status != wrong.status:
        return f"status is not {wrong.status}"
    if error["type"] != "invalid_request_error":
        return "another type"
    if error["param"] != wrong.param:
        return f"param is not {wrong.param}"
    missing = [words for words in wrong.said if words not in error["message"]]
    return f"the message lacks {missing}" if missing else None


async def check_bodies(deployment: Live) -> None:
    """What isn't even a request."""
    bodies = [b"{", b"", b"[]", b"null", b'{"model": "scripted", ', b"\xff\xfe", b'{"model": NaN}']
    for path in ("/v1/chat/completions", "/v1/completions"):
        for body in bodies:
            status, error = await post_bytes(deployment, path, body)
            assert (status, error["type"]) == (400, "invalid_request_error"), body
            assert error["message"]
    status, error = await post_bytes(deployment, "/v1/completions", io.BytesIO(b" " * (9 * 1024 * 1024)))
    assert status == 413
    assert str(8 * 1024 * 1024) in error["message"]
    status, error = await post_bytes(deployment, "/v1/embeddings", b"{}")
    assert status == 404
    assert "/v1/chat/completions" in error["message"]
    async with deployment.http.get(f"{deployment.url}/v1/chat/completions") as reply:
        assert reply.status == 405
        assert (await reply.json())["error"]["type"] == "invalid_request_error"


async def post_bytes(deployment: Live, path: str, body: bytes | io.BytesIO) -> tuple[int, dict]:
    timeout = aiohttp.ClientTimeout(total=5)
    headers = {"Content-Type": "application/json"}
    async with deployment.http.post(deployment.url + path, data=body, headers=headers, timeout=timeout) as reply:
        return reply.status, (await reply.json())["error"]


@pytest.mark.anyio
async def test_a_stranger_who_speaks_no_http_or_half_a_request_hurts_nobody():
    async with live(packaged_topology("scripted")) as deployment:
        ports = [deployment.topology.router.port]
        ports += [endpoint.port for endpoint in deployment.topology.endpoints()]
        link = deployment.topology.links[0]
        ports += [link.control_port, *link.forwards.values()]
        for port in ports:
            for noise in (b"\x00" * 64, b"GET / HTTP/1.1\r\n", b'{"type": "show"', b"PDD\0garbage" * 100):
                await make_noise(port, noise)
        async with deployment.http.post(f"{deployment.url}/v1/chat/completions", json=CHAT) as reply:
            assert reply.status == 200
        await deployment.until_clean()
        assert all(role.restarts == 0 for role in deployment.deployment.roles)
        for name in deployment.names:
            assert "Traceback" not in deployment.log(name), name


async def make_noise(port: int, noise: bytes) -> None:
    """Sends it and goes."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(noise)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    writer.close()
