"""Which rows of vLLM's batch belong to seeded requests of the router, and at which output position each of them stands.

Knows no vLLM: ``sampling`` feeds it what either of vLLM's model runners says of its batch. A row is left alone unless
its request's ``kv_transfer_params`` say how long the prompt was (``num_prompt_tokens``) and with which seed to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pdd.core.errors import InvalidRequest
from pdd.core.request import Sampling
from pdd.engine.http.wire_request import TransferBody, read_transfer

TRANSFER_KEY = "kv_transfer_params"
"""Where vLLM puts what the router adds to a request, in its ``extra_args``."""


class RequestParams(Protocol):
    """The part of vLLM's ``SamplingParams`` that is read here."""

    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    extra_args: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededRequest:
    """How one request draws. ``num_prompt_tokens`` are the prompt's alone; what vLLM calls its prompt may be longer."""

    sampling: Sampling
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededRow:
    """A request in vLLM's batch. ``output`` is vLLM's own list, which grows by one token a step.

    Under asynchronous scheduling its last entries may be placeholders: only its length counts.
    """

    request: SeededRequest
    num_known_tokens: int
    output: Sequence[int]

    @property
    def position(self) -> int:
        """The output position of the token that is drawn next."""
        return self.num_known_tokens + len(self.output) - self.request.num_prompt_tokens


Added = tuple[int, RequestParams, Sequence[int] | None, Sequence[int]]
"""Row, parameters, known tokens (None: they were given as embeddings), the list of output tokens."""


class Direction(Protocol):
    """vLLM's ``MoveDirectionality``: ``SWAP``, or a move that overwrites its target."""

    @property
    def name(self) -> str: ...


class BatchUpdate(Protocol):
    """What changed in the batch since the last step."""

    @property
    def removed(self) -> Sequence[int]: ...
    @property
    def added(self) -> Sequence[Added]: ...
    @property
    def moved(self) -> Sequence[tuple[int, int, Direction]]: ...


class SeededRows:
    """The batch's seeded rows, by index."""

    def __init__(self) -> None:
        self._rows: dict[int, SeededRow] = {}

    def update(self, change: BatchUpdate) -> None:
        """Follows the batch: removals first, then additions (which may replace), then moves, one after the other."""
        for index in change.removed:
            self._rows.pop(index, None)
        for index, params, known, output in change.added:
            self._put(index, _row_of(params, known, output))
        for source, target, direction in change.moved:
            moved, met = self._rows.pop(source, None), self._rows.pop(target, None)
            self._put(target, moved)
            if direction.name == "SWAP":
                self._put(source, met)

    def current(self) -> list[tuple[int, SeededRow]]:
        return list(self._rows.items())

    def _put(self, index: int, row: SeededRow | None) -> None:
        if row is None:
            self._rows.pop(index, None)
        else:
            self._rows[index] = row


def read_request(params: RequestParams) -> SeededRequest | None:
    """None: not the router's, greedy, or without a seed.

    Raises:
        InvalidRequest: it is the router's, and says what can't be.
    """
    transfer = _transfer_of(params)
    if transfer is None or transfer.num_prompt_tokens is None:
        return None
    if params.seed is not None:
        raise InvalidRequest(
            f"sampling_params.seed is {params.seed}; for vLLM it belongs into kv_transfer_params.seed",
            param="sampling_params.seed",
        )
    if transfer.seed is None:
        return None
    # vLLM has lifted temperatures next to 0; the exact one is beside them.
    temperature = params.temperature if transfer.temperature is None else transfer.temperature
    if temperature == 0.0:
        return None
    sampling = Sampling(
        temperature=temperature,
        top_k=params.top_k if params.top_k > 0 else None,
        top_p=params.top_p,
        seed=transfer.seed,
        choice=transfer.choice,
    )
    return SeededRequest(sampling=sampling, num_prompt_tokens=transfer.num_prompt_tokens)


def _row_of(params: RequestParams, known: Sequence[int] | None, output: Sequence[int]) -> SeededRow | None:
    request = read_request(params)
    if request is None or known is None:
        return None
    return SeededRow(request=request, num_known_tokens=len(known), output=output)


def _transfer_of(params: RequestParams) -> TransferBody | None:
    """Other connectors' parameters are none of ours."""
    found: dict[str, Any] | None = (params.extra_args or {}).get(TRANSFER_KEY)
    return None if not found or "num_prompt_tokens" not in found else read_transfer(found)
