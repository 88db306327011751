"""What the router asks of an engine over HTTP: vLLM's token-level request, as bytes. No I/O.

Requests are read strictly: unknown fields and values out of range are refused, never ignored, since a parameter that an
engine silently drops gives a wrong answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from pdd.core.errors import ContextTooLong, InvalidRequest, UnknownModel
from pdd.core.ids import RequestId, Salt, TokenId
from pdd.core.request import Generation, Sampling
from pdd.engine.base import EngineInfo

GENERATE_PATH = "/inference/v1/generate"
MAX_SEED = 2**63
MAX_NAME_LENGTH = 256
"""Of a request ID or a cache salt, in characters."""


class SamplingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``sampling_params``: those that engines here honour, then those that only their neutral value passes.

    Defaults are vLLM's own, and are left out when sent.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    """No effect: engines behind this interface know no end token but those in ``stop_token_ids``."""
    detokenize: bool = True
    """No effect: there is no text here."""
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: list[str] | None = None


class TransferBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``kv_transfer_params``: what PDD adds to a request."""

    request_id: str | None = None
    attempt: int = 0
    num_prompt_tokens: int | None = None
    choice: int = 0
    seed: int | None = None
    """Here rather than in ``sampling_params``, where it makes vLLM keep a generator for the request: of no use, and on
    CPUs its end when a prefill takes more than one step.
    """
    temperature: float | None = None
    """The exact one, since vLLM lifts ``sampling_params.temperature`` to 0.01 where it lies between 0 and that."""


class GenerateBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The body of ``POST /inference/v1/generate``."""

    token_ids: list[int]
    sampling_params: SamplingBody
    request_id: str = ""
    model: str | None = None
    stream: bool | None = False
    stream_options: None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: TransferBody | None = None


_NEUTRAL = SamplingBody()
_NEUTRAL_FIELDS = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_p",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
)


_BODY_DECODER = msgspec.json.Decoder(GenerateBody)


def encode_generation(generation: Generation, *, model: str | None) -> bytes:
    """The streaming request for ``generation``.

    Its ID names the attempt too, since vLLM's must be unique while running.
    """
    sampling = generation.sampling
    body = GenerateBody(
        request_id=f"{generation.request_id}.{generation.attempt}",
        token_ids=list(generation.known_tokens),
        model=model,
        stream=True,
        cache_salt=generation.salt or None,
        sampling_params=SamplingBody(
            max_tokens=generation.max_tokens,
            temperature=sampling.temperature,
            top_k=-1 if sampling.top_k is None else sampling.top_k,
            top_p=sampling.top_p,
            stop_token_ids=sorted(generation.stop_token_ids),
            ignore_eos=True,
            detokenize=False,
        ),
        kv_transfer_params=TransferBody(
            request_id=generation.request_id,
            attempt=generation.attempt,
            num_prompt_tokens=generation.num_prompt_tokens,
            choice=sampling.choice,
            seed=sampling.seed,
            temperature=sampling.temperature,
        ),
    )
    return msgspec.json.encode(body)


def decode_body(raw: bytes) -> GenerateBody:
    """Checks shape and types only; ``read_generation`` checks values.

    Raises:
        InvalidRequest: not JSON, an unknown field, a wrong type.
    """
    try:
        return _BODY_DECODER.decode(raw)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise InvalidRequest(str(error), param=_param_of(message, path), code="invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None


def read_transfer(fields: Mapping[str, object]) -> TransferBody:
    """``kv_transfer_params`` that somebody else has decoded; ranges are checked as far as they depend on nothing else.

    Raises:
        InvalidRequest: an unknown field, a wrong type, a value out of range.
    """
    try:
        transfer = msgspec.convert(fields, TransferBody)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"kv_transfer_params: {error}", param="kv_transfer_params", code="invalid_type") from None
    _check_transfer(transfer)
    return transfer


def read_generation(body: GenerateBody, info: EngineInfo, *, vocab_size: int) -> Generation:
    """What the request asks of this engine.

    Raises:
        InvalidRequest: a value is out of range; the message names field, value and limit.
    """
    _check_model(body, info)
    _require_range("priority", body.priority, low=0, high=0)
    _require_length("cache_salt", body.cache_salt or "")
    _require_length("request_id", body.request_id)
    num_known = len(body.token_ids)
    if num_known == 0:
        raise InvalidRequest("token_ids is empty; at least 1 token is needed", param="token_ids")
    _require_tokens("token_ids", body.token_ids, vocab_size)
    transfer = body.kv_transfer_params or TransferBody()
    _check_transfer(transfer)
    num_prompt = num_known if transfer.num_prompt_tokens is None else transfer.num_prompt_tokens
    _require_range("kv_transfer_params.num_prompt_tokens", num_prompt, low=1, high=num_known)
    return Generation(
        request_id=RequestId(transfer.request_id or body.request_id),
        attempt=transfer.attempt,
        known_tokens=tuple(body.token_ids),
        num_prompt_tokens=num_prompt,
        max_tokens=_read_max_tokens(body, info),
        stop_token_ids=_read_stops(body.sampling_params, vocab_size),
        sampling=_read_sampling(body.sampling_params, transfer),
        salt=Salt(body.cache_salt or ""),
    )


def _param_of(message: str, path: str) -> str | None:
    """The offending field's path, from msgspec's words; for an unknown or missing one, that field's own."""
    parent = path.rstrip("`").lstrip(".")
    if "field `" not in message:
        return parent or None
    name = message.split("field `", 1)[1].split("`", 1)[0]
    return f"{parent}.{name}" if parent else name


def _check_transfer(transfer: TransferBody) -> None:
    _require_length("kv_transfer_params.request_id", transfer.request_id or "")
    _require_range("kv_transfer_params.attempt", transfer.attempt, low=0, high=None)
    _require_range("kv_transfer_params.choice", transfer.choice, low=0, high=None)
    if transfer.num_prompt_tokens is not None:
        _require_range("kv_transfer_params.num_prompt_tokens", transfer.num_prompt_tokens, low=1, high=None)
    if transfer.seed is not None:
        _require_range("kv_transfer_params.seed", transfer.seed, low=0, high=MAX_SEED - 1)
    if transfer.temperature is not None:
        _require_temperature("kv_transfer_params.temperature", transfer.temperature)


def _check_model(body: GenerateBody, info: EngineInfo) -> None:
    if body.model is not None and body.model != info.model:
        raise UnknownModel(
            f"model is {body.model!r}; this engine serves {info.model!r}", param="model", code="model_not_found"
        )


def _read_max_tokens(body: GenerateBody, info: EngineInfo) -> int:
    """Without ``max_tokens``, whatever the context still holds (as vLLM does)."""
    num_known = len(body.token_ids)
    asked = body.sampling_params.max_tokens
    if asked is not None:
        _require_range("sampling_params.max_tokens", asked, low=1, high=None)
    if num_known + (asked or 1) > info.max_model_tokens:
        raise ContextTooLong(
            f"token_ids has {num_known} tokens and sampling_params.max_tokens is {asked}; "
            f"together they may be at most {info.max_model_tokens}",
            param="token_ids",
            code="context_length_exceeded",
        )
    return info.max_model_tokens - num_known if asked is None else asked


def _read_sampling(params: SamplingBody, transfer: TransferBody) -> Sampling:
    for field in _NEUTRAL_FIELDS:
        value, neutral = getattr(params, field), getattr(_NEUTRAL, field)
        if value != neutral:
            raise _refusal(f"sampling_params.{field}", value, f"only {neutral} is supported", "unsupported_parameter")
    if params.stop:
        raise _refusal("sampling_params.stop", "set", "only null or [] is supported", "unsupported_parameter")
    _require_temperature("sampling_params.temperature", params.temperature)
    if transfer.temperature not in (None, params.temperature):
        limit = f"it must be that of sampling_params, {params.temperature}"
        raise _refusal("kv_transfer_params.temperature", transfer.temperature, limit)
    if not 0.0 < params.top_p <= 1.0:
        raise _refusal("sampling_params.top_p", params.top_p, "it must be above 0 and at most 1")
    _require_range("sampling_params.top_k", params.top_k, low=-1, high=None)
    return Sampling(
        temperature=params.temperature,
        top_k=params.top_k if params.top_k > 0 else None,
        top_p=params.top_p,
        seed=_read_seed(params, transfer),
        choice=transfer.choice,
    )


def _read_seed(params: SamplingBody, transfer: TransferBody) -> int:
    """It may be given in either place."""
    if params.seed is not None:
        _require_range("sampling_params.seed", params.seed, low=0, high=MAX_SEED - 1)
    if params.seed is not None and transfer.seed not in (None, params.seed):
        raise _refusal("kv_transfer_params.seed", transfer.seed, f"it must be that of sampling_params, {params.seed}")
    seed = params.seed if transfer.seed is None else transfer.seed
    if seed is None and params.temperature > 0.0:
        raise _refusal("sampling_params.seed", None, "it is needed when temperature is above 0")
    return seed or 0


def _read_stops(params: SamplingBody, vocab_size: int) -> frozenset[TokenId]:
    stops = params.stop_token_ids or []
    _require_tokens("sampling_params.stop_token_ids", stops, vocab_size)
    return frozenset(stops)


def _require_tokens(field: str, tokens: list[int], vocab_size: int) -> None:
    """The common case, all in range, costs two passes in C."""
    if not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size):
        return
    index = next(index for index, token in enumerate(tokens) if not 0 <= token < vocab_size)
    raise _refusal(f"{field}[{index}]", tokens[index], f"it must be from 0 to {vocab_size - 1}")


def _require_range(field: str, value: int, *, low: int, high: int | None) -> None:
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise _refusal(field, value, f"it must be {limit}")


def _require_temperature(field: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0.0):
        raise _refusal(field, value, "it must be finite and at least 0")


def _require_length(field: str, text: str) -> None:
    if len(text) > MAX_NAME_LENGTH:
        raise _refusal(field, f"{len(text)} characters long", f"it may have at most {MAX_NAME_LENGTH}")


def _refusal(field: str, value: object, limit: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"{field} is {value}; {limit}", param=field, code=code)
