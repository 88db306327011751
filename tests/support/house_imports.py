"""Who imports whom in a tree of Python files, and where that goes in circles.

Imports inside of functions count: they put a circle off, they don't undo it. What ``importlib`` is given as text
doesn't count.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.support.house_code import Source

Graph = Mapping[str, Collection[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """``importer`` and ``imported`` are modules; ``for_types`` says that it is under ``if TYPE_CHECKING``."""

    importer: str
    imported: str
    where: str
    for_types: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """Members that all reach each other, and the imports between them."""

    members: tuple[str, ...]
    imports: Mapping[str, tuple[str, ...]]
    """The lines that make each, by ``importer -> imported``."""


def imports_of(sources: Collection[Source]) -> list[Import]:
    """All imports from one of these files to another."""
    known = {source.module for source in sources}
    return [each for source in sources for each in _imports_in(source, known)]


def _imports_in(source: Source, known: Collection[str]) -> Iterator[Import]:
    pending: list[tuple[ast.AST, bool]] = [(source.tree, False)]
    while pending:
        node, for_types = pending.pop()
        for name in _names_imported(node):
            imported = _module_of(name, known)
            if imported is not None and imported != source.module:
                where = f"{source.path}:{getattr(node, 'lineno', 1)}"
                yield Import(importer=source.module, imported=imported, where=where, for_types=for_types)
        if isinstance(node, ast.If) and _asks_for_types(node.test):
            pending += [(child, True) for child in node.body] + [(child, for_types) for child in node.orelse]
        elif not isinstance(node, ast.expr):
            pending += [(child, for_types) for child in ast.iter_child_nodes(node)]


def _asks_for_types(test: ast.expr) -> bool:
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case _:
            return False


def _names_imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [each.name for each in names]
        case ast.ImportFrom(module=str() as module, names=names):
            return [f"{module}.{each.name}" for each in names]
        case _:
            return []


def _module_of(name: str, known: Collection[str]) -> str | None:
    """The module that ``name`` is, or is in."""
    if name in known:
        return name
    parent, _, _ = name.rpartition(".")
    return parent if parent in known else None


def circles_of_files(imports: Iterable[Import]) -> list[Circle]:
    return _circles([(each, each.importer, each.imported) for each in imports])


def circles_of_folders(imports: Iterable[Import], sources: Iterable[Source]) -> list[Circle]:
    """A folder is what a file lies in: an import from there to elsewhere is the folder's."""
    folder = {each.module: each.module if each.is_package else each.module.rpartition(".")[0] for each in sources}
    return _circles([(each, folder[each.importer], folder[each.imported]) for each in imports])


def _circles(edges: Collection[tuple[Import, str, str]]) -> list[Circle]:
    graph: dict[str, set[str]] = {}
    for _, one, other in edges:
        graph.setdefault(other, set())
        graph.setdefault(one, set()).add(other)
    circles: list[Circle] = []
    for members in components(graph):
        if len(members) > 1:
            places: dict[str, list[str]] = {}
            for each, one, other in edges:
                if one != other and one in members and other in members:
                    places.setdefault(f"{one} -> {other}", []).append(each.where)
            imports = {edge: tuple(dict.fromkeys(where)) for edge, where in sorted(places.items())}
            circles.append(Circle(members=tuple(sorted(members)), imports=imports))
    return sorted(circles, key=lambda circle: circle.members)


def components(graph: Graph) -> list[set[str]]:
    """The strongly connected components: who reaches each other (Kosaraju's way, without recursion)."""
    against: dict[str, list[str]] = {each: [] for each in graph}
    for one, others in graph.items():
        for other in others:
            against[other].append(one)
    found: list[set[str]] = []
    seen: set[str] = set()
    for start in reversed(_finished(graph)):
        reached = {start} - seen
        pending = list(reached)
        while pending:
            fresh = set(against[pending.pop()]) - seen - reached
            reached |= fresh
            pending += fresh
        seen |= reached
        found += [reached] if reached else []
    return found


def _finished(graph: Graph) -> list[str]:
    """Every member, each after all that can only be reached through it."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        pending = [(start, False)]
        while pending:
            each, is_done = pending.pop()
            if is_done:
                order.append(each)
            elif each not in seen:
                seen.add(each)
                pending += [(each, True), *((other, False) for other in graph[each] if other not in seen)]
    return order
