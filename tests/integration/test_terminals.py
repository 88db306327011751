"""Commands as real processes, on terminals and pipes that can't show everything, and that go away."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdd import __version__
from pdd.core.request import FinishReason
from pdd.engine.catalog import find_model
from tests.support.fake_service import FakeService, Step
from tests.support.front_door import MODEL, front_door, saying
from tests.support.live import live, packaged_topology

pytestmark = pytest.mark.anyio

SAID = "na\u00efve \u2013 \u65e5\u672c \U0001f642"
NOWHERE = "nowhere-\u0436.toml"

_PLAIN_LOCALE = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ENCODINGS: Mapping[str, Mapping[str, str]] = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii:strict": {"PYTHONIOENCODING": "ascii:strict"},
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
    "LC_ALL=C": {"LC_ALL": "C", **_PLAIN_LOCALE},
    "LC_ALL=POSIX": {"LC_ALL": "POSIX", **_PLAIN_LOCALE},
}
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a process ended."""

    code: int
    out: bytes
    err: bytes

    def text(self, encoding: str) -> str:
        """All of stdout, every byte of which is in the stream's encoding."""
        return self.out.decode(encoding if encoding in {"utf-8", "latin-1"} else "ascii")


def environment_of(encoding: str) -> dict[str, str]:
    unset = ("PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LC_CTYPE", "LANG", "PDD_API_KEY")
    return {**{name: value for name, value in os.environ.items() if name not in unset}, **ENCODINGS[encoding]}


async def pdd(
    *arguments: str | bytes,
    encoding: str = "utf-8",
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    **environment: str,
) -> Done:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pdd.cli", *arguments),
        env={**environment_of(encoding), **environment},
        stdout=stdout,
        stderr=stderr,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(code=process.returncode, out=out or b"", err=err or b"")


# What can't be shown ------------------------------------------------------------------------------------------------------


@every_encoding
async def test_an_answer_is_shown_as_far_as_the_terminal_can(encoding: str) -> None:
    async with front_door(FakeService(script=saying(SAID))) as door:
        done = await pdd("ask", "hello", "--url", door.url, encoding=encoding)
    assert (done.code, done.err) == (0, b"")
    shown = {"utf-8": SAID, "latin-1": "na\u00efve - ?? ?"}.get(encoding, "na?ve - ?? ?")
    first, *rest = done.text(encoding).split("\n")
    assert first.replace("[P]", "").replace("[RLD]", "").replace("[MD]", "").strip() == shown
    assert any("tokens" in line for line in rest)


@every_encoding
async def test_a_timeline_can_be_read_without_its_own_signs(encoding: str) -> None:
    async with front_door(FakeService(script=saying(SAID))) as door:
        done = await pdd("ask", "hello", "--url", door.url, encoding=encoding)
    _, *rest = done.text(encoding).split("\n")
    assert not any("?" in line for line in rest)
    (row,) = (line for line in rest if line.strip().startswith("MD main decode"))
    tokens, idle = ("\u25aa", "\u00b7") if encoding == "utf-8" else ("*", "\u00b7" if encoding == "latin-1" else ".")
    assert tokens in row
    assert idle in row


@every_encoding
async def test_json_is_the_same_json_whatever_the_stream_can_encode(encoding: str) -> None:
    async with front_door(FakeService(script=saying(SAID))) as door:
        done = await pdd("ask", "hello", "--url", door.url, "--json", encoding=encoding)
    assert (done.code, done.err) == (0, b"")
    assert json.loads(done.out.decode("ascii"))["text"] == SAID


@every_encoding
async def test_an_error_names_what_can_t_be_shown(encoding: str, tmp_path: Path) -> None:
    given = ("up", NOWHERE, "--state-dir", str(tmp_path))
    told, shown = await pdd(*given, "--json", encoding=encoding), await pdd(*given, encoding=encoding)
    assert (told.code, told.err) == (2, b"")
    assert json.loads(told.out.decode("ascii"))["error"]["message"].startswith(f"{NOWHERE}: No such file")
    assert (shown.code, shown.out, shown.err.count(b"\n")) == (2, b"", 1)
    expected = NOWHERE.encode() if encoding == "utf-8" else NOWHERE.encode("ascii", "backslashreplace")
    assert shown.err.startswith(b"pdd: " + expected + b": No such file")


@every_encoding
async def test_a_role_s_log_is_utf_8(encoding: str) -> None:
    done = await pdd("router", "--topology", NOWHERE, encoding=encoding)
    assert done.code == 2
    assert NOWHERE in done.err.decode("utf-8")


@every_encoding
async def test_every_kind_of_command_ends_as_ever(encoding: str, tmp_path: Path) -> None:
    version = await pdd("--version", encoding=encoding)
    assert (version.code, version.out) == (0, f"pdd {__version__}\n".encode())
    ran = await pdd("sim", "run", "crossing", "--requests", "20", encoding=encoding)
    assert ran.code == 0
    assert b"Error" not in ran.err
    assert "?" not in ran.text(encoding)
    status = await pdd("status", "--state-dir", str(tmp_path), encoding=encoding)
    assert (status.code, status.out) == (1, b"")


# What isn't text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "LC_ALL=C"])
async def test_a_prompt_of_bytes_that_are_no_text_is_bad_input(encoding: str) -> None:
    async with front_door(FakeService(script=saying("x"))) as door:
        for flags, name in (((b"caf\xe9",), "PROMPT"), (("x", "--system", b"\xff"), "--system")):
            done = await pdd("ask", *flags, "--url", door.url, encoding=encoding)
            assert (done.code, done.out) == (2, b"")
            assert done.err.count(b"\n") == 1
            assert name.encode() in done.err
            assert b"not UTF-8" in done.err
        done = await pdd("ask", b"caf\xe9", "--url", door.url, "--json", encoding=encoding)
        assert done.code == 2
        assert "not UTF-8" in json.loads(done.out)["error"]["message"]
    assert door.service.requests == []


@every_encoding
async def test_a_prompt_in_utf_8_arrives_whatever_the_locale(encoding: str) -> None:
    service = FakeService(script=saying("x"))
    async with front_door(service) as door:
        done = await pdd("ask", SAID, "--url", door.url, encoding=encoding)
    assert done.code == 0
    assert SAID in door.tokenizer.decode(service.requests[0].prompt)


@pytest.mark.parametrize("encoding", ["utf-8", "LC_ALL=C"])
async def test_a_file_whose_name_is_no_text_is_found_and_named(encoding: str, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    (tmp_path / os.fsdecode(b"caf\xe9.jsonl")).write_text("{}\n", encoding="utf-8")
    found = await pdd("sim", "run", "crossing", "--workload", folder + b"/caf\xe9.jsonl", "--json", encoding=encoding)
    message = json.loads(found.out)["error"]["message"]
    assert found.code == 2
    assert "caf\ufffd.jsonl:1:" in message
    missing = await pdd("sim", "run", "crossing", "--workload", folder + b"/th\xe9.jsonl", encoding=encoding)
    assert missing.code == 2
    assert b"is no file" in missing.err


@pytest.mark.parametrize("encoding", ["utf-8", "LC_ALL=C"])
async def test_a_state_directory_whose_name_is_no_text_is_refused(encoding: str, tmp_path: Path) -> None:
    done = await pdd("up", "scripted", "--state-dir", os.fsencode(tmp_path) + b"/\xff", encoding=encoding)
    assert (done.code, done.out) == (2, b"")
    assert b"--state-dir" in done.err
    assert b"not UTF-8" in done.err


# Who doesn't read on ------------------------------------------------------------------------------------------------------


@contextmanager
def pipe_without_a_reader() -> Generator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@contextmanager
def full_disk() -> Generator[int]:
    full = os.open("/dev/full", os.O_WRONLY)
    yield full
    os.close(full)


buffered_or_not = pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
outputs = pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("version",),
        ("ask", "--help"),
        ("version", "--json"),
        ("sim", "run", "crossing", "--requests", "9"),
    ],
    ids=" ".join,
)


@outputs
@buffered_or_not
async def test_a_pipe_that_nobody_reads_is_no_error(arguments: tuple[str, ...], unbuffered: Mapping[str, str]) -> None:
    with pipe_without_a_reader() as pipe:
        done = await pdd(*arguments, stdout=pipe, **unbuffered)
    assert done.code == 0
    assert b"rror" not in done.err


@outputs
@buffered_or_not
async def test_output_that_gets_nowhere_is_a_failure(arguments: tuple[str, ...], unbuffered: Mapping[str, str]) -> None:
    with full_disk() as full:
        done = await pdd(*arguments, stdout=full, **unbuffered)
    assert done.code == 1
    *progress, last = done.err.splitlines()
    assert last == b"pdd: the output can't be written: No space left on device"
    assert not any(b"rror" in line for line in progress)


async def test_a_reader_that_leaves_in_mid_answer_is_no_error() -> None:
    ids = find_model(MODEL).load_text().tokenizer.encode("Once upon a time ", add_special_tokens=False).ids
    left = asyncio.Event()
    script = [
        Step(tokens=ids),
        Step(gate=left),
        *(Step(tokens=ids) for _ in range(50)),
        Step(finish=FinishReason.LENGTH),
    ]
    reader, writer = os.pipe()
    async with front_door(FakeService(script=lambda _: script)) as door, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(pdd("ask", "hello", "--url", door.url, stdout=writer))
        assert await asyncio.to_thread(os.read, reader, 1) == b" "
        os.close(reader)
        left.set()
    os.close(writer)
    assert (asking.result().code, asking.result().err) == (0, b"")


async def test_a_failure_stays_one_though_nobody_reads_of_it() -> None:
    with pipe_without_a_reader() as pipe:
        done = await pdd("up", NOWHERE, "--json", stdout=pipe)
        both = await pdd("up", NOWHERE, stdout=pipe, stderr=pipe)
    assert (done.code, done.err) == (2, b"")
    assert both.code == 2


async def test_a_process_without_streams_runs_to_its_end() -> None:
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-m", "pdd.cli", "version", "--json"
    )
    assert await process.wait() == 0


# Against a deployment -----------------------------------------------------------------------------------------------------


async def test_what_runs_is_shown_and_asked_on_any_terminal() -> None:
    async with live(packaged_topology("scripted")) as deployment:
        place = ("--state-dir", str(deployment.deployment.run.path.parent))
        for encoding in ("ascii", "LC_ALL=C"):
            for arguments in (
                ("status", *place),
                ("link", "wan", *place),
                (
                    "ask",
                    SAID,
                    "--url",
                    deployment.url,
                    "--max-tokens",
                    "40",
                    "--route",
                    "relay",
                    "--handoff-after",
                    "4",
                ),
            ):
                done = await pdd(*arguments, encoding=encoding)
                assert (done.code, done.err) == (0, b"")
                assert done.out.isascii()
                told = await pdd(*arguments, "--json", encoding=encoding)
                assert json.loads(told.out.decode("ascii"))
