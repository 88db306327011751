"""Between text and token IDs: chat templates, encoding, and a decoder for each answer.

Encoding a long text blocks for milliseconds to seconds, so it goes to a thread; decoding goes token by token.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from math import inf, isinf, prod
from typing import Any, cast

import jinja2
import msgspec
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from pdd.core.errors import ConfigError, ContextTooLong, InvalidRequest
from pdd.core.ids import TokenId
from pdd.engine.models.text import TextAssets
from pdd.engine.models.token_bytes import TokenBytes
from pdd.router.api.aside import aside
from pdd.router.api.detokenizer import Detokenizer
from pdd.router.api.messages import MaskedMessage, Message
from pdd.router.api.special_text import SpecialText, TooManyTokens, encode_document

_logger = logging.getLogger(__name__)
_LONG_TEXT_CHARACTERS = 4096
"""About a millisecond of encoding: longer texts leave the event loop."""
_MOST_COMPOSED = 4
"""No character decomposes canonically into more."""
_TEMPLATE_FAULTS = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError),
    *(LookupError, RuntimeError, TypeError, ValueError),
)
"""What a template ends with that does not know what to make of a conversation."""


class TextCodec:
    """One model's text side; shared by all requests."""

    __slots__ = (
        "_assets",
        "_most_characters",
        "_most_tokens",
        "_special_ids",
        "_special_text",
        "_template",
        "_token_bytes",
    )

    def __init__(self, assets: TextAssets, *, most_tokens: int = sys.maxsize) -> None:
        """``most_tokens`` of one text are made at most.

        Raises ConfigError when the chat template is not a valid one, or the decoder can't go token by token.
        """
        self._assets = assets
        self._most_tokens = most_tokens
        self._template = _compile(assets.chat_template)
        self._special_text = SpecialText(assets.tokenizer)
        added = assets.tokenizer.get_added_tokens_decoder()
        special = frozenset(index for index, token in added.items() if token.special)
        # Not every model marks what ends its answers as special; it is no part of them either way.
        self._special_ids = special | assets.stop_token_ids
        self._token_bytes = TokenBytes(assets.tokenizer, textless=self._special_ids)
        self._most_characters = max(map(len, assets.tokenizer.get_vocab())) * _shrinkage(assets.tokenizer)

    def least_tokens(self, num_characters: int) -> int:
        """No text of so many characters has fewer tokens; costs nothing.

        Vocabularies are of characters, or of bytes, written as one character each. Control characters count, though
        some vocabularies have no token for them, and so does white space that templates trim. 0 where nothing can be
        said.
        """
        return 0 if isinf(self._most_characters) else -(-num_characters // int(self._most_characters))

    @property
    def stop_token_ids(self) -> frozenset[TokenId]:
        """What ends an answer of this model."""
        return self._assets.stop_token_ids

    def is_special(self, token: TokenId) -> bool:
        """Special tokens structure a conversation and have no text."""
        return token in self._special_ids

    def mask(self, message: Message) -> MaskedMessage:
        """A message as a template may have it: only templates write special tokens (``special_text``)."""
        masked = self._special_text.mask
        name = None if message.name is None else masked(message.name)
        return MaskedMessage(Message(role=message.role, content=masked(message.content), name=name))

    def render_chat(self, messages: Sequence[MaskedMessage]) -> str:
        """The conversation as the model wants to read it, up to where its answer begins; for ``encode``, not for
        people.

        Raises:
            InvalidRequest: the template refuses this conversation (an order of roles, for example).
        """
        try:
            return self._template.render(
                messages=[_as_templates_see_it(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                bos_token=self._assets.bos_token or "",
                eos_token=self._assets.eos_token or "",
                raise_exception=_raise_exception,
            )
        except _RefusedByTemplate as refused:
            raise _invalid_messages(f"the model's chat template refuses them: {refused}") from refused
        except _TEMPLATE_FAULTS as error:
            _logger.info("chat_template_failed error=%s", type(error).__name__)
            why = "the model's chat template can't render them; it may want other roles, or another order"
            raise _invalid_messages(why) from error

    async def encode(self, text: str) -> tuple[TokenId, ...]:
        """The IDs of exactly this part of a rendered conversation; nothing is added around it.

        Raises:
            ContextTooLong: they are more than this codec makes.
        """
        with self._refusing_too_many("messages"):
            return await aside(
                len(text), _LONG_TEXT_CHARACTERS, self._special_text.encode, text, most=self._most_tokens
            )

    async def encode_document(self, text: str) -> tuple[TokenId, ...]:
        """The IDs of a text that starts a sequence, with what the model's tokenizer puts around one.

        Whoever writes documents may write special tokens into them.

        Raises:
            ContextTooLong: as ``encode``.
        """
        tokenizer, size = self._assets.tokenizer, len(text)
        with self._refusing_too_many("prompt"):
            return tuple(
                await aside(size, _LONG_TEXT_CHARACTERS, encode_document, tokenizer, text, most=self._most_tokens)
            )

    @contextmanager
    def _refusing_too_many(self, param: str) -> Generator[None]:
        try:
            yield
        except TooManyTokens as error:
            message = f"the prompt has more than {self._most_tokens} tokens, this model's limit"
            raise ContextTooLong(message, param=param, code="context_length_exceeded") from error

    def detokenizer(self) -> Detokenizer:
        """A decoder for one answer."""
        return Detokenizer(self._token_bytes)


def _as_templates_see_it(message: MaskedMessage) -> dict[str, str]:
    """Few look at a name."""
    seen = {"role": message.role, "content": message.content}
    return seen if message.name is None else {**seen, "name": message.name}


def _compile(template: str) -> jinja2.Template:
    # Templates come with model files, so they get no more rights than text. Block trimming is what they are written
    # for. The rest is what published templates expect to find, too.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json  # pyright: ignore[reportUnknownMemberType]  # Jinja's writes for web pages
    environment.globals["strftime_now"] = _strftime_now  # pyright: ignore[reportUnknownMemberType]
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the model's chat template is broken: {error}") from error


def _shrinkage(tokenizer: Tokenizer) -> float:
    """How many characters of a text become one at most before tokens are looked for; infinite if it can't be said."""
    if tokenizer.normalizer is None:
        return 1
    return _shrinkage_of(msgspec.json.decode(tokenizer.normalizer.__getstate__()))


def _shrinkage_of(rule: dict[str, Any]) -> float:
    match rule:
        case {"type": "Sequence", "normalizers": [*parts]}:
            return prod(map(_shrinkage_of, cast("list[dict[str, Any]]", parts)))
        case {"type": "NFC" | "NFKC"}:
            return _MOST_COMPOSED
        case {"type": "NFD" | "NFKD" | "Lowercase" | "Prepend"}:
            return 1
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if new:
            return max(1, -(-len(old) // len(new)))
        case _:
            return inf


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(form: str) -> str:
    """Today, for templates that tell the model.

    A new day changes all prompts of such a model, and what is cached of them.
    """
    return datetime.now().astimezone().strftime(form)


class _RefusedByTemplate(Exception):
    """Says in the words of the template's author what is wrong with a conversation."""


def _raise_exception(message: object) -> None:
    """What chat templates call to refuse a conversation."""
    raise _RefusedByTemplate(message)


def _invalid_messages(why: str) -> InvalidRequest:
    return InvalidRequest(f"messages: {why}", param="messages", code="invalid_messages")
