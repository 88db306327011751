"""Whatever vLLM does to its batch, each row draws what ``engine.noise`` draws at that output position."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pdd.core.errors import InvalidRequest
from pdd.core.request import Sampling
from pdd.engine.noise import choose_token
from pdd.plugins.vllm.drawing import Draw, draw_tokens
from pdd.plugins.vllm.seeded_rows import SeededRows, read_request

PLACEHOLDER = -1
MAX_ROWS = 5


class Direction(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass
class Params:
    """vLLM's ``SamplingParams``, as far as they are read."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    extra_args: dict[str, Any] | None = None


def routers(*, seed: int | None = 7, num_prompt_tokens: int = 1, params: Params | None = None, **more: Any) -> Params:
    params = params or Params()
    params.extra_args = {"kv_transfer_params": {"num_prompt_tokens": num_prompt_tokens, "seed": seed, **more}}
    return params


@dataclass
class Update:
    removed: list[int] = field(default_factory=list)
    added: list[Any] = field(default_factory=list)
    moved: list[Any] = field(default_factory=list)


@dataclass
class Request:
    params: Params
    known: list[int]
    output: list[int]
    position: int | None
    """Of the token it draws next; None: not ours."""


class BatchMachine(RuleBasedStateMachine):
    """A batch as vLLM's first model runner keeps it: rows without a hole, filled from the end when one becomes free."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Request] = []
        self.away: list[Request] = []
        self.change = Update()
        self.seen = SeededRows()

    @rule(known=st.integers(1, 6), prompt=st.integers(1, 6), ours=st.booleans())
    @precondition(lambda self: len(self.rows) < MAX_ROWS)
    def a_request_comes(self, known: int, prompt: int, ours: bool):
        prompt = min(prompt, known)
        params = routers(seed=len(self.rows), num_prompt_tokens=prompt) if ours else Params()
        self._add(Request(params, [0] * known, [], known - prompt if ours else None))

    @rule()
    @precondition(lambda self: self.away and len(self.rows) < MAX_ROWS)
    def a_preempted_request_comes_back(self):
        request = self.away.pop()
        request.output = list(request.output)  # under asynchronous scheduling it is another list afterwards
        self._add(request)

    @rule(which=st.integers(0, MAX_ROWS), preempted=st.booleans(), replaced=st.booleans())
    @precondition(lambda self: self.rows)
    def a_request_goes(self, which: int, preempted: bool, replaced: bool):
        index = which % len(self.rows)
        gone = self.rows[index]
        if replaced:
            # In the same step somebody else takes its row: no removal is told, the addition replaces.
            request = Request(Params(), [0], [], None)
            self.rows[index] = request
            self.change.added.append((index, request.params, request.known, request.output))
        else:
            self._vacate(index)
        if preempted:
            self.away.append(gone)
        self._tell()

    @rule(first=st.integers(0, MAX_ROWS), second=st.integers(0, MAX_ROWS))
    @precondition(lambda self: len(self.rows) > 1)
    def two_rows_are_swapped(self, first: int, second: int):
        first, second = first % len(self.rows), second % len(self.rows)
        if first != second:
            self.rows[first], self.rows[second] = self.rows[second], self.rows[first]
            self.change.moved.append((first, second, Direction.SWAP))
            self._tell()

    @rule(known=st.booleans())
    @precondition(lambda self: self.rows)
    def a_step_samples(self, known: bool):
        for request in self.rows:
            request.output.append(3 if known else PLACEHOLDER)
            if request.position is not None:
                request.position += 1

    @invariant()
    def every_seeded_row_stands_at_its_position_and_no_other_is_there(self):
        expected = {
            index: (request.params.extra_args["kv_transfer_params"]["seed"], request.position)
            for index, request in enumerate(self.rows)
            if request.position is not None
        }
        assert {index: (row.request.sampling.seed, row.position) for index, row in self.seen.current()} == expected

    def _add(self, request: Request) -> None:
        self.change.added.append((len(self.rows), request.params, request.known, request.output))
        self.rows.append(request)
        self._tell()

    def _vacate(self, index: int) -> None:
        last = len(self.rows) - 1
        if index == last:
            self.change.removed.append(index)
        else:
            # Its hole is filled from the end; then only the move is told.
            self.change.moved.append((last, index, Direction.UNIDIRECTIONAL))
            self.rows[index] = self.rows[last]
        self.rows.pop()

    def _tell(self) -> None:
        self.seen.update(self.change)
        self.change = Update()


TestBatch = BatchMachine.TestCase
TestBatch.settings = settings(max_examples=150, stateful_step_count=30)


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([1e-9, 0.004, 0.3, 1.0, 2.0, 50.0]),
    top_k=st.sampled_from([None, 1, 2, 7, 1000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.95, 1.0]),
    seed=st.sampled_from([0, 1, 2**31, 2**63 - 1]),
    choice=st.integers(0, 3),
)


@given(
    samplings=st.lists(SAMPLINGS, min_size=1, max_size=20),
    vocab_size=st.sampled_from([1, 2, 33, 512]),
    position=st.integers(0, 2**20),
    coarse=st.booleans(),
    chance=st.integers(0, 2**32 - 1),
)
def test_many_rows_at_once_draw_what_each_would_draw_alone(
    samplings: list[Sampling], vocab_size: int, position: int, coarse: bool, chance: int
):
    logits = np.random.default_rng(chance).normal(scale=3.0, size=(len(samplings), vocab_size)).astype(np.float32)
    if coarse:
        logits = np.round(logits)  # many ties, which go to the lower ids
    draws = [Draw(sampling=sampling, position=position + row) for row, sampling in enumerate(samplings)]
    alone = [choose_token(row, draw.sampling, position=draw.position) for row, draw in zip(logits, draws, strict=True)]
    assert draw_tokens(torch.from_numpy(logits), draws).tolist() == alone


def test_tokens_that_are_ruled_out_are_not_drawn():
    logits = torch.full((1, 50), float("-inf"))
    logits[0, 17] = -3.0
    sampling = Sampling(temperature=1.0, top_k=None, top_p=0.5, seed=1)
    assert draw_tokens(logits, [Draw(sampling=sampling, position=0)]).tolist() == [17]


@pytest.mark.parametrize(
    "params",
    [
        Params(seed=7),
        Params(extra_args={}),
        Params(extra_args={"kv_transfer_params": None}),
        Params(extra_args={"kv_transfer_params": {"do_remote_decode": True}}, seed=7),
        routers(seed=None),
        routers(params=Params(temperature=0.0)),
        routers(temperature=0.0),
    ],
)
def test_what_is_not_the_routers_or_needs_no_chance_is_left_alone(params: Params):
    assert read_request(params) is None


def test_the_exact_temperature_counts_not_what_vllm_made_of_it():
    asked = read_request(routers(params=Params(temperature=0.01, top_k=-1), temperature=0.002, choice=2))
    assert asked is not None
    assert asked.sampling == Sampling(temperature=0.002, top_k=None, top_p=1.0, seed=7, choice=2)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        (routers(params=Params(seed=7)), "kv_transfer_params.seed"),
        (routers(seed=2**63), str(2**63 - 1)),
        (routers(num_prompt_tokens=0), "num_prompt_tokens"),
        (routers(choice=-1), "choice"),
        (routers(unknown=1), "unknown"),
    ],
)
def test_what_would_fail_in_the_middle_of_a_step_is_refused_by_name(params: Params, named: str):
    with pytest.raises(InvalidRequest, match=named):
        read_request(params)
