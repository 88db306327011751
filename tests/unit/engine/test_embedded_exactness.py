"""However a sequence is split, batched, moved or preempted, logits and KV keep every bit."""

import pytest

from pdd.core.blocks import block_hashes
from pdd.core.ids import Salt
from tests.support.embedded import SAMPLINGS, FakeStore, core_settings, generation, make_core, prompt, run

import torch  # isort: skip  # after the support module has set its environment

from pdd.engine.embedded.core import load_model
from pdd.engine.embedded.paged_cache import PagedCache
from pdd.engine.embedded.step import StepBuilder

PROMPT = prompt(75)


@pytest.fixture(scope="module")
def unbroken() -> dict:
    """The reference: each request alone, prefilled in one piece."""
    core = make_core(core_settings(prefill_chunk_tokens=128))
    return {sampling: run(core, generation(PROMPT, max_tokens=40, sampling=sampling))[0] for sampling in SAMPLINGS}


class Direct:
    """Model and cache without scheduler: computes pieces as told, returns their last logits."""

    def __init__(self, num_blocks: int = 160) -> None:
        settings = core_settings(prefill_chunk_tokens=400, max_batch=16)
        with torch.inference_mode():
            self.model = load_model(settings)
            self.cache = PagedCache(self.model.shape, settings.kv_format, num_blocks)

    def step(self, *works: tuple[list[int], int, list[int]]) -> torch.Tensor:
        with torch.inference_mode():
            builder = StepBuilder(self.cache)
            for tokens, first_position, table in works:
                builder.add(tokens, first_position=first_position, block_table=table, sampled=True)
            return self.model.forward(builder.build(self.model.buckets), self.cache)

    def prefill(self, tokens: list[int], pieces: list[int], table: list[int]) -> torch.Tensor:
        start, logits = 0, torch.empty(0)
        for size in pieces:
            logits = self.step((tokens[start : start + size], start, table))[0]
            start += size
        assert start == len(tokens)
        return logits

    def kv(self, table: list[int], num_tokens: int) -> torch.Tensor:
        return self.cache.pool[:, table].flatten(1, 2)[:, :num_tokens].clone()


@pytest.fixture(scope="module")
def direct() -> Direct:
    return Direct()


LENGTH = 300  # more than one attention tile
LONG = prompt(LENGTH, seed=3)
IN_ORDER = list(range(20))


@pytest.fixture(scope="module")
def whole(direct) -> tuple[torch.Tensor, torch.Tensor]:
    logits = direct.prefill(LONG, [LENGTH], IN_ORDER)
    return logits.clone(), direct.kv(IN_ORDER, LENGTH)


@pytest.mark.parametrize(
    "pieces",
    [[299, 1], [128, 128, 44], [256, 44], [255, 45], [257, 43], [1] * 300, [2, 3, 5, 7, 11, 13, 259], [17] * 17 + [11]],
    ids=lambda pieces: f"{len(pieces)} pieces from {pieces[0]}",
)
def test_any_chunking_gives_the_same_bits(direct, whole, pieces):
    table = list(range(30, 50))
    logits = direct.prefill(LONG, pieces, table)
    assert torch.equal(logits, whole[0])
    assert torch.equal(direct.kv(table, LENGTH), whole[1])


@pytest.mark.parametrize(
    "table",
    [list(range(79, 59, -1)), [3 * index + 60 for index in range(20)], [80, 81, 82, *range(90, 107)]],
    ids=["backwards", "scattered", "two runs"],
)
def test_blocks_may_lie_anywhere(direct, whole, table):
    logits = direct.prefill(LONG, [200, 99, 1], table)
    assert torch.equal(logits, whole[0])
    assert torch.equal(direct.kv(table, LENGTH), whole[1])


def test_what_the_unused_rest_of_a_tile_holds_does_not_matter(direct, whole):
    table = list(range(120, 140))
    with torch.inference_mode():
        direct.cache.pool[:, 120:].fill_(1e6)
        logits = direct.prefill(LONG, [128, 128, 44], table)
        direct.cache.pool[:, 139:].zero_()
    assert torch.equal(logits, whole[0])


@pytest.mark.parametrize("num_others", [1, 2, 5, 15])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 32, 64])
def test_company_in_the_batch_changes_nothing(direct, whole, num_others, num_rows):
    table = list(range(30, 50))
    start = LENGTH - num_rows
    direct.prefill(LONG[:start], [start], table)
    others = [(prompt(1 + index, seed=index), 0, [60 + index]) for index in range(num_others)]
    half = num_others // 2
    logits = direct.step(*others[:half], (LONG[start:], start, table), *others[half:])
    assert torch.equal(logits[half], whole[0])
    assert torch.equal(direct.kv(table, LENGTH), whole[1])


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_answers_do_not_depend_on_the_chunk_size(unbroken, sampling, chunk):
    core = make_core(core_settings(prefill_chunk_tokens=chunk))
    assert run(core, generation(PROMPT, max_tokens=40, sampling=sampling)) == [unbroken[sampling]]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
def test_an_answer_split_after_any_token_goes_on_the_same(unbroken, sampling):
    core = make_core()
    answer = unbroken[sampling]
    for split in range(1, len(answer)):
        rest = generation(
            PROMPT + answer[:split],
            num_prompt=len(PROMPT),
            max_tokens=len(answer) - split,
            sampling=sampling,
            salt=f"cold {split}",
        )
        assert run(core, rest) == [answer[split:]], f"split after {split} tokens"


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
def test_an_answer_among_others_is_the_same(unbroken, sampling):
    others = [generation(prompt(10 + 9 * seed, seed=seed), max_tokens=30, sampling=sampling) for seed in range(1, 8)]
    mine = generation(PROMPT, max_tokens=40, sampling=sampling)
    assert run(make_core(), *others[:3], mine, *others[3:])[3] == unbroken[sampling]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
def test_a_cached_prefix_gives_the_same_answer(unbroken, sampling):
    core = make_core()
    mine = generation(PROMPT, max_tokens=40, sampling=sampling)
    first, second = run(core, mine)[0], run(core, mine)[0]
    assert first == second == unbroken[sampling]
    # 114 tokens have KV the first time; the second time 4 full blocks of the prompt are there already.
    assert core.stats().num_computed_tokens == 114 + 114 - 64


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
def test_an_answer_continued_elsewhere_from_a_node_is_the_same(unbroken, sampling):
    store = FakeStore(core_settings().kv_format)
    answer = unbroken[sampling]
    run(make_core(store=store), generation(PROMPT, max_tokens=5, sampling=sampling))
    relay = make_core(store=store)
    got = run(relay, generation(PROMPT + answer[:5], num_prompt=len(PROMPT), max_tokens=20, sampling=sampling))[0]
    main = make_core(store=store)
    rest = generation(PROMPT + answer[:25], num_prompt=len(PROMPT), max_tokens=15, sampling=sampling)
    assert answer[:5] + got + run(main, rest)[0] == answer
    assert relay.stats().num_imported_blocks == 4
    assert main.stats().num_imported_blocks == 6  # of 100 known tokens, 99 of which may be loaded
    assert not store.leases
    assert not store.writing


def test_two_engines_write_the_same_bytes_for_the_same_block():
    settings = core_settings()
    stores = [FakeStore(settings.kv_format), FakeStore(settings.kv_format)]
    run(make_core(settings, stores[0]), generation(PROMPT, max_tokens=30))
    chunked = make_core(core_settings(prefill_chunk_tokens=9), stores[1])
    run(
        chunked,
        *(generation(prompt(20, seed=seed), max_tokens=20) for seed in range(5)),
        generation(PROMPT, max_tokens=30),
    )
    hashes = block_hashes(settings.kv_format, Salt(""), PROMPT)
    assert len(hashes) == 4
    for block_hash in hashes:
        assert stores[0].block(block_hash) == stores[1].block(block_hash)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
def test_preempted_answers_are_the_same(sampling):
    requests = [generation(prompt(60, seed=seed), max_tokens=60, sampling=sampling) for seed in range(4)]
    alone = [run(make_core(), each)[0] for each in requests]
    small = make_core(core_settings(cache_tokens=256))
    assert run(small, *requests) == alone
    assert small.stats().num_preemptions > 0
    assert small.stats().blocks.num_held == 0
