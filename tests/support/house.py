"""How the house stands: how large the code is, what goes in circles, which words, sentences and lines are to be mended.

    python -m tests.support.house            a table; fails if anything is above its bar
    python -m tests.support.house --json     everything, with every place
    python -m tests.support.house --tighten  lowers the bars in tests/data/house.toml to what is there now

Measures are pure functions of parsed files, but for the node's process, which is started.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.support.house_code import (
    CodeSize,
    FunctionSize,
    Source,
    functions_of,
    read_sources,
    size_of,
    sizes_by_package,
)
from tests.support.house_imports import Circle, circles_of_files, circles_of_folders, imports_of
from tests.support.house_node import NodeProcess, StartedNode, start_node
from tests.support.house_prose import long_lines, sentences_of
from tests.support.house_ratchet import Count, Difference, Measure, differences, read_bars, tightened, write_bars
from tests.support.house_words import find_words, read_words

ROOT = Path(__file__).parents[2]
BARS = ROOT / "tests" / "data" / "house.toml"
WORDS = ROOT / "tests" / "data" / "words.toml"

MAX_FUNCTION_LINES = 40
MAX_FILE_LINES = 400
MAX_MACHINE_LINES = 700
MACHINES = frozenset(f"src/pdd/protocol/{name}.py" for name in ("relay", "transfer", "delivery"))
"""State machines have all their transitions in one file."""
MAX_WORDS = 30
MAX_COLUMNS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFigures:
    """Means show when a long function was only cut into pieces: lines go down and arguments up."""

    number: int
    mean_lines: float
    mean_arguments: float
    longest: FunctionSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Circles:
    """``with_types`` adds the imports under ``if TYPE_CHECKING``: they hide circles from the linter."""

    files: list[Circle]
    files_with_types: list[Circle]
    folders: list[Circle]
    folders_with_types: list[Circle]


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What was found. ``measures`` are what has bars."""

    src: CodeSize
    packages: Mapping[str, CodeSize]
    driver: CodeSize
    functions: FunctionFigures
    circles: Circles
    node: NodeProcess
    measures: list[Measure]


def look(root: Path = ROOT) -> House:
    """Looks at everything. Takes some seconds, most of them to parse."""
    node = start_node(root)
    with _uncollected():
        return _look(root, node)


@contextmanager
def _uncollected() -> Generator[None]:
    """Two million nodes live to the end: looking for garbage among them takes half of the time and finds none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _look(root: Path, node: StartedNode) -> House:
    src = read_sources(root, root / "src" / "pdd", packages_in=root / "src")
    tests = read_sources(root, root / "tests", packages_in=root)
    functions = [each for source in src for each in functions_of(source)]
    circles = _circles(src)
    code = [*_functions_measures(functions, tests), *_file_measures(src, tests), *_circle_measures(circles)]
    return House(
        src=size_of(src),
        packages=sizes_by_package(src),
        driver=size_of(each for each in src if f"{each.module}.".startswith("pdd.router.driver.")),
        functions=figures_of(functions),
        circles=circles,
        node=(node_process := node.read()),
        measures=[*code, _words(src), *_prose(root), _node_measure(node_process)],
    )


def figures_of(functions: Sequence[FunctionSize]) -> FunctionFigures:
    number = len(functions)
    return FunctionFigures(
        number=number,
        mean_lines=round(sum(each.lines for each in functions) / number, 2),
        mean_arguments=round(sum(each.arguments for each in functions) / number, 2),
        longest=max(functions, key=lambda each: each.lines),
    )


def _circles(src: Sequence[Source]) -> Circles:
    imports = imports_of(src)
    at_run_time = [each for each in imports if not each.for_types]
    return Circles(
        files=circles_of_files(at_run_time),
        files_with_types=circles_of_files(imports),
        folders=circles_of_folders(at_run_time, src),
        folders_with_types=circles_of_folders(imports, src),
    )


def _functions_measures(functions: Sequence[FunctionSize], tests: Iterable[Source]) -> list[Measure]:
    of_tests = [each for source in tests for each in functions_of(source)]
    return [
        _measure("functions_over_40_lines_in_src", long_functions(functions)),
        _measure("functions_over_40_lines_in_tests", long_functions(of_tests)),
    ]


def long_functions(functions: Iterable[FunctionSize]) -> Iterable[Count]:
    """By name, so that no other may become long while one becomes short; a name that comes twice has its longest."""
    found = sorted((each for each in functions if each.lines > MAX_FUNCTION_LINES), key=lambda each: each.lines)
    return {each.name: Count(key=each.name, number=each.lines, where=(each.where,)) for each in found}.values()


def _file_measures(src: Iterable[Source], tests: Iterable[Source]) -> list[Measure]:
    return [
        _measure("files_over_400_lines_in_src", _long_files(src)),
        _measure("files_over_400_lines_in_tests", _long_files(tests)),
        _measure("lines_over_120_columns", [_wide("src", src), _wide("tests", tests)]),
    ]


def _long_files(sources: Iterable[Source]) -> Iterable[Count]:
    for each in sources:
        number = len(each.lines)
        if number > (MAX_MACHINE_LINES if each.path in MACHINES else MAX_FILE_LINES):
            yield Count(key=each.path, number=1, where=(f"{each.path} ({number} lines)",))


def _wide(key: str, sources: Iterable[Source]) -> Count:
    where = [
        f"{each.path}:{line}" for each in sources for line in long_lines(each.text, columns=MAX_COLUMNS, is_page=False)
    ]
    return Count(key=key, number=len(where), where=tuple(where))


def _circle_measures(circles: Circles) -> list[Measure]:
    """By import: every circle that is new has one that wasn't in any."""
    return [
        _measure("imports_in_circles_of_files", _circling(circles.files)),
        _measure("imports_in_circles_of_files_with_types", _circling(circles.files_with_types)),
        _measure("imports_in_circles_of_folders", _circling(circles.folders)),
        _measure("imports_in_circles_of_folders_with_types", _circling(circles.folders_with_types)),
    ]


def _circling(circles: Iterable[Circle]) -> Iterable[Count]:
    for circle in circles:
        for edge, where in circle.imports.items():
            yield Count(key=edge, number=1, where=where)


def _words(src: Iterable[Source]) -> Measure:
    found = find_words(read_words(WORDS), src)
    return _measure("names_with_forbidden_words", (_count(word, where) for word, where in found.items()))


def _prose(root: Path) -> list[Measure]:
    sentences: list[Count] = []
    lines: list[Count] = []
    for page in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        path, text = page.relative_to(root).as_posix(), page.read_text(encoding="utf-8")
        long = [each for each in sentences_of(text) if each.num_words > MAX_WORDS]
        sentences.append(_count(path, [f"{path}:{each.line} ({each.num_words} words) {each.text}" for each in long]))
        wide = long_lines(text, columns=MAX_COLUMNS, is_page=True)
        lines.append(_count(path, [f"{path}:{line}" for line in wide]))
    return [_measure("sentences_over_30_words", sentences), _measure("lines_over_120_columns_in_docs", lines)]


def _node_measure(node: NodeProcess) -> Measure:
    return _measure("foreign_modules_in_a_node", (_count(name, [name]) for name in (*node.foreign, *node.libraries)))


def _count(key: str, where: Iterable[str]) -> Count:
    found = tuple(where)
    return Count(key=key, number=len(found), where=found)


def _measure(name: str, counts: Iterable[Count]) -> Measure:
    return Measure(name=name, counts=tuple(each for each in counts if each.number))


def main() -> int:
    """Returns the exit code: 1 if anything is above its bar."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.house", description="How the house stands.")
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object, with every place")
    parser.add_argument("--tighten", action="store_true", help="lower the bars to what is there now")
    given = parser.parse_args()
    house = look()
    bars = read_bars(BARS)
    if given.tighten:
        bars = tightened(house.measures, bars)
        write_bars(BARS, bars)
    found = list(differences(house.measures, bars))
    worse = [each for each in found if each.is_worse]
    if given.json:
        totals = {each.name: each.total for each in house.measures}
        told = {"totals": totals, "above": worse, "house": house}
        print(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        show(house, found)
    return 1 if worse else 0


def show(house: House, found: Sequence[Difference]) -> None:
    """A table that a person reads: sizes, figures, measures, and what isn't as its bar says."""
    for name, size in {"src": house.src, **house.packages, "pdd.router.driver": house.driver}.items():
        print(f"{name:<24}{size.statements:>8} statements{size.lines:>8} lines")
    functions, node = house.functions, house.node
    longest = f"longest {functions.longest.lines}: {functions.longest.name}"
    means = f"{functions.mean_lines} lines and {functions.mean_arguments} arguments on average"
    print(f"functions in src: {functions.number}, {means}, {longest}")
    print(f"a KV node: {len(node.pdd_modules)} modules of pdd, {', '.join(node.libraries)}, {node.rss_mib} MiB")
    for measure in house.measures:
        of_few = ", ".join(f"{each.key} {each.number}" for each in measure.counts if len(measure.counts) < 6)
        print(f"{measure.name:<44}{measure.total:>6} in {len(measure.counts)}{': ' if of_few else ''}{of_few}")
    for each in sorted(found, key=lambda each: each.is_worse):
        print(each)


if __name__ == "__main__":
    raise SystemExit(main())
