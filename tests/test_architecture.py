"""The house rules that a program can check: layers, module sizes, nothing unfinished, nothing impure where
it is pure.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.house import BARS, look
from tests.support.house_node import FORBIDDEN_LIBRARIES, start_node
from tests.support.house_ratchet import differences, read_bars

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "pdd").rglob("*.py"))
MAX_LINES = 400

REASONS_TO_BE_LONGER = {
    "protocol/relay.py": "all transitions of a request in one place, with their events and commands",
    "protocol/delivery.py": "all transitions of a delivery in one place, as those of a request",
    "protocol/transfer.py": "both sides of one replication in one place, with their events and commands",
}

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError|NotImplemented)\b")


def _name(source: Path) -> str:
    return source.relative_to(ROOT / "src" / "pdd").as_posix()


def _num_lines(source: Path) -> int:
    return len(source.read_text(encoding="utf-8").splitlines())


def test_imports_point_down_and_pure_means_pure():
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    result = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


def test_the_house_is_within_its_bars():
    assert [str(each) for each in differences(look().measures, read_bars(BARS)) if each.is_worse] == []


FORBIDDEN_IN_A_NODE = (
    *("pdd.engine", "pdd.router", "pdd.sim", "pdd.plugins", "pdd.policy", "pdd.belief", "pdd.telemetry"),
    *("pdd.cli.ask", "pdd.cli.console", "pdd.cli.demo", "pdd.cli.export_model", "pdd.cli.progress", "pdd.cli.sim"),
    *("pdd.cli.tables", "pdd.cli.verify", "pdd.cli.version"),
    *(f"pdd.cli.deploy.{name}" for name in ("deployment", "launch", "link", "resolve", "status", "supervisor", "up")),
    *("pdd.cli.roles.engine", "pdd.cli.roles.router", "pdd.cli.roles.wan"),
    *("pdd.cli.topology.check", "pdd.cli.topology.formats"),
    *FORBIDDEN_LIBRARIES,
)


def test_a_node_holds_no_engine_no_model_and_no_other_command():
    """Of a real process, at the moment at which it binds its first socket."""
    node = start_node(ROOT).read(timeout_s=60)
    assert {"pdd.cli.roles.node", "pdd.kvnode.server"} <= set(node.pdd_modules)
    held = [*node.pdd_modules, *node.libraries]
    assert [name for name in held if f"{name}.".startswith(tuple(f"{each}." for each in FORBIDDEN_IN_A_NODE))] == []


@pytest.mark.parametrize("source", SOURCES, ids=_name)
def test_a_module_is_short_or_has_a_reason(source):
    assert _num_lines(source) <= MAX_LINES or _name(source) in REASONS_TO_BE_LONGER


def test_a_reason_does_not_outlive_its_module():
    long = {_name(source) for source in SOURCES if _num_lines(source) > MAX_LINES}
    assert set(REASONS_TO_BE_LONGER) <= long


@pytest.mark.parametrize("source", SOURCES, ids=_name)
def test_nothing_is_marked_unfinished(source):
    assert UNFINISHED.search(source.read_text(encoding="utf-8")) is None


@pytest.mark.parametrize("source", SOURCES, ids=_name)
def test_only_protocols_leave_bodies_out(source):
    hollow = [
        f"{name} (line {line})" for name, line in _hollow_functions(ast.parse(source.read_text(encoding="utf-8")))
    ]
    assert hollow == []


@pytest.mark.parametrize("source", SOURCES, ids=_name)
def test_a_module_says_what_it_is_for(source):
    assert ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))


@pytest.mark.parametrize("source", SOURCES, ids=_name)
def test_tasks_are_born_in_task_groups_and_time_belongs_to_callers(source):
    banned = {"asyncio.create_task", "asyncio.ensure_future", "asyncio.gather", "asyncio.wait_for"}
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    }
    assert not calls & banned


@pytest.mark.parametrize("source", [s for s in SOURCES if not _name(s).startswith("cli/")], ids=_name)
def test_only_the_command_line_reads_the_environment(source):
    text = source.read_text(encoding="utf-8")
    assert "os.environ" not in text
    assert "os.getenv" not in text
    assert "sys.argv" not in text


def _hollow_functions(tree: ast.Module):
    """Functions outside of protocols whose body, docstring aside, is ``...`` or ``pass``, unless named for ignoring."""
    for node in ast.walk(tree):
        inside_protocol = isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
        if inside_protocol:
            for child in ast.walk(node):
                child.in_protocol = True
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not getattr(node, "in_protocol", False):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            does_nothing = len(body) == 1 and ast.unparse(body[0]) in {"...", "pass"}
            if does_nothing and not node.name.startswith("_ignore"):
                yield node.name, node.lineno
