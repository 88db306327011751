"""Remembers which token IDs answered which prompt, and puts them into the next turn instead of the answer's retokenized
text.

Tokenizing an answer's text may give other IDs than those that were generated, and then nothing cached from the answer
on would match. With the splice, the next prompt starts with exactly the previous prompt and the answer's IDs.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pdd.core.errors import InvalidRequest
from pdd.core.ids import TenantId, TokenId
from pdd.router.api.aside import aside
from pdd.router.api.messages import MaskedMessage, Message

_LONG_CHARACTERS = 64 * 1024
"""Some milliseconds of masking: longer conversations leave the event loop."""
_MAX_RENDERED = 65_536
"""Messages that one request may have rendered again in search of its answers: some 250 turns, or a second and a half.

The answers after that are tokenized as text: no more than lost reuse.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTokens:
    """The IDs behind the first ``num_characters`` of an answer's text.

    That is less than the whole text only where a stop string cut it in mid-token; what is left is tokenized as text. A
    special token that ended the answer is not among them: the chat template writes its own end of a turn. Without any
    tokens it still says that the prompt ended before the answer, where tokenizing both as one text might not.
    """

    tokens: tuple[TokenId, ...]
    num_characters: int


class PromptDigest:
    """Names a growing sequence of token IDs; growing it costs only what is new."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"pdd-answer-v1\0")

    def extend(self, tokens: Sequence[TokenId]) -> None:
        self._hash.update(array("I", tokens).tobytes())

    def copy(self) -> PromptDigest:
        twin = PromptDigest()
        twin._hash = self._hash.copy()
        return twin

    def answered_by(self, text: str) -> bytes:
        """Names ``text`` as the answer to these tokens."""
        named = self._hash.copy()
        named.update(b"\0" + _digest(text))
        return named.digest()


class _TenantAnswers:
    """One tenant's answers, the least recently used first."""

    __slots__ = ("_answers", "_max_tokens", "_num_tokens", "_texts")

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._answers: OrderedDict[bytes, tuple[bytes, AnswerTokens]] = OrderedDict()
        self._texts: Counter[bytes] = Counter()
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def holds_text(self, text: str) -> bool:
        return _digest(text) in self._texts

    def find(self, key: bytes) -> AnswerTokens | None:
        found = self._answers.get(key)
        if found is None:
            return None
        self._answers.move_to_end(key)
        return found[1]

    def keep(self, key: bytes, text: str, answer: AnswerTokens) -> None:
        """The first answer with this text to this prompt stays: later turns have been built on it."""
        if key in self._answers:
            self._answers.move_to_end(key)
            return
        if _cost(answer) > self._max_tokens:
            return
        self._answers[key] = (_digest(text), answer)
        self._texts[_digest(text)] += 1
        self._num_tokens += _cost(answer)
        while self._num_tokens > self._max_tokens:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (text, answer) = self._answers.popitem(last=False)
        self._num_tokens -= _cost(answer)
        self._texts[text] -= 1
        if not self._texts[text]:
            del self._texts[text]


class AnswerMemory:
    """The answers of all tenants: at most ``max_tokens_per_tenant`` answer token IDs each; no text is kept.

    Used from one event loop. Entries are found by the exact prompt IDs and the exact answer text: a client that edited
    either gets no splice.
    """

    __slots__ = ("_max_tokens", "_tenants")

    def __init__(self, *, max_tokens_per_tenant: int) -> None:
        self._max_tokens = max_tokens_per_tenant
        self._tenants: dict[TenantId, _TenantAnswers] = {}

    def num_tokens(self, tenant: TenantId) -> int:
        """How many answer token IDs are kept for ``tenant``."""
        return self._of(tenant).num_tokens

    def keep(self, tenant: TenantId, prompt: Sequence[TokenId], text: str, answer: AnswerTokens) -> None:
        """Remembers that ``prompt`` was answered by ``answer``, which the client saw as ``text``."""
        digest = PromptDigest()
        digest.extend(prompt)
        self._of(tenant).keep(digest.answered_by(text), text, answer)

    def may_hold(self, tenant: TenantId, text: str) -> bool:
        """Whether any prompt of ``tenant`` was answered by ``text``: the cheap question, asked first."""
        return self._of(tenant).holds_text(text)

    def find(self, tenant: TenantId, prompt: PromptDigest, text: str) -> AnswerTokens | None:
        """The IDs by which ``prompt`` was answered with ``text``, if they are still known."""
        return self._of(tenant).find(prompt.answered_by(text))

    def _of(self, tenant: TenantId) -> _TenantAnswers:
        if tenant not in self._tenants:
            self._tenants[tenant] = _TenantAnswers(self._max_tokens)
        return self._tenants[tenant]


class Codec(Protocol):
    """What the encoder needs of ``router.tokenizer.TextCodec``."""

    def mask(self, message: Message) -> MaskedMessage: ...

    def render_chat(self, messages: Sequence[MaskedMessage]) -> str: ...

    async def encode(self, text: str) -> tuple[TokenId, ...]: ...


class ConversationEncoder:
    """Turns a conversation into a prompt, splicing remembered answers."""

    __slots__ = ("_codec", "_memory")

    def __init__(self, codec: Codec, memory: AnswerMemory) -> None:
        self._codec = codec
        self._memory = memory

    async def encode(self, tenant: TenantId, messages: Sequence[Message]) -> tuple[TokenId, ...]:
        """The prompt's token IDs.

        Raises:
            InvalidRequest: the model's chat template refuses the conversation, or it is too long (ContextTooLong).
        """
        size = sum(len(message.content) for message in messages)
        masked = await aside(size, _LONG_CHARACTERS, self._mask_all, messages)
        prompt = _GrowingPrompt(await aside(size, _LONG_CHARACTERS, self._codec.render_chat, masked))
        num_rendered = 0
        for index, message in enumerate(messages):
            if message.role == "assistant" and self._memory.may_hold(tenant, message.content):
                num_rendered += index
                if num_rendered > _MAX_RENDERED:
                    break
                await self._splice(tenant, prompt, masked[:index], message.content)
                await asyncio.sleep(0)  # a splice takes up to a millisecond: let other streams go on in between
        return (*prompt.tokens, *await self._codec.encode(prompt.rest()))

    def _mask_all(self, messages: Sequence[Message]) -> list[MaskedMessage]:
        return [self._codec.mask(message) for message in messages]

    async def _splice(
        self, tenant: TenantId, prompt: _GrowingPrompt, asking: Sequence[MaskedMessage], answer: str
    ) -> None:
        """Takes the answer's IDs over, provided that the template still writes question and answer as they were.

        An answer that spells out a special token is masked in the prompt, so it is tokenized anew: no more than lost
        reuse.
        """
        question = self._question(asking)
        if question is None or not prompt.continues_with(question, answer):
            return
        asked = await self._codec.encode(prompt.text_until(len(question)))
        digest = prompt.digest.copy()
        digest.extend(asked)
        known = self._memory.find(tenant, digest, answer)
        if known is not None:
            prompt.take(asked + known.tokens, up_to=len(question) + known.num_characters)

    def _question(self, messages: Sequence[MaskedMessage]) -> str | None:
        """None when the template refuses them on their own: then nothing can have been their answer."""
        try:
            return self._codec.render_chat(messages)
        except InvalidRequest:
            return None


class _GrowingPrompt:
    """A rendered conversation of which a part, from the start on, has its token IDs."""

    __slots__ = ("_end", "_text", "digest", "tokens")

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self.tokens: list[TokenId] = []
        self.digest = PromptDigest()

    def continues_with(self, question: str, answer: str) -> bool:
        return (
            self._end <= len(question)
            and self._text.startswith(question)
            and self._text.startswith(answer, len(question))
        )

    def text_until(self, end: int) -> str:
        return self._text[self._end : end]

    def rest(self) -> str:
        return self._text[self._end :]

    def take(self, tokens: Sequence[TokenId], *, up_to: int) -> None:
        self.tokens.extend(tokens)
        self.digest.extend(tokens)
        self._end = up_to


def _cost(answer: AnswerTokens) -> int:
    """An answer without tokens takes room, too."""
    return max(1, len(answer.tokens))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
