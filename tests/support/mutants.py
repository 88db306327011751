"""Mutants: a module's text with one guard removed, loaded in place of the real one, and whether tests notice it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import product
from types import CodeType, ModuleType
from typing import Any

import pytest

ROOT = "pdd"
LONGEST = 3_000.0
"""Virtual seconds that a test may take. Without the mutant each ends long before; with it some would go on for ever."""

_FAILURES = (Exception, BaseExceptionGroup, pytest.fail.Exception)


@dataclass(frozen=True)
class Mutant:
    """``old`` occurs exactly once in ``module``."""

    guard: str
    module: str
    old: str
    new: str

    @property
    def module_name(self) -> str:
        return f"{ROOT}.{self.module}"


@dataclass(frozen=True)
class UnitMutant(Mutant):
    """``killer`` is the unit test that notices it, as ``module of tests.unit:function``."""

    killer: str


class _MutantLoader(SourceFileLoader):
    """Compiles the mutant's text, past all caches."""

    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module_name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        assert source.count(self._mutant.old) == 1, f"{self._mutant.guard}: its text occurs exactly once"
        return compile(source.replace(self._mutant.old, self._mutant.new), self.path, "exec")


class _MutantFinder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname, path=None, target=None) -> ModuleSpec | None:
        if fullname != self._mutant.module_name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _MutantLoader(self._mutant, spec.origin)
        return spec


@contextmanager
def mutated(mutant: Mutant, *packages: str) -> Iterator[None]:
    """Whatever of ``packages`` is imported within this context is made anew, from the mutant; the real ones are
    untouched.
    """
    real = _loaded(packages)
    finder = _MutantFinder(mutant)
    sys.meta_path.insert(0, finder)
    _forget(real)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget(_loaded(packages))
        _restore(real)


def _loaded(packages: tuple[str, ...]) -> dict[str, ModuleType]:
    return {
        name: module
        for name, module in sys.modules.items()
        if any(name == package or name.startswith(f"{package}.") for package in packages)
    }


def _forget(modules: Mapping[str, ModuleType]) -> None:
    for name in modules:
        del sys.modules[name]


def _restore(modules: Mapping[str, ModuleType]) -> None:
    """Their parents, too, know them again."""
    sys.modules.update(modules)
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)


# What tests say of it -------------------------------------------------------------------------------------------------


def failure_of(killer: str) -> str | None:
    """How the test fails, as it is loaded now; None if it passes with all its parameters."""
    module_name, _, name = killer.partition(":")
    test = getattr(importlib.import_module(f"tests.unit.{module_name}"), name)
    with _bounded_time():
        for arguments in _cases(test):
            try:
                test(**arguments)
            except _FAILURES as error:  # a mutant may fail in any way: a wrong result, a deadlock, a crash
                return f"{type(error).__name__}: {error}"
    return None


def _cases(test: Callable[..., object]) -> Iterator[dict[str, Any]]:
    """The arguments of each call that ``pytest.mark.parametrize`` asks for.

    Fixtures and coroutines are not for this.
    """
    assert not inspect.iscoroutinefunction(test)
    axes = [
        [_bound(mark.args[0], values) for values in mark.args[1]]
        for mark in getattr(test, "pytestmark", ())
        if mark.name == "parametrize"
    ]
    for chosen in product(*axes):
        yield {name: value for each in chosen for name, value in each.items()}


def _bound(names: str | tuple[str, ...], values: Any) -> dict[str, Any]:
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    return dict(zip(split, values if len(split) > 1 else (values,), strict=True))


@contextmanager
def _bounded_time() -> Iterator[None]:
    """Virtual time ends some day."""
    loop = importlib.import_module(f"{ROOT}.sim.loop").VirtualTimeLoop
    advance = loop.advance

    def advance_until(self: Any, duration: float) -> None:
        before = self.time()
        advance(self, duration)
        assert not before < LONGEST <= self.time(), "this test would go on for ever"

    loop.advance = advance_until
    try:
        yield
    finally:
        loop.advance = advance
