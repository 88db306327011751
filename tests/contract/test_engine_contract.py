"""What every engine must do, seen through its HTTP interface by the router's own client."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest

from pdd.cli.deploy.forking import ForkServers
from pdd.core.errors import ContextTooLong, InvalidRequest, UnknownModel
from pdd.core.ids import RequestId, Salt, WorkerId
from pdd.core.request import GREEDY, FinishReason, Generation, Sampling, TokenSpan
from pdd.engine.http.client import HttpEngineClient
from pdd.engine.http.contract import SpanContract
from pdd.engine.noise import SAMPLING_VERSION
from tests.contract.engine_factories import FACTORIES, START_PATIENCE, EngineUnderTest

pytestmark = pytest.mark.anyio
NUM_TOKENS = 20
SEEDED = Sampling(temperature=2.0, top_k=None, top_p=1.0, seed=11)


@dataclass(frozen=True)
class Served:
    client: HttpEngineClient
    under_test: EngineUnderTest

    def asked(self, *, sampling: Sampling = GREEDY, max_tokens: int = NUM_TOKENS, salt: str = "") -> Generation:
        prompt = self.under_test.prompt
        return Generation(
            request_id=RequestId("request"),
            attempt=0,
            known_tokens=prompt,
            num_prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            stop_token_ids=frozenset(),
            sampling=sampling,
            salt=Salt(salt),
        )

    async def spans(self, generation: Generation) -> list[TokenSpan]:
        return [span async for span in self.client.generate(generation)]

    async def tokens(self, generation: Generation) -> tuple[int, ...]:
        return tuple(token for span in await self.spans(generation) for token in span.tokens)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(factory, id=name, marks=pytest.mark.timeout(START_PATIENCE.get(name)))
        for name, factory in FACTORIES.items()
    ],
)
async def under_test(request: pytest.FixtureRequest, forks: ForkServers) -> AsyncGenerator[EngineUnderTest]:
    """One for all tests, as in life: each finds it as the others left it."""
    async with request.param(forks) as engine:
        yield engine


@pytest.fixture
async def served(under_test: EngineUnderTest) -> AsyncGenerator[Served]:
    async with HttpEngineClient(WorkerId("served"), under_test.address) as client:
        yield Served(client, under_test)


def after(whole: Generation, emitted: Sequence[int], attempt: int = 1) -> Generation:
    return replace(
        whole,
        known_tokens=(*whole.known_tokens, *emitted),
        max_tokens=whole.max_tokens - len(emitted),
        attempt=attempt,
    )


async def test_a_prefill_that_was_cut_off_again_and_again_goes_on_as_if_it_had_not_been(served: Served):
    """As one is that is held while others go first."""
    prompt = tuple((31 * index + 7) % served.under_test.vocab_size for index in range(1500))
    asked = replace(served.asked(salt="whole"), known_tokens=prompt, num_prompt_tokens=len(prompt))
    whole = await served.tokens(asked)
    for attempt in range(1, 6):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02 * attempt):
                await served.tokens(replace(asked, salt=Salt("cut off"), attempt=attempt))
    assert await served.tokens(replace(asked, salt=Salt("cut off"), attempt=6)) == whole


async def test_positions_are_contiguous_from_zero_and_exactly_the_last_span_finishes(served: Served):
    spans = await served.spans(served.asked())
    contract = SpanContract(served.asked())
    for span in spans:
        contract.accept(span)
    assert [span.finish_reason for span in spans[:-1]] == [None] * (len(spans) - 1)
    assert spans[-1].finish_reason is FinishReason.LENGTH
    assert contract.next_position == NUM_TOKENS


async def test_tokens_are_in_the_vocabulary(served: Served):
    tokens = await served.tokens(served.asked(sampling=SEEDED))
    assert all(0 <= token < served.under_test.vocab_size for token in tokens)


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
async def test_it_stops_at_max_tokens(served: Served, max_tokens: int):
    assert len(await served.tokens(served.asked(max_tokens=max_tokens))) == max_tokens


async def test_it_emits_a_stop_token_and_stops_there(served: Served):
    whole = await served.tokens(served.asked(sampling=SEEDED))
    stop = whole[9]
    spans = await served.spans(replace(served.asked(sampling=SEEDED), stop_token_ids=frozenset([stop])))
    assert spans[-1].finish_reason is FinishReason.STOP
    assert tuple(token for span in spans for token in span.tokens) == whole[: whole.index(stop) + 1]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_going_on_after_any_split_gives_the_unbroken_answer(served: Served, sampling: Sampling):
    whole = served.asked(sampling=sampling, salt="unbroken")
    unbroken = await served.tokens(whole)
    for split in range(1, NUM_TOKENS):
        broken = after(replace(whole, salt=Salt(f"split {split}")), unbroken[:split], attempt=split)
        spans = await served.spans(broken)
        assert spans[0].first_position == split
        assert tuple(token for span in spans for token in span.tokens) == unbroken[split:]


async def test_a_prompt_that_takes_several_steps_gets_the_same_answer_when_most_of_it_is_cached(served: Served):
    prompt = tuple(served.under_test.prompt[index % 35] for index in range(500))
    whole = replace(served.asked(sampling=SEEDED), known_tokens=prompt, num_prompt_tokens=len(prompt))
    cold = await served.tokens(replace(whole, salt=Salt("several steps")))
    assert len(cold) == NUM_TOKENS
    assert await served.tokens(replace(whole, salt=Salt("several steps"))) == cold


async def test_an_extend_leaves_the_answer_as_it_is(served: Served):
    whole = served.asked(sampling=SEEDED, salt="unbroken")
    unbroken = await served.tokens(whole)
    warm = replace(whole, salt=Salt("extended"))
    for split in (4, 8, 12):
        assert await served.tokens(replace(after(warm, unbroken[:split], split), max_tokens=1)) == (unbroken[split],)
    assert await served.tokens(after(warm, unbroken[:14], 14)) == unbroken[14:]


async def test_repeating_a_request_and_other_salts_give_the_same_answer(served: Served):
    cold = await served.tokens(served.asked(sampling=SEEDED, salt="a"))
    assert await served.tokens(served.asked(sampling=SEEDED, salt="a")) == cold
    assert await served.tokens(served.asked(sampling=SEEDED, salt="b")) == cold


async def test_seeded_answers_depend_on_seed_and_choice_and_on_no_name(served: Served):
    answer = await served.tokens(served.asked(sampling=SEEDED))
    renamed = replace(served.asked(sampling=SEEDED), request_id=RequestId("another"), attempt=5)
    assert await served.tokens(renamed) == answer
    other_seed = await served.tokens(served.asked(sampling=replace(SEEDED, seed=12)))
    other_choice = await served.tokens(served.asked(sampling=replace(SEEDED, choice=1)))
    assert len({answer, other_seed, other_choice}) == 3


async def test_noise_belongs_to_the_output_position_not_to_where_a_request_began(served: Served):
    whole = served.asked(sampling=SEEDED)
    answer = await served.tokens(whole)
    # The same tokens as one longer prompt: its outputs begin at position 0 again, so the noise is another.
    as_prompt = replace(after(whole, answer[:5]), num_prompt_tokens=len(whole.known_tokens) + 5)
    spans = await served.spans(as_prompt)
    assert spans[0].first_position == 0
    assert tuple(token for span in spans for token in span.tokens) != answer[5:]


async def test_aborted_requests_make_room_for_the_next(served: Served):
    for round_number in range(3):
        for index in range(2 * served.under_test.max_running):
            long = replace(served.asked(max_tokens=served.under_test.long_answer), attempt=100 * round_number + index)
            async with aclosing(served.client.generate(long)) as spans:
                await anext(spans)
    async with asyncio.timeout(20):
        assert len(await served.tokens(served.asked())) == NUM_TOKENS


async def test_cancelled_requests_make_room_for_the_next(served: Served):
    async with asyncio.TaskGroup() as tasks:
        started = [
            tasks.create_task(
                served.spans(replace(served.asked(max_tokens=served.under_test.long_answer), attempt=index))
            )
            for index in range(2 * served.under_test.max_running)
        ]
        await served.spans(replace(served.asked(max_tokens=1), salt=Salt("meanwhile"), attempt=1000))
        for task in started:
            task.cancel()
    async with asyncio.timeout(20):
        assert len(await served.tokens(served.asked())) == NUM_TOKENS


async def test_sixteen_requests_at_once_get_the_answers_that_they_get_alone(served: Served):
    prompts = [served.under_test.prompt[index % 8 :] for index in range(16)]
    requests = [
        replace(
            served.asked(sampling=replace(SEEDED, seed=index)),
            request_id=RequestId(f"request {index}"),
            known_tokens=prompt,
            num_prompt_tokens=len(prompt),
        )
        for index, prompt in enumerate(prompts)
    ]
    async with asyncio.TaskGroup() as tasks:
        together = [tasks.create_task(served.tokens(replace(asked, salt=Salt("together")))) for asked in requests]
    for asked, task in zip(requests, together, strict=True):
        assert await served.tokens(replace(asked, salt=Salt("alone"))) == task.result()


async def test_refusals_name_the_field(served: Served):
    info = await served.client.info()
    with pytest.raises(ContextTooLong, match=str(info.max_model_tokens)) as too_long:
        await served.spans(served.asked(max_tokens=info.max_model_tokens))
    assert too_long.value.param == "token_ids"
    outside = replace(served.asked(), known_tokens=(1, served.under_test.vocab_size), num_prompt_tokens=2)
    with pytest.raises(InvalidRequest, match=str(served.under_test.vocab_size)) as wrong_token:
        await served.spans(outside)
    assert wrong_token.value.param == "token_ids[1]"
    with pytest.raises(InvalidRequest, match="top_p"):
        await served.spans(served.asked(sampling=replace(SEEDED, top_p=1.5)))
    with pytest.raises(InvalidRequest, match="empty"):
        await served.spans(replace(served.asked(), known_tokens=(), num_prompt_tokens=0))
    async with HttpEngineClient(WorkerId("served"), served.under_test.address, model="no such model") as stranger:
        with pytest.raises(UnknownModel, match="no such model"):
            await anext(stranger.generate(served.asked()))


async def test_finished_streams_leave_their_connection_to_the_next(served: Served):
    connections: set[int] = set()
    for _ in range(3):
        await served.spans(served.asked())
        pools = served.client._session.connector._conns.values()
        connections.update(id(held[0]) for pool in pools for held in pool)
    assert len(connections) == 1


async def test_info_describes_the_engine(served: Served):
    info, under_test = await served.client.info(), served.under_test
    assert info.model == under_test.model
    assert info.max_model_tokens == under_test.max_model_tokens
    assert info.kv_format == under_test.kv_format.description
    assert info.sampling_version == SAMPLING_VERSION
    assert info.node == under_test.node
    assert info.instance
    assert await served.client.info() == info
