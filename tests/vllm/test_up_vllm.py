"""vLLM engines under the supervisor: they serve, die whole, and come back alone."""

import os
import signal
from pathlib import Path

import pytest

from pdd.cli.deploy.forking import ForkServers
from pdd.core.errors import ConfigError
from pdd.core.request import Role, Route
from tests.support.live import (
    ENGINES,
    QUICK_RESTARTS,
    Live,
    live,
    packaged_topology,
    question_of,
    token_prompt,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


def ask(deployment: Live, salt: str, **pins: object):
    return deployment.ask(question_of(deployment.topology, token_prompt(200), 40, salt=salt, seed=3, **pins))


def processes_of(group: int) -> list[int]:
    """Every live process of a role's group."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def fork_server_of(deployment: Live) -> int:
    """The one process that is nobody's role: it runs the fork server's module and leads its own group."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(command.parent.name)
        try:
            is_server = b"pdd.cli.deploy.fork_server" in command.read_bytes() and parent_of(pid) == os.getpid()
        except OSError:
            continue
        if is_server and pid not in {deployment.pid(name) for name in ENGINES}:
            return pid
    raise AssertionError("there is no fork server")


async def test_an_answer_that_relays_is_the_one_that_does_not(vllm_deployment: Live):
    relayed = await ask(vllm_deployment, "relayed", route=Route.RELAY, handoff_after_tokens=10)
    direct = await ask(vllm_deployment, "direct", route=Route.DIRECT)
    by_role = relayed.report.tokens_by_role
    assert by_role[Role.RELAY_DECODE] >= 1
    assert by_role[Role.MAIN_DECODE] >= 1
    assert direct.report.tokens_by_role.get(Role.RELAY_DECODE, 0) == 0
    assert relayed.token_ids == direct.token_ids


async def test_an_engine_still_logs_once_vllm_has_changed_the_root_loggers_level(vllm_deployment: Live):
    for name in ENGINES:
        assert f"engine_ready engine={name} kind=vllm" in vllm_deployment.log(name)


async def test_a_killed_engine_ends_whole_and_comes_back_alone(vllm_deployment: Live):
    before = {name: vllm_deployment.pid(name) for name in vllm_deployment.names}
    restarts = vllm_deployment.role("MD").restarts
    answer = await ask(vllm_deployment, "before", route=Route.DIRECT)
    assert len(processes_of(before["MD"])) > 1
    vllm_deployment.kill("MD")
    await vllm_deployment.until_back("MD", restarts=restarts + 1)
    assert processes_of(before["MD"]) == []
    assert vllm_deployment.role("MD").last_exit == "killed by SIGKILL"
    await vllm_deployment.until_healthy()
    again = await ask(vllm_deployment, "after", route=Route.DIRECT)
    assert again.token_ids == answer.token_ids
    after = {name: vllm_deployment.pid(name) for name in vllm_deployment.names}
    assert {name for name in before if before[name] != after[name]} == {"MD"}


@pytest.mark.parametrize("victim", [1, -1], ids=["core", "last"])
async def test_an_engine_that_loses_a_process_of_its_own_is_started_again(vllm_deployment: Live, victim: int):
    restarts = vllm_deployment.role("RLD").restarts
    members = [pid for pid in processes_of(vllm_deployment.pid("RLD")) if b"VLLM" in command_of(pid)]
    os.kill(sorted(members)[victim], signal.SIGKILL)
    await vllm_deployment.until_back("RLD", restarts=restarts + 1)
    await vllm_deployment.until_healthy()


async def test_the_death_of_the_fork_server_harms_nobody_and_it_is_started_again(vllm_deployment: Live):
    before = {name: vllm_deployment.pid(name) for name in vllm_deployment.names}
    restarts = vllm_deployment.role("P").restarts
    os.kill(fork_server_of(vllm_deployment), signal.SIGKILL)
    await ask(vllm_deployment, "without", route=Route.DIRECT)
    assert {name: vllm_deployment.pid(name) for name in vllm_deployment.names} == before
    vllm_deployment.kill("P")
    await until(lambda: vllm_deployment.role("P").restarts > restarts, "the engine's restart")
    await until(lambda: vllm_deployment.role("P").phase.value == "ready", "a new fork server's engine", 120.0)
    await vllm_deployment.until_healthy()
    await ask(vllm_deployment, "with", route=Route.DIRECT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cache_block_tokens": 16}, "16"),
        ({"vllm_arguments": ("--no-such-flag",)}, "--no-such-flag"),
        ({"vllm_arguments": ("--no-enable-prefix-caching",)}, "remove --no-enable-prefix-caching"),
    ],
    ids=["block length", "flag", "what the connector can't do"],
)
async def test_what_vllm_or_the_connector_refuses_stops_everything_and_names_the_engine(
    forks: ForkServers, changes, said
):
    topology = packaged_topology("mixed-tiny", MD=changes)
    with pytest.raises(ExceptionGroup) as stopped:
        async with live(topology, timing=QUICK_RESTARTS, forks=forks):
            pytest.fail("it started")
    (error,) = stopped.value.exceptions
    assert isinstance(error, ConfigError)
    assert str(error).startswith("engine 'MD': vLLM")
    assert said in str(error)
