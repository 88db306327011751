"""The official ``openai`` client against the front door: it must parse, stream and raise as it does with OpenAI."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import openai
import pytest

from pdd.core.errors import Unavailable
from pdd.core.request import FinishReason
from pdd.core.topology import TenantTable
from pdd.core.units import Seconds
from tests.support.fake_service import FakeService, Step
from tests.support.front_door import MODEL, Door, front_door, saying

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

MESSAGES = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client_of(door: Door, key: str = "none") -> AsyncGenerator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=door.url + "/v1", api_key=key, max_retries=0) as client:
        yield client


async def test_it_parses_a_chat():
    async with front_door(FakeService(script=saying("hi é漢😀"))) as door, client_of(door) as client:
        completion = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert completion.choices[0].message.content == "hi é漢😀"
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


async def test_it_streams_a_chat_with_usage():
    async with front_door(FakeService(script=saying("hi é漢😀"))) as door, client_of(door) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, temperature=0, seed=1
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hi é漢😀"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == len(door.service.requests[0].prompt)


async def test_its_stream_helper_accumulates_the_answer():
    service = FakeService(script=saying("hi there", finish=FinishReason.STOP))
    async with (
        front_door(service) as door,
        client_of(door) as client,
        client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream,
    ):
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "hi there"


async def test_it_sends_an_answer_back_as_the_object_that_it_got():
    async with front_door(FakeService(script=saying("hi"))) as door, client_of(door) as client:
        first = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        following = [*MESSAGES, first.choices[0].message, {"role": "user", "content": "and?"}]
        await client.chat.completions.create(model=MODEL, messages=following)
    question, extended = door.service.requests
    assert extended.prompt[: len(question.prompt)] == question.prompt


async def test_it_parses_and_streams_completions():
    async with front_door(FakeService(script=saying("there"))) as door, client_of(door) as client:
        whole = await client.completions.create(model=MODEL, prompt="hi ")
        stream = await client.completions.create(model=MODEL, prompt=[5, 6], stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert whole.choices[0].text == text == "there"


async def test_it_steers_through_extra_body_and_reads_the_trace():
    async with front_door(FakeService(script=saying("hi"))) as door, client_of(door) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, extra_body={"pdd": {"route": "relay", "trace": True}}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].model_extra is not None
    assert chunks[0].model_extra["pdd"]["role"] == "prefill"
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["pdd"]["report"]["route"] == "relay"


async def test_it_lists_models():
    async with front_door(FakeService(script=saying("hi"))) as door, client_of(door) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_it_finds_a_model_whose_name_has_slashes():
    async with front_door(FakeService(script=saying("hi")), model_name="org/model") as door, client_of(door) as client:
        assert (await client.models.retrieve("org/model")).id == "org/model"
        completion = await client.chat.completions.create(model="org/model", messages=MESSAGES)
    assert completion.model == "org/model"


async def test_it_raises_its_own_errors():
    tables = [TenantTable(name="alice", api_key="ka")]
    async with front_door(FakeService(script=saying("hi")), tenants=tables) as door:
        async with client_of(door, "wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        async with client_of(door, "ka") as client:
            with pytest.raises(openai.NotFoundError, match="gpt-9"):
                await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    assert (refused.value.param, refused.value.code) == ("n", "unsupported_parameter")


async def test_it_raises_when_nobody_can_serve_and_when_a_stream_breaks():
    gone = Unavailable("no route is left", retry_after_s=Seconds(1))
    service = FakeService(script=lambda _: [Step(error=gone)])
    async with front_door(service) as door, client_of(door) as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        assert refused.value.status_code == 503
        service.script = lambda _: [Step(tokens=(70,)), Step(error=gone)]
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="no route is left"):
            async for _ in stream:
                pass


async def test_it_retries_by_itself_after_a_503():
    gone = Unavailable("not yet", retry_after_s=Seconds(0.01))
    service = FakeService(script=lambda _: [Step(error=gone)] if len(service.answers) == 0 else saying("hi")(_))
    async with front_door(service) as door, client_of(door) as client:
        retrying = client.with_options(max_retries=1)
        completion = await retrying.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert completion.choices[0].message.content == "hi"
    assert len(service.answers) == 2
