"""The documentation names what there is: keys, parameters, fields, metrics, messages; and its links lead somewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields as fields_of
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from pdd.cli.program import build_parser
from pdd.core.topology import (
    AdmissionTable,
    EngineTable,
    HealthTable,
    KvFormatTable,
    LayersTable,
    LinkTable,
    NodeTable,
    PolicyTable,
    RouterTable,
    SlaTable,
    TenantTable,
    TensorTable,
    Topology,
)
from pdd.engine.http.wire_request import GenerateBody, SamplingBody, TransferBody
from pdd.protocol import peer
from pdd.router.api import fields
from pdd.router.base import RequestReport
from pdd.sim.workload.trace.report import Doubt, TraceReport
from pdd.telemetry.metrics import RouterMetrics

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_NEEDS_NO_WORDS = {"nodes", "engines", "links", "router", "policy", "tenants", "health", "admission", "sla"}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing(names: Iterator[str] | list[str], text: str) -> list[str]:
    return [name for name in names if not re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path):
    for link in _LINK.findall(without_code(path.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{link}: there is no such heading"


def test_every_key_of_a_topology_is_explained():
    tables = (
        *(Topology, NodeTable, EngineTable, LinkTable, RouterTable),
        *(TenantTable, PolicyTable, HealthTable, AdmissionTable, SlaTable),
        *(KvFormatTable, LayersTable, TensorTable),
    )
    keys = [key for table in tables for key in table.__struct_fields__ if key not in _NEEDS_NO_WORDS]
    assert missing(keys, page("topology.md")) == []


def table(page_text: str, *heading: str) -> list[list[str]]:
    """The rows of the table with this heading, cell by cell."""
    _, _, rest = page_text.partition(f"| {' | '.join(heading)} |\n")
    rows = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_parameter_that_does_something_is_explained_and_no_other():
    rows = table(page("api.md"), "parameter", "default", "values")
    both = {name for names, *_ in rows for name in code(names)}
    assert both == fields.CHAT.read | fields.COMPLETION.read
    assert {code(name)[0] for name, _ in table(page("api.md"), "field", "values")} == fields.MESSAGE.read
    steering = table(page("api.md"), "key", "values", "meaning")
    assert {code(key)[0] for key, *_ in steering} == fields.PDD.read
    assert missing(sorted(fields.STREAM_OPTIONS.read), page("api.md")) == []


def test_every_parameter_that_does_nothing_is_listed_with_what_it_passes_with_and_no_other():
    told: dict[str, dict[str, list[object] | None]] = {}
    for where, names, values in table(page("api.md"), "where", "parameters", "pass with null or"):
        passing = None if values == "anything" else [json.loads(value) for value in code(values)]
        assert passing != [] or values == "nothing else"
        for kind in ("chat", "completions") if where == "both" else (where.strip("`"),):
            told.setdefault(kind, {}).update(dict.fromkeys(code(names), passing))
    known = {
        "chat": fields.CHAT,
        "completions": fields.COMPLETION,
        "messages": fields.MESSAGE,
        "stream_options": fields.STREAM_OPTIONS,
        "text parts": fields.TEXT_PART,
    }
    assert told == {
        kind: {**{name: list(values) for name, values in of.unsupported.items()}, **dict.fromkeys(of.ignored)}
        for kind, of in known.items()
    }


def test_every_code_of_an_error_is_explained():
    """Codes are written where errors are made."""
    sources = [*(ROOT / "src/pdd/router/api").glob("*.py"), ROOT / "src/pdd/transport/http_serving.py"]
    codes = {code for path in sources for code in re.findall(r'code(?:, \w+)? ?= ?"(\w+)"', path.read_text())}
    assert {"invalid_json", "forbidden_origin", "unknown_path"} <= codes
    assert missing(sorted(codes), page("api.md")) == []


def test_every_field_of_a_report_is_explained():
    assert missing([field.name for field in fields_of(RequestReport)], page("api.md")) == []


def test_every_metric_is_explained():
    names = set(re.findall(r"^# TYPE (\w+) ", RouterMetrics().render().decode(), flags=re.MULTILINE))
    # Prometheus' own library adds when each of them began.
    assert missing(sorted(name for name in names if not name.endswith("_created")), page("api.md")) == []


def test_every_message_between_processes_is_explained():
    remote = (peer.HandshakeAnswer, peer.FromSource, peer.FromTarget, peer.FromRouter, peer.FromNode)
    unions = (*remote, peer.FromEngine, peer.ToEngine)
    messages: set[type[msgspec.Struct]] = {peer.Hello, *(message for union in unions for message in get_args(union))}
    text = page("wire.md")
    assert missing(sorted(message.__name__ for message in messages), text) == []
    names = [name for message in messages for name in message.__struct_fields__ if message is not peer.StatsAnswer]
    assert missing(names, text) == []


def test_every_field_of_an_engine_request_is_explained():
    bodies = (GenerateBody, SamplingBody, TransferBody)
    names = [name for body in bodies for name in body.__struct_fields__]
    assert missing(names, page("wire.md")) == []


def test_every_command_and_every_flag_that_matters_is_explained():
    text = page("running.md")
    (commands,) = [action.choices for action in build_parser()._actions if action.choices]
    assert isinstance(commands, dict)
    assert missing(list(commands), text) == []
    for name in ("up", "link"):
        commands[name].define()
        flags = [flag for action in commands[name]._actions for flag in action.option_strings if flag.startswith("--")]
        assert [flag for flag in flags if flag not in text and flag not in {"--help", "--jitter"}] == []


def test_every_module_of_the_driver_has_its_place_in_the_map():
    modules = (path.stem for path in sorted((ROOT / "src" / "pdd" / "router" / "driver").rglob("[!_]*.py")))
    map_of_driver = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("The driver's modules")[2]
    assert missing(modules, map_of_driver) == []


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "README.md"])
def test_every_file_that_is_named_exists(name: str):
    """Paths are given from the package on, or by their end where the folder was just named."""
    text = without_code((ROOT / name).read_text(encoding="utf-8"))
    known = [path.as_posix() for path in ROOT.glob("src/pdd/**/*")]
    named = re.findall(r"`((?:[\w.]+/)*[\w]+\.py)`", text)
    assert len(named) > 2
    assert [path for path in named if not any(each.endswith(f"/{path}") for each in known)] == []


def test_the_simulator_s_page_names_everything_that_is_told_of_a_trace():
    told = [*Doubt, *(each.name for each in fields_of(TraceReport)), "count", "first_line", "--trace-block-tokens"]
    assert missing(told, page("simulator.md")) == []
