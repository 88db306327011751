"""One event schema for everything that happens to requests, live and simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pdd.core.ids import RequestId
from pdd.core.units import Seconds

Field = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, ``at`` seconds on the clock of whoever recorded it. Never holds prompts or tokens."""

    at: Seconds
    name: str
    request: RequestId | None = None
    fields: dict[str, Field] = field(default_factory=dict[str, Field])


EventSink = Callable[[Event], None]
"""Takes an event at once; never waits, never fails."""
