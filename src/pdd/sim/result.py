"""What a simulated run leaves behind: one sample per request, and what was seen of lines and caches over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pdd.core.ids import NodeId, RequestId, TenantId, WorkerId
from pdd.core.request import Role, Route
from pdd.core.units import Bytes, BytesPerSecond, Seconds


class Outcome(StrEnum):
    """How a request ended, as its client saw it."""

    COMPLETE = "complete"
    REFUSED = "refused"
    """Before its first token: there was no room, or nobody to serve it."""
    BROKEN = "broken"
    """After its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSample:
    """One request as its client saw it, and what the router reported of it. Times are seconds since it was sent.

    ``itl_s`` holds (interval, how many tokens came at it); tokens that come in one span share its time.
    ``decode_first_token_s`` is when the first token that was not prefill's arrived: TTFT where prefill's own token is
    not sent. ``transfer_s`` is from the end of prefill until main decode's node held the whole prompt.
    """

    request_id: RequestId
    tenant: TenantId
    sent_at: Seconds
    outcome: Outcome
    num_prompt_tokens: int
    num_output_tokens: int
    ttft_s: Seconds | None
    ttst_s: Seconds | None
    decode_first_token_s: Seconds | None
    ended_s: Seconds
    itl_s: tuple[tuple[Seconds, int], ...]
    max_itl_s: Seconds | None
    handoff_gap_s: Seconds | None
    route: Route | None
    filtered: bool
    queued_s: Seconds
    tokens_by_role: Mapping[Role, int]
    wan_kv_bytes: Bytes
    transfer_s: Seconds | None
    prefill_hit_tokens: int | None
    missing_blocks_at_main: int | None
    num_prompt_blocks: int
    retry_after_s: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The state of things at one moment, ``at`` seconds after the beginning."""

    at: Seconds
    running: Mapping[WorkerId, int]
    queued: int
    wan_bytes: Mapping[str, Bytes]
    """KV payload sent so far, by link."""
    held_blocks: Mapping[NodeId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run.

    ``duration_s`` is from the first request sent to the last one ended; neither samples nor readings are empty.
    """

    samples: tuple[RequestSample, ...]
    readings: tuple[Reading, ...]
    duration_s: Seconds
    link_rates: Mapping[str, BytesPerSecond]
