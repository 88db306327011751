"""What a tree of Python files is made of: its files, their functions, their sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Source:
    """One parsed file. ``path`` is relative to the repository, ``module`` is how it is imported."""

    path: str
    module: str
    is_package: bool
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node once: walking is most of the work, and several measures walk."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def num_statements(self) -> int:
        """Without texts that stand alone: docstrings."""
        return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in self.nodes)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSize:
    """``lines`` go from ``def`` to the end, decorators aside; ``arguments`` leave ``self`` and ``cls`` out."""

    name: str
    where: str
    lines: int
    arguments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSize:
    statements: int
    lines: int


def read_sources(root: Path, folder: Path, *, packages_in: Path) -> list[Source]:
    """Every Python file below ``folder``; ``packages_in`` is what ``sys.path`` would hold."""
    return [_read(root, file, packages_in) for file in sorted(folder.rglob("*.py"))]


def _read(root: Path, file: Path, packages_in: Path) -> Source:
    parts = file.relative_to(packages_in).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Source(
        path=file.relative_to(root).as_posix(),
        module=".".join(parts[:-1] if is_package else parts),
        is_package=is_package,
        text=file.read_text(encoding="utf-8"),
    )


def size_of(sources: Iterable[Source]) -> CodeSize:
    """Statements without docstrings, those of attributes among them, and lines with everything."""
    files = list(sources)
    return CodeSize(statements=sum(each.num_statements for each in files), lines=sum(len(each.lines) for each in files))


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case _:
            return False


def sizes_by_package(sources: Iterable[Source]) -> dict[str, CodeSize]:
    """By the package right below the root package; the root's own files are there under its name."""
    of_package: dict[str, list[Source]] = {}
    for source in sources:
        parts = source.module.split(".")
        of_package.setdefault(".".join(parts[:2]), []).append(source)
    return {name: size_of(files) for name, files in sorted(of_package.items())}


def functions_of(source: Source) -> Iterator[FunctionSize]:
    """Every function, methods and inner ones too, by its qualified name."""
    pending: list[tuple[str, ast.AST]] = [(source.module, source.tree)]
    while pending:
        prefix, parent = pending.pop()
        for node in ast.iter_child_nodes(parent):
            named = isinstance(node, Function | ast.ClassDef)
            name = f"{prefix}.{node.name}" if named else prefix
            if isinstance(node, Function):
                yield _size_of_function(source, name, node)
            if isinstance(node, ast.stmt | ast.match_case | ast.ExceptHandler):
                pending.append((name, node))


def _size_of_function(source: Source, name: str, node: Function) -> FunctionSize:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return FunctionSize(
        name=name, where=f"{source.path}:{node.lineno}", lines=lines, arguments=len(list(arguments_of(node)))
    )


def arguments_of(node: Function) -> Iterator[ast.arg]:
    """All of them but ``self`` and ``cls``."""
    given = node.args
    several = [each for each in (given.vararg, given.kwarg) if each is not None]
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several):
        if each.arg not in {"self", "cls"}:
            yield each
