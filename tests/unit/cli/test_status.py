"""What ``pdd status`` prints: a line a role where 80 columns are enough, and everything that is amiss."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from pdd.cli.deploy.state import Phase, RoleKind, RoleStatus, RunDirectory
from pdd.cli.deploy.status import print_table
from pdd.cli.topology.file import load_topology
from pdd.transport.emulate_control import LinkCondition, LinkState

TOPOLOGY = load_topology("default")
RUN = RunDirectory(path=Path("/run/user/1000/pdd/default"))
NODE = {
    "held_blocks": 10434,
    "capacity_blocks": 11650,
    "leased_blocks": 0,
    "reserved_blocks": 0,
    "orders": 0,
    "sent_bytes": {"node-md": 281_300_000, "node-rld": 1_000_000},
    "received_bytes": {"node-p": 1_950},
}
LINK = LinkState(
    name="wan",
    condition=LinkCondition.UP,
    rate_bits_per_s=20e6,
    delay_s=0.015,
    jitter_s=0.0,
    connections=2,
    sent_bytes={"A>B": 28_300_000, "B>A": 1_950},
)
HEALTH = {
    "status": "ok",
    "roles": {role: {"up": 1, "configured": 1} for role in ("prefill", "relay_decode", "main_decode")},
}
ENGINE = {"model": "smollm2-135m-instruct"}
WELL = (
    *((RoleKind.NODE, node.name, NODE) for node in TOPOLOGY.nodes),
    (RoleKind.WAN, "wan", msgspec.to_builtins(LINK)),
    *((RoleKind.ENGINE, engine.name, ENGINE) for engine in TOPOLOGY.engines),
    (RoleKind.ROUTER, "router", HEALTH),
)


def shown(*rows, width=80):
    roles = tuple(row[0] for row in rows)
    out = io.StringIO()
    print_table(Console(file=out, width=width), RUN, TOPOLOGY, roles, tuple(row[1] for row in rows))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def role(kind, name, **fields):
    return RoleStatus(kind=kind, name=name, **{"phase": Phase.READY, "pid": 1234567} | fields)


@pytest.mark.parametrize("width", [80, 100])
def test_each_role_takes_one_line(width):
    lines = shown(*((role(kind, name), found) for kind, name, found in WELL), width=width)
    assert lines[0] == (
        "default: smollm2-135m-instruct at http://127.0.0.1:8000/v1, files in /run/user/1000/pdd/default"
    )
    assert lines[1].split() == ["role", "name", "phase", "pid"]
    assert [line.split()[:4] for line in lines[2:]] == [[kind, name, "ready", "1234567"] for kind, name, _ in WELL]
    said = [line.split(maxsplit=4)[4] for line in lines[2:]]
    assert said[0] == "10434/11650 blocks, sent 282 MB, got 1.95 KB"
    assert said[3] == "20 Mbit/s, 15 ms, A>B 28.3 MB, B>A 1.95 KB"
    assert said[5] == "relay decode in A, at node-rld"
    assert said[7] == "ok, engines up: 1/1 P, 1/1 RLD, 1/1 MD"


def test_what_is_amiss_is_said():
    (hangs, died, waits) = shown(
        (role(RoleKind.ENGINE, "P"), None),
        (role(RoleKind.ENGINE, "MD", restarts=2, last_exit="killed by SIGKILL"), ENGINE),
        (role(RoleKind.ROUTER, "router", phase=Phase.RESTARTING, pid=None, restarts=1, last_exit="died"), None),
        width=120,
    )[2:]
    assert hangs.split() == ["engine", "P", "silent", "1234567"]
    assert died.endswith("main decode in B, at node-md, restarted 2 times, killed by SIGKILL")
    assert waits.split(maxsplit=3) == ["router", "router", "restarting", "restarted once, died"]


def test_engines_are_shown_as_the_router_sees_them_too():
    health = HEALTH | {
        "requests": {"served": 5, "queued": 2},
        "workers": {
            "P": {"up": True, "requests": 1, "breaker": "closed", "reason": None},
            "RLD": {"up": True, "requests": 4, "breaker": "half_open", "reason": None},
            "MD": {"up": False, "requests": 0, "breaker": "open", "reason": "takes 1 tokens, this deployment 2"},
        },
    }
    engines = [(role(RoleKind.ENGINE, name), ENGINE) for name in ("P", "RLD", "MD")]
    *shown_engines, router = shown(*engines, (role(RoleKind.ROUTER, "router"), health), width=160)[2:]
    assert [line.split(maxsplit=4)[4] for line in shown_engines] == [
        "prefill in A, at node-p, 1 request",
        "relay decode in A, at node-rld, 4 requests, breaker half-open",
        "main decode in B, at node-md, down for the router: takes 1 tokens, this deployment 2, breaker open",
    ]
    assert router.endswith("ok, engines up: 1/1 P, 1/1 RLD, 1/1 MD, 5 served, 2 queued")


def test_a_cut_line_and_a_busy_node_are_told():
    cut = msgspec.to_builtins(msgspec.structs.replace(LINK, condition=LinkCondition.FROZEN, jitter_s=0.002))
    link, node = shown(
        (role(RoleKind.WAN, "wan"), cut),
        (role(RoleKind.NODE, "node-md"), NODE | {"leased_blocks": 3, "orders": 1}),
        width=120,
    )[2:]
    assert "frozen, 20 Mbit/s, 15 ms + 2 ms, A>B" in link
    assert node.endswith("got 1.95 KB, 3 leased, 1 orders")
