"""What the router needs of an engine, whichever it is: token IDs in, spans of token IDs out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Generation, TokenSpan
from pdd.core.units import Seconds

RETRY_AFTER = Seconds(1.0)
"""What an engine that is full, or is not up, tells those that it turns away; and what is taken for it if it does not
say.
"""
MAX_WAITING = 1024
"""So many generations queue at an engine that only pretends to compute (scripted, modelled); more are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a ready engine says about itself: what it must agree on with its router, and who it is.

    ``kv_format`` describes the blocks that it exchanges (``KvFormat.description``), ``node`` is where it does so, and
    ``sampling_version`` is how it draws tokens (``engine.noise``); None where an engine doesn't say. ``instance``
    differs after each restart of its process.
    """

    model: str
    max_model_tokens: int
    kv_format: str | None
    sampling_version: int | None
    node: NodeId | None
    instance: str


class EngineClient(Protocol):
    """One engine, as seen by the router. Implementations: ``engine.http`` (ours and vLLM's), ``engine.scripted``."""

    @property
    def worker(self) -> WorkerId: ...

    def generate(self, generation: Generation) -> AsyncGenerator[TokenSpan]:
        """Streams the tokens after ``generation.known_tokens``.

        Spans are contiguous from ``generation.first_position``; exactly the last one has a ``finish_reason``. An
        *extend* is a generation with ``max_tokens=1`` whose token the caller drops: it leaves the known tokens' KV
        cached. Closing the generator (``aclose``) aborts at the engine.

        Raises:
            InvalidRequest: the engine refuses the request as it is.
            Unavailable: the engine is not up, or has no room.
            WorkerFailed: it died, hung up or broke this contract after it began.
        """
        ...

    async def info(self) -> EngineInfo:
        """Asks the engine for its description; also the health check.

        Raises:
            Unavailable: the engine is not up.
        """
        ...
