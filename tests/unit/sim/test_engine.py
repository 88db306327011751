"""A modelled engine keeps the contract of ``EngineClient``, shares its cache with its node, and breaks like
a real one.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pytest

from pdd.core.errors import (
    CapacityExhausted,
    ContextTooLong,
    InvalidRequest,
    LocalProtocolError,
    Unavailable,
    WorkerFailed,
)
from pdd.core.ids import NodeId, RequestId, Salt, WorkerId
from pdd.core.request import GREEDY, FinishReason, Generation
from pdd.core.units import Seconds
from pdd.sim.engine import EngineLimits, ModelledEngine
from pdd.sim.engine_time import Chunk, StepTimes
from pdd.sim.loop import run
from pdd.sim.memory.network import MemoryNetwork
from pdd.sim.profile import load_hardware, load_model
from pdd.sim.script import Scripts
from pdd.sim.workload.base import SimRequest, expand

MODEL = load_model("Llama-3.1-70B")
KV_FORMAT = MODEL.kv_format(16)
TIMES = StepTimes(MODEL, load_hardware("H100-SXM"), num_chips=8, cache_tokens=500_000, name="test")
LIMITS = EngineLimits(
    max_batch=8, prefill_chunk_tokens=512, cache_tokens=16_000, max_span=16, max_model_tokens=20_000, max_waiting=2
)
SALT = Salt("")


class Bench:
    """One engine with a node, and scripts to ask it for."""

    def __init__(self, limits: EngineLimits = LIMITS, *, with_node: bool = True) -> None:
        self.scripts = Scripts(KV_FORMAT)
        self.node = MemoryNetwork(KV_FORMAT, payload_bytes=0).add(NodeId("node"), capacity=2000)
        self.cached: list[int] = []
        self.engine = self.make_engine("engine", limits, with_node=with_node)

    def make_engine(self, name: str, limits: EngineLimits = LIMITS, *, with_node: bool = True) -> ModelledEngine:
        return ModelledEngine(
            WorkerId(name),
            kv_format=KV_FORMAT,
            times=TIMES,
            limits=limits,
            scripts=self.scripts,
            connect_store=partial(self.node.open_store, WorkerId(name)) if with_node else None,
            on_prefilled=lambda news: self.cached.append(news.num_cached),
        )

    def write(self, name: str = "r", *, prompt: int = 1000, answer: int = 100, max_tokens: int = 200) -> Generation:
        request = SimRequest(
            request_id=RequestId(name),
            arrival=Seconds(0.0),
            prompt=((1, prompt // 2), (2, prompt - prompt // 2)),
            answer=((3, answer // 2), (4, answer - answer // 2)),
            max_tokens=max_tokens,
        )
        self.scripts.write(request, SALT)
        return Generation(
            request_id=request.request_id,
            attempt=0,
            known_tokens=expand(request.prompt),
            num_prompt_tokens=prompt,
            max_tokens=max_tokens,
            stop_token_ids=frozenset(),
            sampling=GREEDY,
            salt=SALT,
        )


async def ask(engine, generation):
    async with aclosing(engine.generate(generation)) as spans:
        return [(asyncio.get_running_loop().time(), span) async for span in spans]


def tokens_of(spans):
    return tuple(token for _, span in spans for token in span.tokens)


def test_the_answer_is_the_script_in_contiguous_spans_with_one_finish():
    async def main():
        bench = Bench()
        spans = await ask(bench.engine, bench.write())
        assert bench.engine.num_open == 0
        return spans

    spans = run(main())
    assert tokens_of(spans) == (3,) * 50 + (4,) * 50
    assert [span.first_position for _, span in spans] == [
        sum(len(s.tokens) for _, s in spans[:i]) for i in range(len(spans))
    ]
    assert [span.finish_reason for _, span in spans] == [None] * (len(spans) - 1) + [FinishReason.STOP]


def test_it_takes_as_long_as_prefill_and_the_steps_after_it():
    async def main():
        bench = Bench()
        return await ask(bench.engine, bench.write())

    spans = run(main())
    chunks = [Chunk(num_tokens=512, num_context=0), Chunk(num_tokens=488, num_context=512)]
    prefill = sum(TIMES.mixed_step([chunk], num_decodes=0, num_context=0) for chunk in chunks)
    assert spans[0][0] == pytest.approx(prefill)
    assert spans[-1][0] - spans[0][0] == pytest.approx(TIMES.decode_steps(99, num_decodes=1, num_context=1001))


def test_max_tokens_cut_the_answer():
    async def main():
        bench = Bench()
        return await ask(bench.engine, bench.write(max_tokens=60))

    spans = run(main())
    assert tokens_of(spans) == (3,) * 50 + (4,) * 10
    assert spans[-1][1].finish_reason is FinishReason.LENGTH


def test_it_goes_on_after_known_tokens_and_refuses_those_that_nobody_generated():
    async def main():
        bench = Bench()
        generation = bench.write()
        known = replace(generation, known_tokens=(*generation.known_tokens, *(3,) * 50, 4, 4), max_tokens=5)
        spans = await ask(bench.engine, known)
        for wrong in ((4,), (3,) * 51, (3,) * 50 + (4,) * 50):
            with pytest.raises(LocalProtocolError):
                await ask(bench.engine, replace(generation, known_tokens=(*generation.known_tokens, *wrong)))
        return spans

    spans = run(main())
    assert tokens_of(spans) == (4,) * 5
    assert spans[0][1].first_position == 52


def test_the_second_time_a_prompt_is_cached_but_for_its_tail():
    async def main():
        bench = Bench()
        await ask(bench.engine, bench.write("a"))
        await ask(bench.engine, bench.write("b"))
        return bench.cached

    assert run(main()) == [0, 992]


def test_the_next_turn_finds_prompt_and_answer():
    async def main():
        bench = Bench()
        await ask(bench.engine, bench.write("a"))
        request = SimRequest(
            request_id=RequestId("b"),
            arrival=Seconds(0.0),
            prompt=((1, 500), (2, 500), (3, 50), (4, 50), (9, 100)),
            answer=((5, 10),),
            max_tokens=10,
        )
        bench.scripts.write(request, SALT)
        generation = replace(
            bench.write("c"), request_id=RequestId("b"), known_tokens=expand(request.prompt), num_prompt_tokens=1200
        )
        await ask(bench.engine, generation)
        return bench.cached

    assert run(main()) == [0, 1088]  # 1099 tokens have KV: the answer's last one has none


def test_a_prompt_that_is_cached_whole_has_its_last_token_computed_again():
    async def main():
        bench = Bench()
        for name in "ab":
            await ask(bench.engine, bench.write(name, prompt=1008))
        return bench.cached

    assert run(main()) == [0, 1007]


def test_the_last_token_of_an_answer_has_no_kv():
    async def main():
        bench = Bench()
        await ask(bench.engine, bench.write(prompt=1000, answer=24))
        return bench.node.life.index.num_held

    assert run(main()) == 63


def test_another_engine_at_the_same_node_loads_what_the_first_computed():
    async def main():
        bench = Bench()
        await ask(bench.engine, bench.write("a"))
        began = asyncio.get_running_loop().time()
        spans = await ask(bench.make_engine("other"), bench.write("b"))
        return bench.cached, spans[0][0] - began

    cached, took = run(main())
    assert cached == [0, 992]
    load = TIMES.load(62 * KV_FORMAT.block_bytes)
    step = TIMES.mixed_step([Chunk(num_tokens=8, num_context=992)], num_decodes=0, num_context=0)
    assert took == pytest.approx(load + step)


def test_blocks_appear_at_the_node_while_prefill_still_runs():
    async def main():
        bench = Bench()
        asking = asyncio.ensure_future(ask(bench.engine, bench.write(prompt=5120)))
        first = TIMES.mixed_step([Chunk(num_tokens=512, num_context=0)], num_decodes=0, num_context=0)
        await asyncio.sleep(first * 1.01)
        held = bench.node.life.index.num_held
        await asking
        return held, bench.node.life.index.num_held

    assert run(main()) == (32, (5120 + 99) // 16)


def test_a_node_that_died_is_given_everything_again():
    async def main():
        bench = Bench()
        await ask(bench.engine, bench.write("a"))
        bench.node.kill()
        await ask(bench.engine, bench.write("b"))
        bench.node.restart()
        await asyncio.sleep(5.0)
        await ask(bench.engine, bench.write("c"))
        return bench.cached, bench.node.life.index.num_held

    assert run(main()) == ([0, 992, 992], 1099 // 16)


def test_an_aborted_generation_leaves_nothing():
    async def main():
        bench = Bench()
        spans = bench.engine.generate(bench.write())
        await anext(spans)
        assert bench.engine.num_open == 1
        await spans.aclose()
        return bench.engine.num_open, bench.engine._cache.num_claimed

    assert run(main()) == (0, 0)


def test_what_can_never_fit_and_what_is_no_request_is_refused():
    async def main():
        bench = Bench()
        with pytest.raises(ContextTooLong, match="together they may be at most"):
            await ask(bench.engine, bench.write("a", prompt=19_900))
        with pytest.raises(ContextTooLong, match="don't fit the cache"):
            await ask(bench.engine, bench.write("b", prompt=16_000))
        with pytest.raises(InvalidRequest):
            await ask(bench.engine, replace(bench.write("c"), max_tokens=0))
        with pytest.raises(LocalProtocolError):
            await ask(bench.engine, replace(bench.write("d"), request_id=RequestId("stranger")))

    run(main())


def test_a_full_queue_refuses():
    async def main():
        bench = Bench(replace(LIMITS, max_batch=1))
        running = [asyncio.ensure_future(ask(bench.engine, bench.write(f"r{index}"))) for index in range(3)]
        await asyncio.sleep(0.01)
        with pytest.raises(CapacityExhausted):
            await ask(bench.engine, bench.write("one more"))
        await asyncio.gather(*running)

    run(main())


def test_a_dead_engine_fails_what_runs_refuses_the_rest_and_comes_back_as_another():
    async def main():
        bench = Bench(with_node=False)
        before = await bench.engine.info()
        asking = asyncio.ensure_future(ask(bench.engine, bench.write("a")))
        await asyncio.sleep(0.3)
        bench.engine.die()
        with pytest.raises(WorkerFailed):
            await asking
        with pytest.raises(Unavailable):
            await ask(bench.engine, bench.write("b"))
        with pytest.raises(Unavailable):
            await bench.engine.info()
        bench.engine.revive()
        await ask(bench.engine, bench.write("c"))
        after = await bench.engine.info()
        return before.instance != after.instance, bench.cached, bench.engine.num_open

    assert run(main()) == (True, [0, 0], 0)


def test_a_hung_engine_answers_nothing_and_goes_on_where_it_was():
    async def main():
        bench = Bench()
        undisturbed = await ask(bench.make_engine("other", with_node=False), bench.write("a"))
        began = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(ask(bench.engine, bench.write("b", prompt=1002)))
        await asyncio.sleep(0.2)
        bench.engine.hang()
        late = asyncio.ensure_future(ask(bench.engine, bench.write("c", prompt=900)))
        asking_info = asyncio.ensure_future(bench.engine.info())
        await asyncio.sleep(100.0)
        assert not asking.done()
        assert not asking_info.done()
        bench.engine.resume()
        spans = await asking
        await late
        await asking_info
        return spans[-1][0] - began - 100.0, undisturbed[-1][0]

    took, undisturbed = run(main())
    assert undisturbed * 0.95 < took < undisturbed * 1.5


def test_what_a_hung_engine_is_asked_begins_when_it_goes_on():
    async def main():
        bench = Bench()
        await asyncio.sleep(1.0)
        bench.engine.hang()
        await asyncio.sleep(50.0)
        asking = asyncio.ensure_future(ask(bench.engine, bench.write(prompt=500)))
        await asyncio.sleep(50.0)
        bench.engine.resume()
        return await asking

    step = TIMES.mixed_step([Chunk(num_tokens=500, num_context=0)], num_decodes=0, num_context=0)
    assert run(main())[0][0] == pytest.approx(101.0 + step)


def test_a_hung_engine_can_be_left():
    async def main():
        bench = Bench()
        spans = bench.engine.generate(bench.write())
        await anext(spans)
        bench.engine.hang()
        await spans.aclose()
        bench.engine.resume()
        await asyncio.sleep(10.0)
        await ask(bench.engine, bench.write("b"))
        return bench.engine.num_open

    assert run(main()) == 0


def test_a_slow_engine_takes_longer():
    async def main(factor):
        bench = Bench()
        bench.engine.slow_down(factor)
        spans = await ask(bench.engine, bench.write())
        return spans[-1][0]

    assert run(main(3.0)) == pytest.approx(3 * run(main(1.0)))


def test_an_answer_of_one_token_has_ended_though_no_more_was_asked_for():
    async def main():
        bench = Bench()
        return await ask(bench.engine, replace(bench.write(answer=1), max_tokens=1))

    assert run(main())[-1][1].finish_reason is FinishReason.STOP
