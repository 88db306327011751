"""What every command has in common: help, JSON, one clear line for each error, exit codes, quick starts."""

import json
import re
import subprocess
import sys
import textwrap

import pytest

from pdd import __version__
from pdd.cli import main
from pdd.cli.output import exit_code_of, message_of, root_cause
from pdd.cli.program import build_parser
from pdd.core.errors import ConfigError, InvalidRequest, NodeFailed, Unauthorized, Unavailable

ROLES = ("node", "engine", "wan", "router")


def output_of(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_version_is_shown(capsys):
    assert output_of(capsys, "version") == (0, f"pdd {__version__}\n", "")
    assert output_of(capsys, "--version") == (0, f"pdd {__version__}\n", "")
    code, out, _ = output_of(capsys, "version", "--json")
    assert (code, json.loads(out)["version"]) == (0, __version__)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fly",), "invalid choice: 'fly'"),
        (("link",), "NAME"),
        (("link", "wan", "--rate", "20"), "'20' is not a number and a unit"),
        (("link", "wan", "--cut", "saw"), "saw"),
        (("link", "wan", "--stall", "-1"), "--stall: '-1' is out of range: it must be from 0 to 3600 s"),
        (("link", "wan", "--stall", "2 h"), "--stall: '2 h' is not a number and a unit"),
        (("link", "wan", "--stall", "90 min"), "--stall: '90 min' is out of range"),
        (("link", "wan", "--stall", "nan"), "--stall: 'nan' is out of range"),
        (("link", "wan", "--delay", "2 min"), "--delay: '2 min' is out of range: it must be from 0 to 60 s"),
        (("link", "wan", "--rate", "0 Mbit/s"), "rate is 0"),
        (("up", "--port", "70000"), "'70000' is not a port"),
        (("up", "--allow-origin", "*"), "--allow-origin: '*' is not an origin, such as https://chat.example"),
        (("up", "--allow-host", "gpu1:8000"), "--allow-host: 'gpu1:8000' is not a host's name"),
        (("up", "scripted", "--trace", "/"), "--trace /: Is a directory"),
        (("ask", "x", "--route", "relay_only"), "(choose from 'auto', 'direct', 'relay')"),
        (("ask", "x", "--handoff", "none"), "(choose from 'auto', 'one_shot', 'catch_up')"),
        (("up", "nothing.toml"), "nothing.toml: No such file or directory"),
        (("node", "--topology", "x.toml"), "--name"),
        (("node", "--topology", "x.toml", "--name", "a"), "x.toml: No such file or directory"),
        (("node", "--topology", "scripted", "--name", "node-p"), "a single role needs fixed ports"),
        (("router", "--topology", "x.toml"), "unrecognized arguments: --state-dir"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, arguments, words):
    place = ("--state-dir", str(tmp_path)) if arguments[0] not in {"fly", "ask"} else ()
    code, out, err = output_of(capsys, *arguments, *place)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


HELP = """\
usage: pdd [-h] [--version] COMMAND ...

Prefill / relay-decode / main-decode serving of LLMs across datacenters.

options:
  -h, --help    show this help message and exit
  --version     print the version and exit

commands:
  COMMAND
    up          run every role of a topology on this machine
    ask         send one prompt and see who computed which token
    demo        see a relayed answer, and what the relay is good for
    verify      prove that relayed answers are the same, token for token
    status      show what a running deployment does
    link        show or change an emulated link while it runs
    sim         simulate a deployment on a virtual clock
    topology    write what a topology's roles are started from
    node        run one KV node: a process that holds KV blocks in memory and replicates them
    engine      run one engine: token IDs in, token IDs out, over HTTP
    wan         run one emulated link between two clusters
    router      run the router: the OpenAI-compatible front door
    export-model
                write a model of the catalog as a Hugging Face folder, or such a folder without
                its weights
    version     print PDD's version

Each command has its own --help.
"""


def test_every_command_is_listed_though_none_is_imported(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert output_of(capsys, "--help") == (0, HELP, "")


def test_a_simulation_is_listed_though_it_is_not_imported(capsys):
    code, out, _ = output_of(capsys, "sim", "--help")
    assert code == 0
    assert re.search(r"^    paper +simulate the published evaluation", out, re.MULTILINE)
    assert "invalid choice: 'fly' (choose from 'run', 'paper'," in output_of(capsys, "sim", "fly")[2]


def test_without_arguments_the_help_is_shown(capsys):
    code, out, err = output_of(capsys)
    assert (code, out) == (2, "")
    assert err.startswith("usage: pdd")
    assert "run every role of a topology on this machine" in err


@pytest.mark.parametrize("url", ["127.0.0.1:8477", "nonsense", "http://", "ftp://127.0.0.1", "http://127.0.0.1:99999"])
def test_an_address_that_is_none_is_bad_input(capsys, url):
    code, out, err = output_of(capsys, "ask", "hello", "--url", url)
    assert (code, out) == (2, "")
    assert f"--url: {url!r} is not a router's address, such as http://127.0.0.1:8000" in err


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("0.5", 0.5), ("5 s", 5.0), ("20 ms", 0.02), ("1 min", 60.0)]
)
def test_a_stall_has_a_unit_or_is_in_seconds(text, seconds):
    assert build_parser().parse_args(["link", "wan", "--stall", text]).stall == seconds


@pytest.mark.parametrize("module", ["pdd.cli.program", "msgspec", "pdd.cli.version"])
def test_an_interrupt_while_the_program_is_imported_is_no_traceback(module):
    program = f"""
        import sys
        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupt())
        from pdd.cli import main
        sys.exit(main(["version"]))
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_with_json_an_error_is_one_object_on_stdout(capsys, tmp_path):
    code, out, err = output_of(capsys, "up", "nothing.toml", "--json", "--state-dir", str(tmp_path))
    error = json.loads(out)["error"]
    assert (code, err, error["type"]) == (2, "", "config_error")
    assert "nothing.toml" in error["message"]


def test_asking_about_nothing_that_runs_is_a_failure(capsys, tmp_path):
    for command in (("status",), ("link", "wan")):
        code, out, err = output_of(capsys, *command, "--state-dir", str(tmp_path))
        assert (code, out) == (1, "")
        assert "nothing runs below" in err


def test_every_command_has_help_and_those_that_print_results_have_json():
    actions = build_parser()._subparsers._group_actions[0]
    for name, parser in actions.choices.items():
        parser.define()
        text = parser.format_help()
        assert len(text) > 100, name
        assert ("--json" in text) or name in {*ROLES, "topology"}, name


def test_an_unforeseen_error_is_named_as_such_in_one_line():
    assert message_of(ZeroDivisionError("division\nby zero")) == "internal error: ZeroDivisionError: division by zero"
    assert message_of(NodeFailed("node\n  gone")) == "node gone"


def test_exit_codes_tell_bad_input_from_failures():
    assert exit_code_of(ConfigError("x")) == 2
    assert exit_code_of(InvalidRequest("x")) == 2
    assert exit_code_of(Unauthorized("x")) == 2
    assert exit_code_of(Unavailable("x", retry_after_s=1.0)) == 1
    assert exit_code_of(ZeroDivisionError()) == 1


def test_the_cause_inside_of_groups_is_found():
    cause = ConfigError("x")
    assert root_cause(ExceptionGroup("a", [ExceptionGroup("b", [cause]), ValueError()])) is cause


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        (
            "import pdd.cli.program; pdd.cli.program.build_parser().format_help()",
            ("torch", "aiohttp", "numpy", "tokenizers", "openai", "rich", "asyncio", "pdd.cli.version", "pdd.cli.sim"),
        ),
        (
            "import pdd.cli; pdd.cli.main(['sim', 'run', '--topology', 'x'])",
            ("torch", "aiohttp", "numpy", "pdd.cli.sim.paper", "pdd.cli.deploy.up", "pdd.cli.roles"),
        ),
        ("import pdd.cli.deploy.status, pdd.cli.topology.ports, pdd.kvnode.client", ("torch", "aiohttp")),
        ("import pdd.cli.roles.node, pdd.cli.roles.command", ("torch", "aiohttp", "pdd.engine.embedded", "pdd.router")),
        ("import pdd.cli.roles.wan", ("torch", "aiohttp", "pdd.kvnode.server", "pdd.router")),
        ("import pdd.cli.roles.engine", ("torch", "pdd.router")),
    ],
)
def test_a_command_imports_only_what_it_needs(program, absent):
    check = f"{program}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[]\n"
