"""The scripted engine, on virtual time."""

import asyncio
from contextlib import aclosing

import pytest

from pdd.core.errors import CapacityExhausted, ContextTooLong, InvalidRequest, Unavailable, WorkerFailed
from pdd.core.request import GREEDY, FinishReason, Sampling
from pdd.engine.http.contract import SpanContract
from pdd.engine.scripted.engine import Faults, Garbage, Script, scripted_answer
from pdd.sim.loop import run
from tests.unit.engine.scripted_support import (
    PROMPT,
    SEEDED,
    collect,
    continuation,
    engine,
    generation,
    tokens_of,
)


async def collect_into(tokens: list[int], worker) -> None:
    async for span in worker.generate(generation()):
        tokens.extend(span.tokens)


def test_an_answer_is_the_reference_answer_in_contiguous_spans_with_one_finish():
    spans = run(collect(engine(Script(burst_tokens=3)), generation()))
    contract = SpanContract(generation())
    for span in spans:
        contract.accept(span)
    contract.check_end()
    assert tokens_of(spans) == scripted_answer(PROMPT, 10, GREEDY)
    assert [len(span.tokens) for span in spans] == [1, 3, 3, 3]
    assert spans[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
@pytest.mark.parametrize("split", range(1, 10))
def test_going_on_after_any_split_gives_the_unbroken_answer(split: int, sampling: Sampling):
    whole = generation(sampling=sampling)
    unbroken = scripted_answer(PROMPT, 10, sampling)
    spans = run(collect(engine(), continuation(whole, unbroken[:split])))
    assert spans[0].first_position == split
    assert tokens_of(spans) == unbroken[split:]


@pytest.mark.parametrize(
    "damaged",
    [
        PROMPT[1:],
        (*PROMPT[:3], *PROMPT[4:]),
        (*PROMPT, PROMPT[-1]),
        (PROMPT[1], PROMPT[0], *PROMPT[2:]),
        (0, *PROMPT[1:]),
    ],
    ids=["first lost", "one lost", "last doubled", "swapped", "first wrong"],
)
def test_any_damage_to_the_known_tokens_changes_every_answer_after_it(damaged: tuple[int, ...]):
    right = scripted_answer(PROMPT, 20, GREEDY)
    wrong = scripted_answer(damaged, 20, GREEDY)
    assert all(a != b for a, b in zip(right, wrong, strict=True))


def test_seeded_answers_depend_on_seed_choice_and_position_and_greedy_ones_do_not():
    def answer(temperature: float, seed: int, choice: int) -> tuple[int, ...]:
        return scripted_answer(
            PROMPT, 8, Sampling(temperature=temperature, top_k=None, top_p=1.0, seed=seed, choice=choice)
        )

    assert answer(1.0, 1, 0) == answer(1.0, 1, 0)
    assert len({answer(1.0, 1, 0), answer(1.0, 2, 0), answer(1.0, 1, 1)}) == 3
    assert answer(0.0, 1, 0) == answer(0.0, 2, 1)
    shifted = generation(num_prompt_tokens=len(PROMPT) - 1, sampling=SEEDED)
    assert tokens_of(run(collect(engine(), shifted))) != scripted_answer(PROMPT, 10, SEEDED)


def test_a_stop_token_is_emitted_and_ends_the_answer_in_the_middle_of_a_burst():
    reference = scripted_answer(PROMPT, 10, GREEDY)
    spans = run(collect(engine(Script(burst_tokens=4)), generation(stop=[reference[5]])))
    assert tokens_of(spans) == reference[:6]
    assert spans[-1].finish_reason is FinishReason.STOP
    assert scripted_answer(PROMPT, 10, GREEDY, frozenset([reference[5]])) == reference[:6]


def test_prefill_costs_its_tokens_and_decode_its_intervals():
    async def moments() -> list[float]:
        script = Script(prefill_tokens_per_s=10.0, token_interval=0.5, prefill_chunk_tokens=8)
        return [asyncio.get_running_loop().time() async for _ in engine(script).generate(generation(max_tokens=3))]

    assert run(moments()) == pytest.approx([2.1, 2.6, 3.1])


def test_tokens_that_it_has_computed_before_cost_no_time_but_another_salt_does():
    async def durations() -> list[float]:
        worker = engine(Script(prefill_tokens_per_s=1.0, token_interval=0.0))
        loop = asyncio.get_running_loop()
        spent: list[float] = []
        for asked in (generation(max_tokens=1), generation(max_tokens=1), generation(max_tokens=1, salt="other")):
            began = loop.time()
            await collect(worker, asked)
            spent.append(loop.time() - began)
        return spent

    # 21 tokens are 5 full blocks of 4 and one more, which is computed again.
    assert run(durations()) == pytest.approx([21.0, 1.0, 21.0])


def test_its_own_output_is_cached_except_for_the_newest_token():
    async def duration() -> float:
        worker = engine(Script(prefill_tokens_per_s=1.0, token_interval=0.0, burst_tokens=2))
        first = tokens_of(await collect(worker, generation(PROMPT[:20], max_tokens=4)))
        began = asyncio.get_running_loop().time()
        await collect(worker, generation((*PROMPT[:20], *first), max_tokens=1))
        return asyncio.get_running_loop().time() - began

    # 24 tokens are 6 blocks, but the last of them has never been an input: its block is not full.
    assert run(duration()) == pytest.approx(4.0)


def test_at_least_one_known_token_is_always_computed_anew():
    async def duration() -> float:
        worker = engine(Script(prefill_tokens_per_s=1.0, token_interval=0.0))
        await collect(worker, generation(PROMPT[:20], max_tokens=1))
        began = asyncio.get_running_loop().time()
        await collect(worker, generation(PROMPT[:20], max_tokens=1))
        return asyncio.get_running_loop().time() - began

    assert run(duration()) == pytest.approx(1.0)


def test_a_small_cache_forgets_the_tails_of_old_sequences_first():
    async def durations() -> tuple[float, float]:
        worker = engine(Script(prefill_tokens_per_s=1.0, token_interval=0.0), cache_tokens=20)
        loop = asyncio.get_running_loop()
        await collect(worker, generation(range(21), max_tokens=1))
        await collect(worker, generation(range(50, 58), max_tokens=1))
        began = loop.time()
        await collect(worker, generation(range(21), max_tokens=1))
        return loop.time() - began, 21.0

    spent, cold = run(durations())
    # 3 of its 5 blocks are left.
    assert spent == pytest.approx(cold - 12.0)


def test_prefills_share_the_engine_in_turn():
    async def ends() -> list[float]:
        worker = engine(Script(prefill_tokens_per_s=10.0, prefill_chunk_tokens=10, token_interval=0.0))
        loop = asyncio.get_running_loop()
        moments: list[float] = []

        async def ask(first: int) -> None:
            await collect(worker, generation(range(first, first + 20), max_tokens=1))
            moments.append(loop.time())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(0))
            tasks.create_task(ask(1000))
        return moments

    assert run(ends()) == pytest.approx([3.0, 4.0])


def test_it_runs_so_many_at_once_queues_some_and_refuses_the_rest():
    async def outcome() -> tuple[list[float], str]:
        worker = engine(Script(prefill_tokens_per_s=1e9, token_interval=1.0, max_running=2, max_waiting=1))
        loop = asyncio.get_running_loop()
        ends: list[float] = []

        async def ask() -> None:
            await collect(worker, generation(max_tokens=3))
            ends.append(loop.time())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(ask())
            await asyncio.sleep(0.5)
            with pytest.raises(CapacityExhausted) as refused:
                await collect(worker, generation())
        assert worker.num_open == 0
        return ends, str(refused.value)

    ends, message = run(outcome())
    assert ends == pytest.approx([2.0, 2.0, 4.0], abs=1e-3)
    assert "full queue" in message


def test_closing_the_generator_frees_its_place():
    async def scenario() -> None:
        worker = engine(Script(max_running=1))
        async with aclosing(worker.generate(generation())) as spans:
            await anext(spans)
            assert worker.num_open == 1
        assert worker.num_open == 0
        assert tokens_of(await collect(worker, generation())) == scripted_answer(PROMPT, 10, GREEDY)

    run(scenario())


@pytest.mark.parametrize("num_tokens", [0, 1, 4, 5])
def test_it_dies_after_exactly_the_tokens_that_its_script_says(num_tokens: int):
    async def emitted() -> tuple[int, ...]:
        tokens: list[int] = []
        worker = engine(Script(burst_tokens=3, faults=Faults(die_after_tokens=num_tokens)))
        with pytest.raises(WorkerFailed):
            await collect_into(tokens, worker)
        assert worker.num_open == 0
        return tuple(tokens)

    assert run(emitted()) == scripted_answer(PROMPT, num_tokens, GREEDY)


def test_a_fault_may_be_confined_to_some_attempts():
    async def scenario() -> None:
        worker = engine(Script(faults=Faults(die_after_tokens=2, only_attempts=frozenset([0]))))
        with pytest.raises(WorkerFailed):
            await collect(worker, generation(attempt=0))
        assert len(tokens_of(await collect(worker, generation(attempt=1)))) == 10

    run(scenario())


def test_a_hanging_engine_emits_its_tokens_and_then_nothing_until_it_is_killed():
    async def scenario() -> None:
        worker = engine(Script(faults=Faults(hang_after_tokens=2)))
        tokens: list[int] = []
        with pytest.raises(TimeoutError):
            await collect_for(1e6, tokens, worker)
        assert tuple(tokens) == scripted_answer(PROMPT, 2, GREEDY)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(collect_failure(worker))
            await asyncio.sleep(10.0)
            worker.die()
        assert isinstance(task.result(), WorkerFailed)

    async def collect_for(duration: float, tokens: list[int], worker) -> None:
        async with asyncio.timeout(duration):
            await collect_into(tokens, worker)

    async def collect_failure(worker) -> Exception:
        with pytest.raises(WorkerFailed) as failure:
            await collect(worker, generation())
        return failure.value

    run(scenario())


def test_death_ends_what_runs_and_what_waits_and_a_revived_engine_is_another_instance_with_a_cold_cache():
    async def scenario() -> None:
        worker = engine(Script(prefill_tokens_per_s=1.0, token_interval=0.0, max_running=1))
        before = (await worker.info()).instance
        await collect(worker, generation(max_tokens=1))
        async with asyncio.TaskGroup() as tasks:
            failures = [tasks.create_task(failure_of(worker, first)) for first in (1000, 2000)]
            await asyncio.sleep(3.0)
            worker.die()
        assert all(isinstance(task.result(), WorkerFailed) for task in failures)
        with pytest.raises(Unavailable):
            await worker.info()
        with pytest.raises(Unavailable):
            await collect(worker, generation())
        worker.revive()
        assert (await worker.info()).instance != before
        began = asyncio.get_running_loop().time()
        await collect(worker, generation(max_tokens=1))
        assert asyncio.get_running_loop().time() - began == pytest.approx(21.0)
        assert worker.num_open == 0

    async def failure_of(worker, first: int) -> Exception:
        with pytest.raises(WorkerFailed) as failure:
            await collect(worker, generation(range(first, first + 9)))
        return failure.value

    run(scenario())


def test_it_serves_under_the_name_of_its_kv_format_or_another():
    assert run(engine().info()).model == "script"
    assert run(engine(model="served").info()).model == "served"


def test_an_unavailable_engine_refuses_to_begin():
    with pytest.raises(Unavailable):
        run(collect(engine(Script(faults=Faults(unavailable=True))), generation()))


def test_a_slow_engine_takes_so_many_times_as_long():
    async def duration() -> float:
        script = Script(prefill_tokens_per_s=21.0, token_interval=1.0, faults=Faults(slowdown=10.0))
        await collect(engine(script), generation(max_tokens=3))
        return asyncio.get_running_loop().time()

    assert run(duration()) == pytest.approx(30.0)


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("garbage", list(Garbage))
def test_every_kind_of_garbage_breaks_the_contract_but_not_before_it_is_due(garbage: Garbage, after: int):
    async def check_all(contract: SpanContract, worker) -> None:
        async for span in worker.generate(generation()):
            contract.accept(span)
        contract.check_end()

    async def scenario() -> int:
        script = Script(faults=Faults(garbage=garbage, garbage_after_tokens=after))
        contract = SpanContract(generation())
        with pytest.raises(WorkerFailed):
            await check_all(contract, engine(script))
        return contract.next_position

    assert run(scenario()) >= after


def test_requests_that_can_never_be_served_are_refused():
    small = engine(max_model_tokens=30)
    with pytest.raises(ContextTooLong, match="at most 30"):
        run(collect(small, generation(max_tokens=10)))
    with pytest.raises(InvalidRequest):
        run(collect(small, generation(())))
    with pytest.raises(InvalidRequest):
        run(collect(small, generation(max_tokens=0)))
