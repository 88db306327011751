"""From a checked call to a request for tokens: the prompt's IDs, the output budget, a seed, the salt.

Here a request is measured against the model and its limits; what it costs the engines is the service's business.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from pdd.core.errors import ContextTooLong, InvalidRequest, UnknownModel
from pdd.core.ids import RequestId, TenantId, TokenId
from pdd.core.request import Sampling
from pdd.core.units import Bytes, Seconds
from pdd.engine.catalog import ModelEntry
from pdd.router.api.answers import ConversationEncoder
from pdd.router.api.reading import shown
from pdd.router.api.schema import ChatCall, CompletionCall, Options, check_token_ids
from pdd.router.api.tenants import derive_salt
from pdd.router.api.tokenizer import TextCodec
from pdd.router.base import TokenRequest

_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request may ask for. ``max_model_tokens`` is prompt and output together."""

    max_model_tokens: int
    default_chat_tokens: int = 1024
    """A chat that says nothing gets what fits, up to this."""
    max_body_bytes: Bytes = Bytes(8 * 1024 * 1024)
    body_timeout_s: Seconds = Seconds(30.0)
    write_timeout_s: Seconds = Seconds(60.0)
    """A client that takes nothing for so long counts as gone."""
    keep_alive_s: Seconds = Seconds(15.0)
    """A stream that has had nothing to say for so long says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Makes ``TokenRequest`` s for one model. All its refusals are ``InvalidRequest`` s."""

    model: ModelEntry
    codec: TextCodec
    encoder: ConversationEncoder
    limits: Limits

    async def admit_chat(self, tenant: TenantId, call: ChatCall) -> TokenRequest:
        """Raises InvalidRequest (UnknownModel, ContextTooLong)."""
        self._check_options(call.options)
        num_characters = sum(len(message.content) for message in call.messages)
        self._check_least(self.codec.least_tokens(num_characters), param="messages")
        prompt = await self.encoder.encode(tenant, call.messages)
        budget = self._budget(call.options, len(prompt), default=self.limits.default_chat_tokens, param="messages")
        return self._token_request(tenant, prompt, budget, call.options)

    async def admit_completion(self, tenant: TenantId, call: CompletionCall) -> TokenRequest:
        """Raises InvalidRequest (UnknownModel, ContextTooLong)."""
        self._check_options(call.options)
        prompt = await self._completion_prompt(call)
        budget = self._budget(call.options, len(prompt), default=_DEFAULT_COMPLETION_TOKENS, param="prompt")
        return self._token_request(tenant, prompt, budget, call.options)

    def check_model(self, name: str) -> None:
        """Raises UnknownModel unless ``name`` is the model that this deployment serves."""
        if name != self.model.name:
            raise UnknownModel(
                f"model: {shown(name)} does not exist; this deployment serves {shown(self.model.name)}",
                param="model",
                code="model_not_found",
            )

    def _check_options(self, options: Options) -> None:
        if options.model is not None:
            self.check_model(options.model)
        check_token_ids("stop_token_ids", sorted(options.stop_token_ids), self.model.vocab_size)

    async def _completion_prompt(self, call: CompletionCall) -> tuple[TokenId, ...]:
        if isinstance(call.prompt, str):
            self._check_least(self.codec.least_tokens(len(call.prompt)), param="prompt")
            prompt = await self.codec.encode_document(call.prompt)
        else:
            self._check_least(len(call.prompt), param="prompt")
            check_token_ids("prompt", call.prompt, self.model.vocab_size)
            prompt = call.prompt
        if not prompt:
            raise InvalidRequest("prompt: it is empty", param="prompt", code="empty_prompt")
        return prompt

    def _check_least(self, num_tokens: int, *, param: str) -> None:
        """Before anything is spent on it: the tokens of a text take a hundred times its memory while they are found."""
        limit = self.limits.max_model_tokens
        if num_tokens > limit:
            raise ContextTooLong(
                f"the prompt has at least {num_tokens} tokens, but this model's limit is {limit} tokens",
                param=param,
                code="context_length_exceeded",
            )

    def _budget(self, options: Options, num_prompt_tokens: int, *, default: int, param: str) -> int:
        """How many tokens may be generated; refuses what exceeds the model's limit."""
        limit = self.limits.max_model_tokens
        room = limit - num_prompt_tokens
        wanted = min(default, max(room, 1)) if options.max_tokens is None else options.max_tokens
        if wanted <= room:
            return wanted
        raise ContextTooLong(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {wanted}: together "
            f"{num_prompt_tokens + wanted}, but this model's limit is {limit} tokens",
            param=param if room < 1 else "max_tokens",
            code="context_length_exceeded",
        )

    def _token_request(
        self, tenant: TenantId, prompt: tuple[TokenId, ...], max_tokens: int, options: Options
    ) -> TokenRequest:
        ends = frozenset[TokenId]() if options.ignore_eos else self.codec.stop_token_ids
        return TokenRequest(
            request_id=RequestId(secrets.token_hex(16)),
            tenant=tenant,
            prompt=prompt,
            max_tokens=max_tokens,
            stop_token_ids=ends | options.stop_token_ids,
            sampling=Sampling(
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                seed=secrets.randbits(63) if options.seed is None else options.seed,
            ),
            salt=derive_salt(tenant, options.cache_salt),
            steering=options.steering,
        )
