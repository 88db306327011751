"""The relay under test: the real module, or a text of it with one guard removed, loaded beside it under another name."""

import sys
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from pdd.protocol import relay

SOURCE = Path(relay.__file__).read_text(encoding="utf-8")


def load_relay(source: str) -> ModuleType:
    """A module of its own from ``source``; the real one is untouched. Give it back to ``unload_relay``."""
    module = ModuleType(f"relay_under_test_{uuid4().hex}")
    sys.modules[module.__name__] = module  # dataclasses look their module up by name
    exec(compile(source, f"<{module.__name__}>", "exec"), module.__dict__)
    return module


def unload_relay(module: ModuleType) -> None:
    del sys.modules[module.__name__]
