"""The supervisor with real processes: readiness, restarts, refusals, stopping, and no orphans."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pdd.cli.deploy.state import Phase, RoleKind, RunDirectory
from pdd.cli.deploy.supervisor import RoleCommand, Supervisor, Timing
from pdd.core.errors import ConfigError

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
FAKE_ROLE = Path(__file__).with_name("fake_role.py")
QUICK = Timing(first_pause=0.05, longest_pause=0.2, stable_after=30.0, ready_within=20.0, stop_grace=2.0)


def role(name, *arguments, stage=0):
    return RoleCommand(
        name=name, kind=RoleKind.NODE, stage=stage, arguments=(sys.executable, str(FAKE_ROLE), *map(str, arguments))
    )


class Watch:
    """What the supervisor reported, and a way to wait for it."""

    def __init__(self):
        self.seen = []
        self._news = asyncio.Event()

    def __call__(self, status):
        self.seen.append(status)
        self._news.set()

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition(self.seen):
                self._news.clear()
                await self._news.wait()

    def count(self, name, phase):
        return sum(status.name == name and status.phase is phase for status in self.seen)


@asynccontextmanager
async def supervised(tmp_path, *commands, timing=QUICK):
    run = RunDirectory(path=tmp_path)
    (tmp_path / "logs").mkdir()
    watch = Watch()
    supervisor = Supervisor(commands, run, on_change=watch, timing=timing)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(supervisor.run())
        try:
            yield supervisor, watch, run
        finally:
            task.cancel()


def is_alive(pid):
    """Whether the process still runs; one that nobody has reaped yet doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_every_role_becomes_ready_and_stops_with_the_supervisor(tmp_path):
    async with supervised(tmp_path, role("a", "ready"), role("b", "ready")) as (supervisor, _, run):
        await supervisor.wait_until_ready()
        pids = [status.pid for status in supervisor.statuses]
        assert [status.phase for status in supervisor.statuses] == [Phase.READY] * 2
        assert all(is_alive(pid) for pid in pids)
        assert run.read_status().roles == supervisor.statuses
    assert not any(is_alive(pid) for pid in pids)
    assert [status.phase for status in run.read_status().roles] == [Phase.STOPPED] * 2


async def test_a_later_stage_starts_when_the_earlier_one_is_ready(tmp_path):
    commands = (role("late", "ready", stage=1), role("early", "ready", stage=0))
    async with supervised(tmp_path, *commands) as (supervisor, watch, _):
        await supervisor.wait_until_ready()
    order = [(status.name, status.phase) for status in watch.seen]
    assert order.index(("early", Phase.READY)) < order.index(("late", Phase.STARTING))


async def test_a_killed_role_is_started_again_and_the_others_are_left_alone(tmp_path):
    async with supervised(tmp_path, role("a", "ready"), role("b", "ready")) as (supervisor, watch, _):
        await supervisor.wait_until_ready()
        before = {status.name: status.pid for status in supervisor.statuses}
        os.kill(before["a"], signal.SIGKILL)
        await watch.until(lambda _: watch.count("a", Phase.READY) == 2)
        after = {status.name: status for status in supervisor.statuses}
    assert after["a"].pid != before["a"]
    assert (after["a"].restarts, after["a"].last_exit) == (1, "killed by SIGKILL")
    assert (after["b"].restarts, after["b"].pid) == (0, before["b"])


async def test_a_role_that_keeps_dying_is_started_again_and_again(tmp_path):
    async with supervised(tmp_path, role("a", "die-at-start")) as (supervisor, watch, run):
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) == 3)
        assert supervisor.statuses[0].last_exit == "exited with code 7"
        assert run.log_file("a").read_text().count("last words") >= 3


async def test_a_role_that_is_not_ready_in_time_is_killed_and_started_again(tmp_path):
    timing = Timing(first_pause=0.05, ready_within=1.0, stop_grace=2.0)
    async with supervised(tmp_path, role("a", "silent"), timing=timing) as (_, watch, _):
        await watch.until(lambda _: watch.count("a", Phase.STARTING) == 2)
        first = watch.seen[0].pid
        assert "not ready within 1 s" in next(s.last_exit for s in watch.seen if s.phase is Phase.RESTARTING)
        assert not is_alive(first)


async def test_a_refused_configuration_stops_everything_and_says_why(tmp_path):
    pids = []
    with pytest.raises(ExceptionGroup) as stopped:
        async with supervised(tmp_path, role("good", "ready"), role("bad", "refuse")) as (_, watch, _):
            await watch.until(lambda _: False)
    pids = {status.pid for status in watch.seen if status.pid is not None}
    (error,) = stopped.value.exceptions
    assert isinstance(error, ConfigError)
    assert str(error) == "node 'bad': key = 1: it must be 2"
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    assert watch.count("bad", Phase.REFUSED) == 1
    assert watch.count("bad", Phase.STARTING) == 1


async def test_a_role_that_was_ready_before_is_started_again_even_if_it_refuses(tmp_path):
    mark = tmp_path / "mark"
    async with supervised(tmp_path, role("a", "ready-then-refuse", "--mark", mark)) as (supervisor, watch, _):
        await supervisor.wait_until_ready()
        os.kill(supervisor.statuses[0].pid, signal.SIGKILL)
        await watch.until(lambda _: watch.count("a", Phase.READY) == 2)
        reasons = [s.last_exit for s in watch.seen if s.phase is Phase.RESTARTING]
    assert reasons == ["killed by SIGKILL", "port = 1: in use"]


async def test_a_role_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    timing = Timing(stop_grace=0.5)
    async with supervised(tmp_path, role("a", "stubborn"), timing=timing) as (supervisor, _, _):
        await supervisor.wait_until_ready()
        pid = supervisor.statuses[0].pid
        began = time.monotonic()
    assert 0.4 < time.monotonic() - began < 5.0
    assert not is_alive(pid)


async def test_a_program_that_is_not_there_or_a_log_that_cannot_be_written_is_tried_again(tmp_path):
    missing = RoleCommand(name="a", kind=RoleKind.NODE, stage=0, arguments=(str(tmp_path / "nothing"),))
    async with supervised(tmp_path, missing) as (supervisor, watch, run):
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) == 1)
        run.log_file("a").unlink()
        run.log_file("a").parent.rmdir()
        run.status_file.unlink()
        run.status_file.mkdir()
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) == 3)
        assert "can't be started" in supervisor.statuses[0].last_exit


async def test_no_descriptor_is_left_open(tmp_path):
    before = num_descriptors()
    async with supervised(tmp_path, role("a", "die-when-ready"), role("b", "ready")) as (_, watch, _):
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) >= 2)
    assert num_descriptors() <= before + 1


@pytest.mark.parametrize("behaviour", ["ready", "stubborn", "silent"])
def test_no_role_outlives_a_supervisor_that_is_killed(tmp_path, behaviour):
    program = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from pdd.cli.deploy.state import RoleKind, RunDirectory
        from pdd.cli.deploy.supervisor import RoleCommand, Supervisor
        command = RoleCommand(name="a", kind=RoleKind.NODE, stage=0,
                              arguments=(sys.executable, {str(FAKE_ROLE)!r}, {behaviour!r}))
        supervisor = Supervisor((command,), RunDirectory(path=Path({str(tmp_path)!r})),
                                on_change=lambda status: print(status.pid, flush=True))
        asyncio.run(supervisor.run())
    """)
    (tmp_path / "logs").mkdir()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as supervisor:
        pid = int(supervisor.stdout.readline())
        assert is_alive(pid)
        if behaviour != "silent":
            assert int(supervisor.stdout.readline()) == pid  # now it is ready
        supervisor.kill()
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
            pytest.fail(f"role {pid} outlived its supervisor")
