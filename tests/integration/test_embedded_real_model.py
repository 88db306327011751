"""SmolLM2-135M: it answers sensibly, and hand-offs at every kind of boundary change no bit."""

from dataclasses import replace

import pytest

from pdd.engine.catalog import find_model
from tests.support.embedded import GREEDY, SEEDED, FakeStore, core_settings, generation, run, run_answers

import torch  # isort: skip  # after the support module has set its environment

from pdd.engine.embedded.core import EngineCore, load_model

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

MODEL = "smollm2-135m-instruct"
SETTINGS = core_settings(MODEL, cache_tokens=2048, prefill_chunk_tokens=128)
QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
STORY = (
    "<|im_start|>user\n" + "Tell me about the sea, the wind and 12 ships. " * 22 + "<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def model():
    with torch.inference_mode():
        return load_model(SETTINGS)


@pytest.fixture(scope="module")
def tokenizer():
    return find_model(MODEL).load_text().tokenizer


@pytest.fixture(scope="module")
def story(tokenizer) -> list[int]:
    ids = tokenizer.encode(STORY, add_special_tokens=False).ids
    assert 256 < len(ids) < 400  # more than one attention tile
    return ids


def engine(model, settings=SETTINGS, store: FakeStore | None = None) -> EngineCore:
    with torch.inference_mode():
        return EngineCore(settings, model, store.connect if store else None)


def test_it_knows_the_capital_of_france(model, tokenizer):
    known = tokenizer.encode(QUESTION, add_special_tokens=False).ids
    stop = find_model(MODEL).load_text().stop_token_ids
    (answer,) = run_answers(engine(model), generation(known, max_tokens=40, stop=sorted(stop)))
    assert tokenizer.decode(answer.tokens) == "The capital of France is Paris."


@pytest.fixture(scope="module")
def unbroken(model, story) -> dict:
    core = engine(model)
    return {
        sampling: run(core, generation(story, max_tokens=36, sampling=sampling, salt=f"t{sampling.temperature}"))[0]
        for sampling in (GREEDY, SEEDED)
    }


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_hand_offs_after_any_number_of_tokens_go_on_the_same(model, story, unbroken, sampling):
    core = engine(model, replace(SETTINGS, cache_tokens=4096))
    answer = unbroken[sampling]
    splits = (1, 2, 15, 16, 17, 33)
    rests = [
        generation(story + answer[:k], num_prompt=len(story), max_tokens=36 - k, sampling=sampling, salt=str(k))
        for k in splits
    ]
    for split, rest in zip(splits, run(core, *rests), strict=True):
        assert rest == answer[split:], f"hand-off after {split}"


def test_a_main_decode_that_loads_blocks_goes_on_the_same(model, story, unbroken):
    store = FakeStore(SETTINGS.kv_format)
    answer = unbroken[SEEDED]
    head = run(engine(model, store=store), generation(story, max_tokens=1, sampling=SEEDED))[0]
    relay = generation(story + head, num_prompt=len(story), max_tokens=20, sampling=SEEDED)
    eager = run(engine(model, store=store), relay)[0]
    main = engine(model, store=store)
    rest = generation(story + head + eager, num_prompt=len(story), max_tokens=15, sampling=SEEDED)
    assert head + eager + run(main, rest)[0] == answer
    assert main.stats().num_imported_blocks == (len(story) + 20) // 16


def test_chunk_sizes_write_the_same_bytes_to_the_node(model, story):
    stores = []
    for chunk in (128, 37):
        settings = core_settings(MODEL, cache_tokens=1024, prefill_chunk_tokens=chunk)
        stores.append(FakeStore(settings.kv_format))
        run(engine(model, settings, stores[-1]), generation(story, max_tokens=1))
    assert len(stores[0].held) == len(story) // 16
    for block_hash in stores[0].held:
        assert stores[0].block(block_hash) == stores[1].block(block_hash)
