"""What can't fit the model is refused before it costs anything."""

import asyncio

import pytest

from pdd.core.errors import ContextTooLong
from pdd.core.ids import TenantId, TokenId
from pdd.engine.catalog import find_model
from pdd.router.api.admission import Admission, Limits
from pdd.router.api.answers import AnswerMemory, ConversationEncoder
from pdd.router.api.schema import parse_chat, parse_completion
from pdd.router.api.tokenizer import TextCodec

MODEL = find_model("scripted")
TENANT = TenantId("tenant")
LIMIT = 64


class IdleCodec(TextCodec):
    """Must not be asked to tokenize anything."""

    async def encode(self, text: str) -> tuple[TokenId, ...]:
        raise AssertionError(f"{len(text)} characters were tokenized")

    async def encode_document(self, text: str) -> tuple[TokenId, ...]:
        raise AssertionError(f"{len(text)} characters were tokenized")


def admission(kind: type[TextCodec]) -> Admission:
    codec = kind(MODEL.load_text())
    encoder = ConversationEncoder(codec, AnswerMemory(max_tokens_per_tenant=100))
    return Admission(model=MODEL, codec=codec, encoder=encoder, limits=Limits(max_model_tokens=LIMIT))


async def complete(prompt: bytes, kind: type[TextCodec] = IdleCodec):
    call = parse_completion(b'{"model": "scripted", "max_tokens": 1, "prompt": ' + prompt + b"}")
    return await admission(kind).admit_completion(TENANT, call)


async def chat(content: bytes, kind: type[TextCodec] = IdleCodec):
    message = b'{"role": "user", "content": "' + content + b'"}'
    call = parse_chat(b'{"model": "scripted", "max_tokens": 1, "messages": [' + message + b"]}")
    return await admission(kind).admit_chat(TENANT, call)


def test_a_text_that_can_not_fit_is_refused_without_being_tokenized():
    with pytest.raises(ContextTooLong, match="at least 76924 tokens"):
        asyncio.run(complete(b'"' + b"x" * 1_000_000 + b'"'))
    with pytest.raises(ContextTooLong, match="at least 76924 tokens"):
        asyncio.run(chat(b"x" * 1_000_000))


def test_token_ids_that_can_not_fit_are_counted_before_they_are_looked_at():
    with pytest.raises(ContextTooLong, match="at least 65 tokens"):
        asyncio.run(complete(b"[" + b"9999, " * LIMIT + b"9999]"))


def test_what_may_fit_is_tokenized():
    assert asyncio.run(complete(b'"' + b"x" * (LIMIT - 1) + b'"', TextCodec)).prompt
    with pytest.raises(ContextTooLong, match="the prompt has 65 tokens"):
        asyncio.run(complete(b'"' + b"x" * (LIMIT + 1) + b'"', TextCodec))
