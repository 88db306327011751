"""What the engine's core does with requests: stopping, aborting, its cache, its node."""

import random

import pytest

from pdd.core.blocks import block_hashes
from pdd.core.errors import Incompatible
from pdd.core.ids import Salt
from pdd.core.request import FinishReason
from tests.support.embedded import (
    FakeStore,
    core_settings,
    generation,
    make_core,
    prompt,
    run,
    run_answers,
)

import torch  # isort: skip  # after the support module has set its environment

PROMPT = prompt(75)


class Clock:
    """Time that passes when told."""

    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_max_tokens_ends_an_answer():
    (answer,) = run_answers(make_core(), generation(PROMPT, max_tokens=7))
    assert len(answer.tokens) == 7
    assert answer.finish_reason is FinishReason.LENGTH


def test_a_stop_token_ends_an_answer_and_is_part_of_it():
    core = make_core()
    free = run(core, generation(PROMPT, max_tokens=20))[0]
    stop = free[5]
    (answer,) = run_answers(core, generation(PROMPT, max_tokens=20, stop=[stop]))
    assert answer.tokens == free[: free.index(stop) + 1]
    assert answer.finish_reason is FinishReason.STOP


def test_a_stop_token_in_the_prompt_stops_nothing():
    (answer,) = run_answers(make_core(), generation(PROMPT, max_tokens=1, stop=PROMPT[:1]))
    assert len(answer.tokens) == 1


def test_a_one_token_prompt_is_enough():
    assert len(run(make_core(), generation([7], max_tokens=3))[0]) == 3


def test_an_extend_leaves_the_known_tokens_cached():
    core = make_core()
    run(core, generation(PROMPT, max_tokens=1))
    before = core.stats().num_computed_tokens
    run(core, generation(PROMPT, max_tokens=1))
    assert core.stats().num_computed_tokens - before == len(PROMPT) - 64


@pytest.mark.parametrize("num_known", [65, 300, 1000])
def test_a_long_extend_costs_other_streams_one_chunk_a_token_and_no_token(num_known: int):
    core = make_core(core_settings(prefill_chunk_tokens=64))
    streams = [core.make_sequence(generation(PROMPT, max_tokens=100, salt=salt)) for salt in ("a", "b", "c")]
    extend = core.make_sequence(generation(prompt(num_known, seed=1), num_prompt=10, max_tokens=1))
    for stream in streams:
        core.add(stream)
    with torch.inference_mode():
        while not all(stream.num_generated_tokens for stream in streams):
            core.step()
        core.add(extend)
        for _ in range(-(-num_known // 64)):
            before = core.stats().num_computed_tokens
            drawn = core.step()
            assert [each.sequence for each in drawn if each.sequence is not extend] == streams
            assert core.stats().num_computed_tokens - before <= 64 + len(streams)
    assert extend.num_generated_tokens == 1


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 63, 64, 65])
def test_the_last_known_token_is_always_computed(num_tokens):
    core = make_core()
    known = prompt(num_tokens)
    first = run(core, generation(known, max_tokens=30))
    before = core.stats().num_computed_tokens
    assert run(core, generation(known, max_tokens=1))[0] == first[0][:1]
    assert core.stats().num_computed_tokens - before == num_tokens - (num_tokens - 1) // 16 * 16


def test_another_salt_hits_nothing():
    core = make_core()
    run(core, generation(PROMPT, max_tokens=1, salt="one"))
    before = core.stats().num_computed_tokens
    run(core, generation(PROMPT, max_tokens=1, salt="two"))
    assert core.stats().num_computed_tokens - before == len(PROMPT)


def test_the_answers_own_blocks_are_cached_for_the_next_turn():
    core = make_core()
    answer = run(core, generation(PROMPT, max_tokens=40))[0]
    before = core.stats().num_computed_tokens
    run(core, generation(PROMPT + answer + [1, 2, 3], max_tokens=1))
    assert core.stats().num_computed_tokens - before == len(PROMPT) + 40 + 3 - 112


def test_every_full_block_of_prompt_and_answer_reaches_the_node():
    settings = core_settings()
    store = FakeStore(settings.kv_format)
    answer = run(make_core(settings, store), generation(PROMPT, max_tokens=40))[0]
    expected = block_hashes(settings.kv_format, Salt(""), PROMPT + answer[:-1])
    assert list(store.held) == list(expected)


def test_blocks_reach_the_node_while_the_prefill_still_runs():
    settings = core_settings(prefill_chunk_tokens=16)
    store = FakeStore(settings.kv_format)
    core = make_core(settings, store)
    core.add(core.make_sequence(generation(PROMPT)))
    counts = []
    with torch.inference_mode():
        for _ in range(4):
            core.step()
            counts.append(len(store.held))
    assert counts == [1, 2, 3, 4]


def test_a_hit_in_the_own_cache_is_exported_to_a_node_that_lacks_it():
    settings = core_settings()
    store = FakeStore(settings.kv_format)
    core = make_core(settings, store)
    run(core, generation(PROMPT, max_tokens=1))
    store.held.clear()
    run(core, generation(PROMPT, max_tokens=1))
    assert list(store.held) == list(block_hashes(settings.kv_format, Salt(""), PROMPT))


def test_a_node_that_comes_back_in_mid_prefill_is_offered_the_blocks_that_it_missed():
    settings = core_settings(prefill_chunk_tokens=16)
    store = FakeStore(settings.kv_format)
    clock = Clock()
    core = make_core(settings, store, now=clock)
    core.add(core.make_sequence(generation(PROMPT)))
    with torch.inference_mode():
        core.step()
        store.down = True
        core.step()
        core.step()
        store.held.clear()  # another life of the node
        store.down = False
        clock.time = 60.0
        core.step()
    assert list(store.held) == list(block_hashes(settings.kv_format, Salt(""), PROMPT))[:4]


def test_a_node_that_is_full_costs_nothing():
    settings = core_settings()
    store = FakeStore(settings.kv_format, capacity=2)
    assert run(make_core(settings, store), generation(PROMPT)) == run(make_core(), generation(PROMPT))
    assert len(store.held) == 2
    assert not store.writing


def test_a_prefix_partly_in_the_own_cache_and_partly_in_the_node_is_joined():
    settings = core_settings()
    store = FakeStore(settings.kv_format)
    run(make_core(settings, store), generation(PROMPT, max_tokens=1))
    second = make_core(settings, store)
    store.down = True
    run(second, generation(PROMPT[:40], max_tokens=1))
    store.down = False
    third = make_core(settings, store)
    run(third, generation(PROMPT[:40], max_tokens=1))
    assert third.stats().num_imported_blocks == 2
    run(third, generation(PROMPT, max_tokens=1))
    assert third.stats().num_imported_blocks == 4
    assert third.stats().num_computed_tokens == 8 + 11


def test_a_node_of_another_format_is_refused_at_the_start():
    class Wrong(FakeStore):
        def connect(self):
            raise Incompatible("another KV format")

    with pytest.raises(Incompatible):
        make_core(store=Wrong(core_settings().kv_format))


def test_a_node_that_dies_anywhere_changes_no_token():
    settings = core_settings(prefill_chunk_tokens=20)
    expected = run(make_core(settings), generation(PROMPT, max_tokens=20))[0]
    for last_call in range(12):

        class Mortal(FakeStore):
            calls = 0

            def _check(self):
                self.calls += 1
                self.down = self.calls > last_call  # noqa: B023  # used within the iteration
                super()._check()

        core = make_core(settings, Mortal(settings.kv_format))
        assert run(core, generation(PROMPT, max_tokens=20))[0] == expected
        assert core.stats().blocks.num_held == 0
        assert not core.stats().node_connected or last_call == 11


def test_a_slow_reader_is_paused_and_its_neighbours_go_on():
    core = make_core(core_settings(max_unread_tokens=5))
    slow, fast = (core.make_sequence(generation(PROMPT, max_tokens=30, salt=salt)) for salt in ("slow", "fast"))
    core.add(slow)
    core.add(fast)
    with torch.inference_mode():
        while core.has_work:
            core.step()
            fast.num_read = fast.num_generated_tokens
    assert (slow.num_generated_tokens, fast.num_generated_tokens) == (5, 30)
    slow.num_read = 5
    assert core.has_work
    core.remove(slow)
    assert core.stats().blocks.num_held == 0


@pytest.mark.parametrize("seed", range(8))
def test_aborts_at_random_moments_leave_no_block_held_and_disturb_nobody(seed):
    dice = random.Random(seed)
    requests = [generation(prompt(dice.randrange(1, 90), seed=number), max_tokens=25) for number in range(12)]
    alone = [run(make_core(), each)[0] for each in requests]
    core = make_core(core_settings(cache_tokens=512, max_batch=4))
    sequences = [core.make_sequence(each) for each in requests]
    got: dict[int, list[int]] = {id(sequence): [] for sequence in sequences}
    aborted = set(dice.sample(range(12), 5))
    pending = dict(enumerate(sequences))
    with torch.inference_mode():
        while core.has_work or pending:
            for number in [number for number in pending if dice.random() < 0.3]:
                core.add(pending.pop(number))
            for drawn in core.step():
                got[id(drawn.sequence)].append(drawn.token)
            for number in aborted - set(pending):
                if dice.random() < 0.15:
                    core.remove(sequences[number])
    for number, sequence in enumerate(sequences):
        tokens = got[id(sequence)]
        assert tokens == alone[number][: len(tokens)]
        assert number in aborted or len(tokens) == 25
    stats = core.stats()
    assert (stats.num_running, stats.num_waiting, stats.blocks.num_held) == (0, 0, 0)
