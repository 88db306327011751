"""Between text and token IDs: chat templates, encoding, incremental decoding.

Encoding a long text blocks for milliseconds to seconds, so it goes to a thread; decoding goes token by token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from pdd.core.errors import ConfigError, InvalidRequest
from pdd.core.ids import TokenId
from pdd.engine.models.text import TextAssets
from pdd.router.api.schema import Message
from pdd.router.api.special_text import SpecialText, encode

_LONG_TEXT_CHARACTERS = 4096
"""About a millisecond of encoding: longer texts leave the event loop."""


class TextCodec:
    """One model's text side; shared by all requests."""

    __slots__ = ("_assets", "_longest_token", "_special_ids", "_special_text", "_template")

    def __init__(self, assets: TextAssets) -> None:
        """Raises ConfigError when the model's chat template is not a valid one."""
        self._assets = assets
        self._template = _compile(assets.chat_template)
        self._special_text = SpecialText(assets.tokenizer)
        added = assets.tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(index for index, token in added.items() if token.special)
        self._longest_token = max(map(len, assets.tokenizer.get_vocab()))

    def least_tokens(self, num_characters: int) -> int:
        """No text of so many characters has fewer tokens; costs nothing.

        Vocabularies are of bytes, written as one character each, and nothing is normalized, as the catalog's tokenizers
        have it. Control characters count, though some vocabularies have no token for them.
        """
        return -(-num_characters // self._longest_token)

    @property
    def stop_token_ids(self) -> frozenset[TokenId]:
        """What ends an answer of this model."""
        return self._assets.stop_token_ids

    def is_special(self, token: TokenId) -> bool:
        """Special tokens structure a conversation and have no text."""
        return token in self._special_ids

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The conversation as the model wants to read it, up to where its answer begins; for ``encode``, not for people.

        Texts of special tokens in messages are masked (``special_text``): only the template writes special tokens.

        Raises:
            InvalidRequest: the template refuses this conversation (an order of roles, for example).
        """
        try:
            return self._template.render(
                messages=[
                    {"role": message.role, "content": self._special_text.mask(message.content)} for message in messages
                ],
                add_generation_prompt=True,
                bos_token=self._assets.bos_token or "",
                eos_token=self._assets.eos_token or "",
                raise_exception=_raise_exception,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"messages: the model's chat template refuses them: {error}", param="messages", code="invalid_messages"
            ) from error

    async def encode(self, text: str) -> tuple[TokenId, ...]:
        """The IDs of exactly this part of a rendered conversation; nothing is added around it."""
        if len(text) < _LONG_TEXT_CHARACTERS:
            return self._special_text.encode(text)
        return await asyncio.to_thread(self._special_text.encode, text)

    async def encode_document(self, text: str) -> tuple[TokenId, ...]:
        """The IDs of a text that starts a sequence, with the model's beginning-of-sequence token if it wants one.

        Whoever writes documents may write special tokens into them.
        """
        if len(text) < _LONG_TEXT_CHARACTERS:
            ids = encode(self._assets.tokenizer, text)
        else:
            ids = await asyncio.to_thread(encode, self._assets.tokenizer, text)
        bos = self._assets.bos_token
        if not self._assets.add_bos or bos is None:
            return ids
        return (_token_id(self._assets.tokenizer, bos), *ids)

    def detokenizer(self) -> Detokenizer:
        """A decoder for one answer."""
        return Detokenizer(self._assets.tokenizer, self._special_ids)


class Detokenizer:
    """Decodes one answer token by token. All pieces together are the decoding of all tokens, special ones left out.

    Text waits while it ends in the middle of a character: later tokens may complete it.
    """

    __slots__ = ("_num_emitted", "_special_ids", "_stream", "_tokenizer", "_tokens", "_waits")

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[TokenId]) -> None:
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[TokenId] = []
        self._num_emitted = 0
        self._waits = False

    @property
    def waits(self) -> bool:
        """The tokens so far end in the middle of a character."""
        return self._waits

    def push(self, token: TokenId) -> str:
        """The text that ``token`` completes; often empty."""
        if token in self._special_ids:
            # The stream re-reads all it withholds for each token, so a long run of textless tokens must not enter it.
            return ""
        self._tokens.append(token)
        text = self._stream.step(self._tokenizer, token)
        self._waits = text is None
        self._num_emitted += len(text or "")
        return text or ""

    def finish(self) -> str:
        """The rest after the last token: an unfinished character becomes U+FFFD."""
        if not self._waits:
            return ""
        self._waits = False
        return self._tokenizer.decode(self._tokens, skip_special_tokens=True)[self._num_emitted :]


def _compile(template: str) -> jinja2.Template:
    # Templates come with model files, so they get no more rights than text. Block trimming is what they are written for.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the model's chat template is broken: {error}") from error


def _raise_exception(message: str) -> None:
    """What chat templates call to refuse a conversation."""
    raise jinja2.TemplateError(message)


def _token_id(tokenizer: Tokenizer, token: str) -> TokenId:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ConfigError(f"the tokenizer does not know its beginning-of-sequence token {token!r}")
    return found
