from __future__ import annotations

import io

import pytest
from rich.console import Console

from pdd.cli.ask.render import format_bytes, format_seconds, legend, path_of, print_answer, tabulate
from pdd.core.units import Bytes, Seconds
from tests.unit.cli.recordings import MD, RLD, P, direct, relayed, spans


def printed(width: int = 100, *, color: bool = False, **rows) -> tuple[Console, io.StringIO]:
    buffer = io.StringIO()
    system = "truecolor" if color else None
    return Console(file=buffer, width=width, highlight=False, color_system=system, force_terminal=color), buffer


def test_roles_are_told_apart_without_colour():
    console, buffer = printed()
    print_answer(console, relayed().spans)
    assert buffer.getvalue() == "  [P]Once [RLD]upon a time [MD]there was KV.\n"


def test_a_tag_comes_before_the_word_that_its_role_began():
    console, buffer = printed()
    print_answer(console, spans((1.0, P, 1, "Won"), (1.1, RLD, 1, "der"), (1.2, MD, 1, "ful!")))
    assert buffer.getvalue() == "  [P]Won[RLD]der[MD]ful!\n"


def test_a_terminal_sees_each_role_in_its_colour():
    console, buffer = printed(color=True)
    print_answer(console, relayed().spans)
    assert "\x1b[36m" in buffer.getvalue()
    assert "\x1b[32m" in buffer.getvalue()


def test_an_answer_wraps_at_words_and_keeps_its_own_line_breaks():
    console, buffer = printed(24)
    print_answer(console, spans((1.0, P, 1, "alpha beta gamma delta\n\nepsilon")))
    assert buffer.getvalue() == "  [P]alpha beta gamma\n  delta\n\n  epsilon\n"


def test_a_word_longer_than_the_line_is_broken_and_not_lost():
    console, buffer = printed(20)
    print_answer(console, spans((1.0, P, 1, "ab " + "x" * 40 + " cd")))
    assert "".join(buffer.getvalue().split()) == "[P]ab" + "x" * 40 + "cd"
    assert max(map(len, buffer.getvalue().splitlines())) <= 20


def test_control_characters_do_not_reach_the_terminal():
    console, buffer = printed()
    print_answer(console, spans((1.0, P, 1, "a\x1b[2Jb\x07")))
    assert buffer.getvalue() == "  [P]a\ufffd[2Jb\ufffd\n"


def test_text_that_looks_like_markup_is_shown_as_it_is():
    console, buffer = printed()
    print_answer(console, spans((1.0, P, 1, "[bold]not bold[/bold] :smile:")))
    assert buffer.getvalue() == "  [P][bold]not bold[/bold] :smile:\n"


def test_the_table_fits_a_hundred_columns_and_names_every_run():
    console, buffer = printed()
    console.print(tabulate([("second turn", relayed()), ("direct", direct())]))
    lines = buffer.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert "P-RLD-MD" in lines[2]
    for cell in ("2.00 s", "2.20 s", "500 ms", "28.0 MB"):
        assert cell in lines[2]
    assert "P-MD" in lines[3]
    assert "12.00 s" in lines[3]


def test_the_legend_names_every_role():
    assert legend().plain.split() == [
        "tokens",
        "by",
        "[P]",
        "prefill",
        "[RLD]",
        "relay",
        "decode",
        "[MD]",
        "main",
        "decode",
    ]


def test_the_path_is_made_of_those_who_computed_something():
    assert path_of(relayed()) == "P-RLD-MD"
    assert path_of(direct()) == "P-MD"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "–"), (0.0, "0 ms"), (0.0124, "12 ms"), (0.9996, "1.00 s"), (12.345, "12.35 s")]
)
def test_times_are_shown_with_a_unit(seconds: float | None, shown: str):
    assert format_seconds(None if seconds is None else Seconds(seconds)) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 KB"), (999_949, "999.9 KB"), (28_311_552, "28.3 MB")]
)
def test_sizes_are_shown_in_decimal_units(size: int, shown: str):
    assert format_bytes(Bytes(size)) == shown
