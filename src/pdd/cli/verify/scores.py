"""Asks the unbroken engine how likely it found every token at one position. Only where two answers differ."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import aiohttp
import msgspec
import numpy as np
import numpy.typing as npt

from pdd.cli.environment import set_defaults
from pdd.core.errors import ConfigError, WorkerFailed
from pdd.core.ids import Salt, TokenId
from pdd.core.request import Role
from pdd.core.topology import Address, EngineKind, Topology
from pdd.core.units import Seconds
from pdd.engine.catalog import model_of
from pdd.engine.http.wire_request import GENERATE_PATH

if TYPE_CHECKING:
    from pdd.engine.embedded.alone import LoneModel

Logits = npt.NDArray[np.floating]
_TIMEOUT = Seconds(120.0)


class ReferenceScores(Protocol):
    """What the unbroken engine makes of some known tokens."""

    async def logits_after(self, known_tokens: Sequence[TokenId], salt: Salt) -> Logits:
        """``[vocab]``, up to a constant that is added to all of them; ``salt`` says in whose cache they are.

        Raises:
            PddError: the engine doesn't tell.
        """
        ...


@asynccontextmanager
async def open_scores(topology: Topology) -> AsyncGenerator[ReferenceScores]:
    """The scores of main decode in a deployment that runs.

    Raises:
        ConfigError: it is an engine of a kind that has none.
    """
    main = topology.engines_of(Role.MAIN_DECODE)[0]
    match main.kind:
        case EngineKind.EMBEDDED:
            yield EmbeddedScores(topology)
        case EngineKind.VLLM:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT)) as session:
                vocab_size = model_of(topology).vocab_size
                yield VllmScores(session, Address(host=main.host, port=main.port), vocab_size=vocab_size)
        case EngineKind.SCRIPTED | EngineKind.MODELLED:
            raise ConfigError(f"engine {main.name!r}: kind {main.kind} has no scores")


class EmbeddedScores:
    """Computed in this process, to the same bits as in the engine's; the model is loaded when first needed."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._one_at_a_time = threading.Lock()

    async def logits_after(self, known_tokens: Sequence[TokenId], salt: Salt) -> Logits:  # noqa: ARG002 (it has no cache)
        return await asyncio.to_thread(self._compute, known_tokens)

    def _compute(self, known_tokens: Sequence[TokenId]) -> Logits:
        with self._one_at_a_time:
            return self._model.logits_after(known_tokens)

    @cached_property
    def _model(self) -> LoneModel:
        from pdd.engine.embedded.environment import TORCH_ENVIRONMENT

        set_defaults(TORCH_ENVIRONMENT)
        from pdd.engine.embedded.alone import LoneModel

        topology = self._topology
        return LoneModel.load(model_of(topology), max_model_tokens=topology.max_model_tokens)


class VllmScores:
    """From a vLLM server that was started with ``--max-logprobs -1``: raw log-probabilities, before any processor."""

    def __init__(self, session: aiohttp.ClientSession, address: Address, *, vocab_size: int) -> None:
        self._session = session
        self._url = f"http://{address}{GENERATE_PATH}"
        self._vocab_size = vocab_size

    async def logits_after(self, known_tokens: Sequence[TokenId], salt: Salt) -> Logits:
        body = _score_request(known_tokens, salt)
        try:
            async with self._session.post(self._url, json=body) as response:
                reply = await response.read()
                if response.status != HTTPStatus.OK:
                    raise WorkerFailed(f"{self._url} tells no scores: {response.status} {reply[:500]!r}")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkerFailed(f"{self._url} tells no scores: {error or type(error).__name__}") from error
        return read_scores(reply, vocab_size=self._vocab_size)


class _Candidate(msgspec.Struct):
    token_id: int
    logprob: float


class _Position(msgspec.Struct):
    top_logprobs: list[_Candidate]


class _Content(msgspec.Struct):
    content: list[_Position]


class _Choice(msgspec.Struct):
    logprobs: _Content


class _Reply(msgspec.Struct):
    choices: list[_Choice]


def _score_request(known_tokens: Sequence[TokenId], salt: Salt) -> dict[str, object]:
    sampling = {"max_tokens": 1, "temperature": 0.0, "logprobs": -1, "ignore_eos": True, "detokenize": False}
    return {"token_ids": list(known_tokens), "cache_salt": salt, "sampling_params": sampling}


def read_scores(reply: bytes, *, vocab_size: int) -> Logits:
    """The log-probabilities ``[vocab_size]`` in a whole answer of one token.

    Raises:
        WorkerFailed: it holds none, or of fewer tokens than the vocabulary has.
    """
    try:
        candidates = msgspec.json.decode(reply, type=_Reply).choices[0].logprobs.content[0].top_logprobs
    except (msgspec.DecodeError, IndexError) as error:
        raise WorkerFailed(f"the engine's scores can't be read: {error}") from error
    if len(candidates) < vocab_size:
        raise WorkerFailed(f"the engine told {len(candidates)} scores of {vocab_size}: it needs --max-logprobs -1")
    logits = np.full(max(candidate.token_id for candidate in candidates) + 1, -np.inf)
    for candidate in candidates:
        logits[candidate.token_id] = candidate.logprob
    return logits
