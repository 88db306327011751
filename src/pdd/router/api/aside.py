"""Work on texts of any length: where it is short on the event loop, else on a thread.

A thread only helps if no single step of it holds the interpreter for long: whoever calls this sees to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def aside(size: int, few: int, work: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """Calls ``work`` on ``size`` characters or bytes: on a thread if they are not ``few``.

    To change threads costs as much as to read some KB.
    """
    if size <= few:
        return work(*arguments, **named)
    return await asyncio.to_thread(work, *arguments, **named)
