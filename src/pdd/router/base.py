"""The seam between the HTTP front door and the driver: a request for tokens in, an answer of attributed spans out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from pdd.core.ids import RequestId, Salt, TenantId, TokenId, WorkerId
from pdd.core.request import FinishReason, Role, Route, Sampling, Steering
from pdd.core.units import Bytes, Seconds
from pdd.telemetry.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """One request, tokenized and checked: everything the driver needs and nothing of HTTP."""

    request_id: RequestId
    tenant: TenantId
    prompt: tuple[TokenId, ...]
    max_tokens: int
    stop_token_ids: frozenset[TokenId]
    sampling: Sampling
    salt: Salt
    steering: Steering = Steering()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedSpan:
    """Output tokens for the client, in order, each position exactly once, and who computed them.

    ``finish_reason`` is set on the last span only; that span may be empty.
    """

    first_position: int
    tokens: tuple[TokenId, ...]
    role: Role
    worker: WorkerId
    finish_reason: FinishReason | None = None


@dataclass(slots=True, kw_only=True)
class RequestReport:
    """What happened to one request; filled in while it runs, complete when its answer's context ends.

    Times are seconds since the request was opened. ``handoff_gap_s`` is the client's longest wait across a hand-off.

    ``wan_kv_bytes`` is KV payload that source nodes had reported as sent to nodes of other clusters for this request by
    its end; blocks sent again after a lost connection count again. A transfer that outlives the request goes on without
    changing it: the rest is in the router's total (``Driver.wan_kv_bytes``) only.
    """

    route: Route | None = None
    route_reason: str = ""
    filtered: bool = False
    queued_s: Seconds = Seconds(0.0)
    num_prompt_tokens: int = 0
    num_prompt_blocks: int = 0
    tokens_by_role: dict[Role, int] = field(default_factory=dict[Role, int])
    ttft_s: Seconds | None = None
    ttst_s: Seconds | None = None
    max_itl_s: Seconds | None = None
    median_itl_s: Seconds | None = None
    handoff_gap_s: Seconds | None = None
    handoff_rounds: int = 0
    wan_kv_bytes: Bytes = Bytes(0)
    missing_blocks_at_prefill: int | None = None
    missing_blocks_at_main: int | None = None
    events: list[Event] = field(default_factory=list[Event])


class Answer(Protocol):
    """One running answer. Iterate it once; it ends after the span that has a ``finish_reason``."""

    @property
    def report(self) -> RequestReport: ...

    def __aiter__(self) -> AsyncIterator[EmittedSpan]: ...

    def complete(self) -> None:
        """Declares the answer complete as it is (a stop string was found): decoders stop, the KV transfer goes on."""
        ...


class Service(Protocol):
    """Answers requests. Implemented by ``router.driver``."""

    def open(self, request: TokenRequest) -> AbstractAsyncContextManager[Answer]:
        """Starts a request. Leaving the context before the answer finished or was completed means the client left:
        prefill, transfer and decode are cancelled. When the context has ended nothing of the request is held anywhere.

        Iterating the answer raises (before its first span, or after some of them):
            Unavailable: no worker can serve it now. After the first span: no route to the next token is left.
            ContextTooLong: it can never fit.
        """
        ...
