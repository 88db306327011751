"""The files of a running deployment."""

import os

import pytest

from pdd.cli.deploy.state import (
    RoleKind,
    RoleStatus,
    RunStatus,
    find_live_run,
    live_runs,
    run_directory,
)
from pdd.core.errors import ConfigError, Unavailable


def test_a_directory_is_live_while_it_is_held(tmp_path):
    run = run_directory(tmp_path, "one")
    assert not run.is_live()
    with run.hold():
        assert run.is_live()
        assert live_runs(tmp_path) == (run,)
        assert run.lock_file.read_text() == f"{os.getpid()}\n"
    assert not run.is_live()
    assert live_runs(tmp_path) == ()


def test_a_directory_is_held_once_and_is_its_owners_only(tmp_path):
    run = run_directory(tmp_path / "root", "one")
    with run.hold():
        assert run.path.stat().st_mode & 0o077 == 0
        with pytest.raises(ConfigError, match=rf"'one' is already running here \(pid {os.getpid()}\)"), run.hold():
            pass
    with run.hold():
        pass


def test_the_only_live_run_is_found_without_a_name(tmp_path):
    one, two = run_directory(tmp_path, "one"), run_directory(tmp_path, "two")
    with pytest.raises(Unavailable, match="nothing runs below"):
        find_live_run(tmp_path, None)
    with one.hold():
        assert find_live_run(tmp_path, None) == one
        with pytest.raises(ConfigError, match=r"'two' does not run below .*; running: one"):
            find_live_run(tmp_path, "two")
        with two.hold():
            assert find_live_run(tmp_path, "two") == two
            with pytest.raises(ConfigError, match=r"several.*one, two.*--run NAME"):
                find_live_run(tmp_path, None)


def test_a_status_is_read_back_and_a_damaged_one_is_none(tmp_path):
    run = run_directory(tmp_path, "one")
    run.path.mkdir()
    assert run.read_status() is None
    status = RunStatus(topology="one", pid=1, roles=(RoleStatus(name="a", kind=RoleKind.NODE, last_exit="x"),))
    run.write_status(status)
    assert run.read_status() == status
    run.status_file.write_text('{"topology"')
    assert run.read_status() is None


def test_a_socket_path_that_is_too_long_is_refused_before_it_is_bound(tmp_path):
    assert run_directory(tmp_path, "one").node_socket("node").name == "node.sock"
    with pytest.raises(ConfigError, match=r"--state-dir: .*107 bytes"):
        run_directory(tmp_path / ("x" * 100), "one").node_socket("node")


def test_logs_of_the_previous_run_are_kept_and_older_ones_go(tmp_path):
    run = run_directory(tmp_path, "one")
    with run.hold():
        for text in ("first", "second", "third"):
            run.set_old_logs_aside()
            run.log_file("a").write_text(text)
        run.set_old_logs_aside()
    assert {log.name: log.read_text() for log in (run.path / "logs").iterdir()} == {"a.old.log": "third"}


def test_a_folder_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't make"), run_directory(tmp_path / "file", "one").hold():
        pass


def test_a_lock_that_is_no_file_is_refused(tmp_path):
    run = run_directory(tmp_path, "one")
    run.lock_file.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"--state-dir: can't write .*up\.lock: Is a directory"), run.hold():
        pass
