"""The logits processor inside vLLM: what both of its model runners make of it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.logits_processor.state import BatchUpdateBuilder
from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors

from pdd.core.request import Sampling
from pdd.engine.noise import choose_token
from pdd.plugins.vllm.settings import SAMPLING_PROCESSOR

VOCAB_SIZE = 300
CONFIG: Any = SimpleNamespace(
    speculative_config=None,
    model_config=SimpleNamespace(max_model_len=100),
    scheduler_config=SimpleNamespace(max_num_seqs=4, async_scheduling=False),
)
SAMPLING = Sampling(temperature=0.7, top_k=40, top_p=0.9, seed=5, choice=1)


def params(sampling: Sampling, *, num_prompt_tokens: int) -> SamplingParams:
    transfer = {
        "num_prompt_tokens": num_prompt_tokens,
        "seed": sampling.seed,
        "choice": sampling.choice,
        "temperature": sampling.temperature,
    }
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k or -1,
        top_p=sampling.top_p,
        extra_args={"kv_transfer_params": transfer},
    )


def logits_of(num_rows: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(scale=3.0, size=(num_rows, VOCAB_SIZE)).astype(np.float32))


def left_in(row: torch.Tensor) -> list[int]:
    return torch.nonzero(row == 0.0).flatten().tolist() if bool(torch.isneginf(row).any()) else []


def test_the_first_model_runner_gets_rows_that_leave_one_token():
    processors = build_logitsprocs(CONFIG, torch.device("cpu"), False, False, [SAMPLING_PROCESSOR])
    ours = list(processors.all)[-1]
    assert not ours.is_argmax_invariant()
    output: list[int] = [7, -1]
    change = BatchUpdateBuilder()
    change.added.append((0, SamplingParams(temperature=0.0), [1], []))
    change.added.append((1, params(SAMPLING, num_prompt_tokens=3), [1, 2, 3, 4, 5], output))
    ours.update_state(change.get_and_reset(2))
    ours.update_state(None)
    before = logits_of(2)
    after = ours.apply(before.clone())
    assert torch.equal(after[0], before[0])
    assert left_in(after[1]) == [choose_token(before[1].numpy(), SAMPLING, position=4)]


def test_the_second_model_runner_gets_rows_that_leave_one_token():
    state: Any = SimpleNamespace(
        device=torch.device("cpu"),
        max_num_reqs=4,
        vocab_size=VOCAB_SIZE,
        all_token_ids=None,
        prompt_len=None,
        prefill_len=None,
        total_len=None,
    )
    [ours] = build_custom_logits_processors(CONFIG, state, False, [SAMPLING_PROCESSOR])
    assert ours.add_request(3, params(SAMPLING, num_prompt_tokens=3))
    assert ours.add_request(0, params(SAMPLING, num_prompt_tokens=2))
    assert not ours.add_request(0, SamplingParams(temperature=0.0))
    assert ours.add_request(2, params(replace(SAMPLING, seed=6), num_prompt_tokens=5))
    ours.apply_staged_writes()
    before = logits_of(3)
    context: Any = SimpleNamespace(
        idx_mapping_np=np.array([3, 0, 2]), seq_lens_upper_bound_np=np.array([7, 9, 5, 0], dtype=np.int32)
    )
    after = ours.apply(before.clone(), context)
    assert left_in(after[0]) == [choose_token(before[0].numpy(), SAMPLING, position=4)]
    assert torch.equal(after[1], before[1])
    assert left_in(after[2]) == [choose_token(before[2].numpy(), replace(SAMPLING, seed=6), position=0)]


def test_it_is_not_made_for_speculative_decoding():
    speculative: Any = SimpleNamespace(speculative_config=object())
    with pytest.raises(ValueError, match="--speculative-config"):
        build_custom_logits_processors(
            speculative, SimpleNamespace(**dict.fromkeys(_STATE)), False, [SAMPLING_PROCESSOR]
        )


_STATE = ("device", "max_num_reqs", "vocab_size", "all_token_ids", "prompt_len", "prefill_len", "total_len")
