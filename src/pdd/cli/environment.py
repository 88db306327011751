"""The process's environment, where a library reads its settings there."""

from __future__ import annotations

import os
from collections.abc import Mapping


def set_defaults(environment: Mapping[str, str]) -> None:
    """Sets what the user has not. Before the library is imported: most read their environment once, then."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
