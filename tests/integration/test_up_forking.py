"""Roles that are forked from a process which holds their imports: everything that is so of executed ones is
so of them.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from pdd.cli.deploy.forking import ForkPatience, ForkServer, Preload
from pdd.cli.deploy.state import Phase
from pdd.cli.deploy.supervisor import FORK_SERVER_LOG
from pdd.core.units import Seconds
from tests.integration.test_up_supervisor import FAKE_ROLE, is_alive, num_descriptors, role, supervised

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
PRELOAD = Preload(module="colorsys", environment={"PDD_TEST_PRELOADED": "yes", "PDD_TEST_OWN": "no"})


def forked(name, *arguments, preload=PRELOAD, stage=0):
    return replace(role(name, *arguments, stage=stage), preload=preload)


def fork_server():
    """This process's child that runs the fork server's module and is no role: those name a behaviour."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
            session = os.getsid(int(folder.name))
        except OSError:
            continue
        if parent == os.getpid() and b"fork_server" in command and num_sockets(folder) and session == int(folder.name):
            return int(folder.name)
    raise AssertionError("there is no fork server")


def num_sockets(folder):
    return sum(each.readlink().name.startswith("socket:") for each in (folder / "fd").iterdir())


async def test_it_is_ready_and_stops_like_any_other_and_holds_the_imports(tmp_path, monkeypatch):
    monkeypatch.setenv("PDD_TEST_OWN", "mine")
    async with supervised(tmp_path, forked("a", "tell-environment"), role("b", "ready")) as (supervisor, _, run):
        await supervisor.wait_until_ready()
        pids = [status.pid for status in supervisor.statuses]
        assert [os.getsid(pid) for pid in pids] == pids
    assert not any(is_alive(pid) for pid in pids)
    assert run.log_file("a").read_text() == "PRELOADED=yes OWN=mine\nHELD=True INPUT=''\n"


async def test_how_it_ended_is_known_and_it_is_started_again(tmp_path):
    async with supervised(tmp_path, forked("a", "ready"), forked("b", "ready")) as (supervisor, watch, _):
        await supervisor.wait_until_ready()
        before = {status.name: status.pid for status in supervisor.statuses}
        os.kill(before["a"], signal.SIGKILL)
        await watch.until(lambda _: watch.count("a", Phase.READY) == 2)
        after = {status.name: status for status in supervisor.statuses}
    assert (after["a"].restarts, after["a"].last_exit) == (1, "killed by SIGKILL")
    assert (after["b"].restarts, after["b"].pid) == (0, before["b"])


async def test_its_exit_code_is_known(tmp_path):
    async with supervised(tmp_path, forked("a", "die-at-start")) as (supervisor, watch, run):
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) == 2)
        assert supervisor.statuses[0].last_exit == "exited with code 7"
        assert "last words" in run.log_file("a").read_text()


async def test_the_death_of_what_it_was_forked_from_harms_nobody(tmp_path):
    async with supervised(tmp_path, forked("a", "ready"), forked("b", "ready")) as (supervisor, watch, _):
        await supervisor.wait_until_ready()
        first, a = fork_server(), supervisor.statuses[0].pid
        os.kill(first, signal.SIGKILL)
        os.kill(a, signal.SIGKILL)
        await watch.until(lambda _: watch.count("a", Phase.READY) == 2)
        assert fork_server() != first
        assert watch.count("b", Phase.RESTARTING) == 0


async def test_imports_that_fail_are_reported_and_tried_again(tmp_path):
    missing = Preload(module="there_is_no_such_module", environment={})
    async with supervised(tmp_path, forked("a", "ready", preload=missing)) as (supervisor, watch, run):
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) == 2)
        reason = supervisor.statuses[0].last_exit
    log = run.log_file(FORK_SERVER_LOG)
    assert reason == f"can't be started: the process that imports there_is_no_such_module has died; its log: {log}"
    assert "ModuleNotFoundError" in log.read_text()


@contextlib.asynccontextmanager
async def orders_to(server, tmp_path):
    """Yields what has a role forked; its process is killed in the end, as all of them would be with their lifeline."""
    lifeline, write_end = os.pipe()
    processes = []

    async def fork():
        reports, ready = os.pipe()
        try:
            with (tmp_path / "role-log").open("ab") as log:
                arguments = (sys.executable, str(FAKE_ROLE), "ready")
                processes.append(await server.fork(arguments, lifeline=lifeline, ready=ready, log=log))
        finally:
            os.close(reports)
            os.close(ready)

    try:
        yield fork
    finally:
        os.close(write_end)
        os.close(lifeline)
        for process in processes:
            await process.wait()
        await server.close()


async def test_one_that_hangs_is_given_up_and_another_started(tmp_path):
    server = ForkServer(PRELOAD, tmp_path / "log", patience=ForkPatience(first=Seconds(20.0), later=Seconds(0.2)))
    async with orders_to(server, tmp_path) as fork:
        await fork()
        first = fork_server()
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(OSError, match=r"imports colorsys has forked nothing within 0.2 s; its log: .*log"):
            await fork()
        assert not is_alive(first)
        await fork()
        assert fork_server() != first


async def test_imports_that_hang_are_given_up(tmp_path):
    (tmp_path / "pdd_test_hangs.py").write_text("import signal; signal.pause()")
    preload = Preload(module="pdd_test_hangs", environment={"PYTHONPATH": str(tmp_path)})
    server = ForkServer(preload, tmp_path / "log", patience=ForkPatience(first=Seconds(0.5)))
    async with orders_to(server, tmp_path) as fork:
        with pytest.raises(OSError, match=r"has forked nothing within 0.5 s"):
            await fork()


async def test_what_it_forked_as_it_died_is_known(tmp_path):
    dies = "import os, signal; os.waitpid = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
    (tmp_path / "pdd_test_dies.py").write_text(dies)
    preload = Preload(module="pdd_test_dies", environment={"PYTHONPATH": str(tmp_path)})
    async with orders_to(ForkServer(preload, tmp_path / "log"), tmp_path) as fork:
        await fork()


async def test_one_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    async with supervised(tmp_path, forked("a", "stubborn")) as (supervisor, _, _):
        await supervisor.wait_until_ready()
        pid = supervisor.statuses[0].pid
    assert not is_alive(pid)


async def test_no_descriptor_and_no_process_is_left(tmp_path):
    before = num_descriptors()
    async with supervised(tmp_path, forked("a", "die-when-ready"), forked("b", "ready")) as (_, watch, _):
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) >= 2)
        server = fork_server()
    assert num_descriptors() <= before + 1
    assert not is_alive(server)


@pytest.mark.parametrize("make", [role, forked])
async def test_what_a_dead_role_leaves_of_its_group_ends_with_it(tmp_path, make):
    mark = tmp_path / "mark"
    async with supervised(tmp_path, make("a", "child-and-ready", "--mark", mark)) as (supervisor, watch, _):
        await supervisor.wait_until_ready()
        child = int(mark.read_text())
        os.kill(supervisor.statuses[0].pid, signal.SIGKILL)
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) == 1)
        assert not is_alive(child)
        await watch.until(lambda _: watch.count("a", Phase.READY) == 2)
        last = int(mark.read_text())
    assert not is_alive(last)


@pytest.mark.parametrize("make", [role, forked])
async def test_shared_memory_that_a_dead_role_leaves_is_given_back(tmp_path, make):
    mark = tmp_path / "mark"
    async with supervised(tmp_path, make("a", "shared-memory-and-ready", "--mark", mark)) as (supervisor, watch, _):
        await supervisor.wait_until_ready()
        memory = mark.read_text()
        assert is_in_shared_memory(memory)
        os.kill(supervisor.statuses[0].pid, signal.SIGKILL)
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) == 1)
        assert not is_in_shared_memory(memory)
        await watch.until(lambda _: watch.count("a", Phase.READY) == 2)
        last = mark.read_text()
    assert not is_in_shared_memory(last)


def is_in_shared_memory(name):
    return Path("/dev/shm", name).exists()


@pytest.mark.parametrize("make", [role, forked])
async def test_what_it_leaves_does_not_hide_that_it_died_before_it_was_ready(tmp_path, make):
    async with supervised(tmp_path, make("a", "child-then-die", "--mark", tmp_path / "mark")) as (supervisor, watch, _):
        await watch.until(lambda _: watch.count("a", Phase.RESTARTING) == 2)
        assert supervisor.statuses[0].last_exit == "killed by SIGKILL"


def test_neither_it_nor_its_children_nor_what_it_was_forked_from_outlive_a_supervisor_that_is_killed(tmp_path):
    mark = tmp_path / "mark"
    program = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from pdd.cli.deploy.forking import ForkPatience, ForkServer, Preload
        from pdd.cli.deploy.state import RoleKind, RunDirectory
        from pdd.cli.deploy.supervisor import RoleCommand, Supervisor
        command = RoleCommand(name="a", kind=RoleKind.NODE, stage=0, preload=Preload(module="colorsys", environment={{}}),
                              arguments=(sys.executable, {str(FAKE_ROLE)!r}, "child-and-ready", "--mark", {str(mark)!r}))
        supervisor = Supervisor((command,), RunDirectory(path=Path({str(tmp_path)!r})),
                                on_change=lambda status: print(status.pid, flush=True))
        asyncio.run(supervisor.run())
    """)
    (tmp_path / "logs").mkdir()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as supervisor:
        pid = int(supervisor.stdout.readline())
        assert int(supervisor.stdout.readline()) == pid  # now it is ready
        members = {pid, int(mark.read_text()), *children_of(supervisor.pid)}
        assert len(members) == 3
        descriptors = [os.pidfd_open(member) for member in members]
        supervisor.kill()
    for descriptor in descriptors:
        wait_for_end(descriptor)
        os.close(descriptor)


def children_of(pid):
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(int(stat.parent.name))
        except OSError:
            continue
    return found


def wait_for_end(descriptor):
    poller = select.poll()
    poller.register(descriptor)
    assert poller.poll(10_000), "it outlived its supervisor"
