"""The measures of the house, on a made-up package that has one of each fault."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.house import figures_of, long_functions
from tests.support.house_code import FunctionSize, Source, functions_of, read_sources, size_of, sizes_by_package
from tests.support.house_imports import Circle, circles_of_files, circles_of_folders, components, imports_of
from tests.support.house_node import sort_modules
from tests.support.house_prose import long_lines, sentences_of
from tests.support.house_ratchet import Count, Measure, differences, read_bars, tightened, write_bars
from tests.support.house_words import Word, find_words, read_words, words_of

LONG_BODY = "\n".join(f"    x{number} = {number}" for number in range(40))
FILES = {
    "__init__.py": '"""A package."""\n',
    "low/__init__.py": "",
    "low/left.py": '''
        """Left."""
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from made.high.top import Top

        LANE_WIDTH = 3
        """An attribute's docstring."""

        class PlaceOrder:
            """Orders."""

            places: int

            def __init__(self, first, *, command_line=None, **lines):
                """Docstring."""
                from made.low import right
                self.line_lane = right
        ''',
    "low/right.py": "from made.low.left import PlaceOrder\n\n@staticmethod\ndef one(cls, a, /, b): return a\n",
    "high/__init__.py": "",
    "high/top.py": f"import made.low.right\n\nclass Top: ...\n\ndef long(self):\n{LONG_BODY}\n",
}


@pytest.fixture
def made(tmp_path: Path) -> list[Source]:
    for name, text in FILES.items():
        file = tmp_path / "src" / "made" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
    return read_sources(tmp_path, tmp_path / "src" / "made", packages_in=tmp_path / "src")


def named(sources: list[Source], module: str) -> Source:
    return next(each for each in sources if each.module == module)


def edges(circles: list[Circle]) -> list[list[str]]:
    return [list(circle.imports) for circle in circles]


class TestCode:
    def test_a_file_is_named_as_it_is_imported(self, made: list[Source]):
        assert [each.module for each in made] == [
            *("made", "made.high", "made.high.top", "made.low", "made.low.left", "made.low.right"),
        ]
        assert made[2].path == "src/made/high/top.py"

    def test_docstrings_are_no_statements(self, made: list[Source]):
        # import, if, import, constant, class, attribute, def, import, assignment
        assert size_of([named(made, "made.low.left")]).statements == 9
        assert size_of([named(made, "made")]).statements == 0

    def test_packages_are_those_below_the_root(self, made: list[Source]):
        sizes = sizes_by_package(made)
        assert list(sizes) == ["made", "made.high", "made.low"]
        assert sizes["made.high"].lines == 45

    def test_functions_are_measured_from_def_to_end_without_self_and_cls(self, made: list[Source]):
        sizes = {each.name: each for source in made for each in functions_of(source)}
        assert {name: (each.lines, each.arguments) for name, each in sizes.items()} == {
            "made.high.top.long": (41, 0),
            "made.low.left.PlaceOrder.__init__": (4, 3),
            "made.low.right.one": (1, 2),
        }
        assert sizes["made.low.right.one"].where == "src/made/low/right.py:4"

    def test_functions_inside_of_others_and_of_branches_are_found(self):
        text = "if True:\n    def a():\n        match 1:\n            case _:\n                def b(): ...\n"
        source = Source(path="x.py", module="x", is_package=False, text=text)
        assert [each.name for each in functions_of(source)] == ["x.a", "x.a.b"]

    def test_long_functions_go_by_name_and_the_longest_of_a_name_counts(self):
        sizes = [FunctionSize(name="f", where="x", lines=lines, arguments=2) for lines in (50, 41, 40)]
        assert [(each.key, each.number) for each in long_functions(sizes)] == [("f", 50)]
        figures = figures_of(sizes)
        assert (figures.mean_lines, figures.mean_arguments, figures.longest.lines) == (43.67, 2, 50)


class TestCircles:
    def test_an_import_inside_of_a_function_closes_a_circle(self, made: list[Source]):
        (circle,) = circles_of_files([each for each in imports_of(made) if not each.for_types])
        assert circle.members == ("made.low.left", "made.low.right")
        assert circle.imports["made.low.left -> made.low.right"] == ("src/made/low/left.py:17",)

    def test_imports_for_types_close_circles_of_their_own(self, made: list[Source]):
        (circle,) = circles_of_files(imports_of(made))
        assert circle.members == ("made.high.top", "made.low.left", "made.low.right")

    def test_folders_have_circles_too(self, made: list[Source]):
        at_run_time = [each for each in imports_of(made) if not each.for_types]
        assert circles_of_folders(at_run_time, made) == []
        assert edges(circles_of_folders(imports_of(made), made)) == [["made.high -> made.low", "made.low -> made.high"]]

    def test_components_are_apart(self):
        graph = {"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["e"], "e": ["c"], "f": ["a"]}
        assert sorted(map(sorted, components(graph))) == [["a", "b"], ["c", "d", "e"], ["f"]]


class TestWords:
    def test_names_are_split_at_underscores_and_capitals(self):
        assert words_of("_HTTPLine_rates2") == ("http", "line", "rate", "2")
        assert words_of("deadline replace access") == ("deadline", "replace", "access")

    def test_what_is_defined_is_searched_and_compounds_are_not_held_against_it(self, made: list[Source]):
        words = [
            Word(word="lane"),
            Word(word="line", allowed=frozenset({("command", "line")})),
            Word(word="place", allowed=frozenset({("place", "order")})),
            Word(word="right"),
        ]
        found = find_words(words, made)
        at = "src/made/low/left.py"
        assert found["lane"] == (f"{at}:7 LANE_WIDTH", f"{at}:18 line_lane")
        assert found["line"] == (f"{at}:15 lines", f"{at}:18 line_lane")
        assert found["place"] == (f"{at}:13 places",)
        assert found["right"] == ("src/made/low/right.py:1 right",)

    def test_a_compound_allows_its_own_part_only(self):
        source = Source(path="x.py", module="x", is_package=False, text="line_of_command_line = 1\n")
        (word,) = [Word(word="line", allowed=frozenset({("command", "line")}))]
        assert find_words([word], [source])["line"] == ("x.py:1 line_of_command_line",)

    def test_a_word_may_be_at_home_in_some_files(self, made: list[Source]):
        assert find_words([Word(word="lane", allowed_in=("src/made/low/*",))], made)["lane"] == ()

    def test_the_table_is_read(self, tmp_path: Path):
        table = tmp_path / "words.toml"
        table.write_text('[line]\nallowed = ["json_lines"]\nallowed_in = ["a/*"]\n')
        assert read_words(table) == [Word(word="line", allowed=frozenset({("json", "line")}), allowed_in=("a/*",))]


class TestProse:
    PAGE = dedent("""\
        # A heading. Of two sentences

        One `a b c`
        two, e.g. [three four](http://x.y/z. Z). Then **five.** `Six` seven!

        - An item
          goes on.
        1. Another: it
        > quoted. Twice.

        | a table. | It has none |
        ```
        code. Code.

        ```
        Last
        """)

    def test_sentences_have_a_line_and_words(self):
        found = [(each.line, each.num_words, each.text) for each in sentences_of(self.PAGE)]
        assert found == [
            (3, 6, "One CODE two, e.g. three four."),
            (4, 2, "Then **five.**"),
            (4, 2, "CODE seven!"),
            (6, 4, "An item goes on."),
            (8, 3, "Another: it quoted."),
            (9, 1, "Twice."),
            (16, 1, "Last"),
        ]

    def test_a_fence_ends_with_its_own_kind_only(self):
        assert list(sentences_of("````\n```\nnot prose\n````\n")) == []

    def test_rows_of_tables_may_be_wide_on_pages_only(self):
        text = "12345\n| 345\n1234\n"
        assert long_lines(text, columns=4, is_page=True) == [1]
        assert long_lines(text, columns=4, is_page=False) == [1, 2]


class TestNode:
    def test_what_is_no_part_of_a_node_is_foreign(self):
        told = [
            "pdd",
            "pdd.cli",
            "pdd.cli.ask",
            "pdd.cli.roles.node",
            "pdd.core.ids",
            "pdd.router",
            "pddx",
            "numpy",
            "re",
        ]
        node = sort_modules(told, rss_mib=1.0)
        assert node.foreign == ("pdd.cli.ask", "pdd.router")
        assert node.libraries == ("numpy",)
        assert len(node.pdd_modules) == 6


class TestRatchet:
    MEASURES = (Measure(name="words", counts=(Count(key="a", number=3, where=("x:1",)), Count(key="b", number=1))),)

    def test_above_is_worse_and_says_where(self):
        (found,) = differences(self.MEASURES, {"words": {"a": 2, "b": 1}})
        assert found.is_worse
        assert str(found) == "words: a: 3, at most 2 allowed\n    x:1"

    def test_what_has_no_bar_may_not_be(self):
        assert [(each.key, each.bar) for each in differences(self.MEASURES, {})] == [("a", 0), ("b", 0)]

    def test_below_can_be_tightened_and_above_cannot_be_loosened(self):
        bars = {"words": {"a": 2, "b": 5, "gone": 1}, "measure_that_is_no_more": {"x": 1}}
        lower = [each for each in differences(self.MEASURES, bars) if not each.is_worse]
        assert [(each.key, each.number) for each in lower] == [("b", 1), ("gone", 0)]
        assert "--tighten" in str(lower[0])
        assert tightened(self.MEASURES, bars) == {"words": {"a": 2, "b": 1, "gone": 0}}

    def test_bars_are_written_as_they_are_read(self, tmp_path: Path):
        bars = {"words": {"a -> b": 2, 'q"': 1, "gone": 0}, "nothing": {"x": 0}}
        write_bars(tmp_path / "bars.toml", bars)
        assert read_bars(tmp_path / "bars.toml") == {"words": {"a -> b": 2, 'q"': 1}}


def test_the_program_is_found_where_make_calls_it():
    made = subprocess.run([sys.executable, "-m", "tests.support.house", "--help"], capture_output=True, check=True)
    assert b"--tighten" in made.stdout
