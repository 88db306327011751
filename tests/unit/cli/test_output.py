"""What commands write can be written anywhere, and JSON is JSON."""

from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pdd.cli
from pdd.cli.console import open_console
from pdd.cli.given_text import as_text, require_text, text
from pdd.cli.output import PLAIN_SIGNS, message_of, print_json, settled_streams
from pdd.cli.program import build_parser
from pdd.cli.tables import WholeTable
from pdd.core.errors import ConfigError

UNSHOWN = {"\ufffd", "µ"}
"""Stands for what a model says and no terminal shows; a unit that is read, never written."""

anything = st.text(st.characters(codec=None, categories=None, exclude_categories=()))


def signs_of_our_own() -> Iterator[str]:
    """All characters beyond ASCII in the commands' own strings."""
    for path in Path(pdd.cli.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from (character for character in node.value if not character.isascii())


def test_each_of_our_own_signs_has_a_plain_one_as_wide() -> None:
    assert set(signs_of_our_own()) - UNSHOWN == set(PLAIN_SIGNS)
    assert all(plain.isascii() and len(plain) == 1 for plain in PLAIN_SIGNS.values())


@contextmanager
def streams_in(encoding: str) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    out, err = io.BytesIO(), io.BytesIO()
    with (
        redirect_stdout(io.TextIOWrapper(out, encoding=encoding)) as shown,
        redirect_stderr(io.TextIOWrapper(err, encoding=encoding)) as told,
    ):
        yield out, err
    shown.detach()
    told.detach()


def test_what_can_t_be_shown_is_replaced_on_stdout_and_escaped_on_stderr() -> None:
    with streams_in("ascii") as (out, err):
        before = sys.stdout
        with settled_streams():
            sys.stdout.write("✓ é 日 \udc80\n")
            sys.stderr.write("✗ é 日 \udc80\n")
        assert sys.stdout is before
        sys.stdout.write("as before\n")
    assert out.getvalue() == b"v ? ? ?\nas before\n"
    assert err.getvalue() == b"x \\xe9 \\u65e5 \\udc80\n"


@given(anything, st.sampled_from(["ascii", "latin-1", "utf-8", "utf-16", "cp437", "euc-jp"]))
def test_no_text_is_too_much_for_any_encoding(words: str, encoding: str) -> None:
    with streams_in(encoding) as (out, err), settled_streams():
        sys.stdout.write(words)
        sys.stderr.write(words)
    assert len(out.getvalue().decode(encoding)) == len(words)
    assert len(err.getvalue().decode(encoding)) >= len(words)


# JSON -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    name: str
    value: float | None


def printed(capsys: pytest.CaptureFixture[str], value: object) -> object:
    print_json(value)
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert shown.count("\n") == 1
    return json.loads(shown)


def test_json_is_ascii_and_means_what_was_said(capsys) -> None:
    said = {"text": "é 日 🙂 \u2028", "empty": [], "nested": [{"a": (1, 2.5, None, True)}]}
    assert printed(capsys, said) == {**said, "nested": [{"a": [1, 2.5, None, True]}]}


def test_numbers_that_json_lacks_are_null_and_structures_are_objects(capsys) -> None:
    figures = {1: Figure("inf", float("inf")), 2: Figure("nan", float("nan")), 3: Figure("none", None)}
    assert printed(capsys, figures) == {
        "1": {"name": "inf", "value": None},
        "2": {"name": "nan", "value": None},
        "3": {"name": "none", "value": None},
    }


def test_names_of_files_are_text_in_json_and_in_messages(capsys) -> None:
    assert printed(capsys, {"caf\udce9": ["caf\udcc3\udca9"]}) == {"caf\ufffd": ["caf\u00e9"]}
    assert message_of(ConfigError("caf\udcc3\udca9: no\nsuch file")) == "caf\u00e9: no such file"


# What is given --------------------------------------------------------------------------------------------------------


@given(anything)
def test_whatever_is_given_is_text_in_the_end(given: str) -> None:
    as_text(given).encode()


@given(st.text())
def test_text_is_taken_as_it_is_however_python_hid_its_bytes(words: str) -> None:
    hidden = words.encode().decode("ascii", "surrogateescape")
    assert as_text(words) == as_text(hidden) == text(words) == text(hidden) == words


def test_bytes_that_are_no_text_are_refused_with_the_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="argument PROMPT: 'caf\ufffd' is not UTF-8 text"):
        build_parser().parse_args(["ask", "caf\udce9"])
    with pytest.raises(ConfigError, match="--state-dir: '/caf\ufffd' is not UTF-8 text in this locale"):
        require_text("--state-dir", Path("/caf\udce9"))
    assert require_text("--state-dir", tmp_path) == tmp_path


@pytest.mark.parametrize(("columns", "width"), [(None, 100), ("40", 40), ("400", 400)])
def test_without_a_terminal_tables_are_as_wide_as_columns_say(
    columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    with redirect_stdout(io.StringIO()):
        assert open_console().width == width


def test_a_narrow_terminal_cuts_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table = WholeTable(gap=2)
    for heading in ("answers", "second\ntoken", "sent"):
        table.add_column(heading)
    table.add_row("a whole name", "0.051723", "123456789")
    with redirect_stdout(io.StringIO()) as shown:
        open_console().print(table)
    assert shown.getvalue().splitlines()[-1].split("  ")[:3] == ["a whole name", "0.051723", "123456789"]
