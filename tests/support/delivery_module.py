"""Deliveries under test: the real modules, or a text of one with one guard removed, loaded beside it under another
name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from pdd.protocol import capacity_queue, delivery, standstill

SOURCES = {
    "delivery": Path(delivery.__file__).read_text(encoding="utf-8"),
    "standstill": Path(standstill.__file__).read_text(encoding="utf-8"),
    "capacity_queue": Path(capacity_queue.__file__).read_text(encoding="utf-8"),
}


@contextmanager
def deliveries_from(changed: str = "delivery", source: str = SOURCES["delivery"]) -> Iterator[Any]:
    """What ``delivery`` offers, ``CapacityQueue`` too, with ``source`` in place of the module ``changed``."""
    modules = {name: _load(name, source if name == changed else text) for name, text in SOURCES.items()}
    # They must agree on what a turn is, and a delivery must use the text beside it.
    modules["capacity_queue"].__dict__["Turn"] = capacity_queue.Turn
    modules["delivery"].__dict__["Standstill"] = modules["standstill"].__dict__["Standstill"]
    modules["delivery"].__dict__["CapacityQueue"] = modules["capacity_queue"].__dict__["CapacityQueue"]
    try:
        yield modules["delivery"]
    finally:
        for module in modules.values():
            del sys.modules[module.__name__]


def _load(name: str, source: str) -> ModuleType:
    module = ModuleType(f"{name}_under_test_{uuid4().hex}")
    sys.modules[module.__name__] = module  # dataclasses look their module up by name
    exec(compile(source, f"<{module.__name__}>", "exec"), module.__dict__)
    return module
