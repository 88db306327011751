from __future__ import annotations

import json

import numpy as np
import pytest

from pdd.cli.verify.scores import read_scores
from pdd.core.errors import WorkerFailed


def reply(*candidates: tuple[int, float]) -> bytes:
    """As vLLM answers ``logprobs: -1``: the drawn token first, then all by rank."""
    top = [{"token_id": token, "logprob": logprob, "rank": 1} for token, logprob in candidates]
    content = [{"token_id": candidates[0][0], "logprob": candidates[0][1], "rank": 1, "top_logprobs": top}]
    choice = {"index": 0, "token_ids": [1], "finish_reason": "length", "logprobs": {"content": content}}
    return json.dumps({"request_id": "r", "choices": [choice]}).encode()


def test_scores_are_put_in_the_order_of_their_tokens():
    assert read_scores(reply((2, -0.5), (0, -1.5), (1, -9999.0)), vocab_size=3).tolist() == [-1.5, -9999.0, -0.5]


def test_a_vocabulary_that_is_padded_keeps_its_padding():
    logits = read_scores(reply((0, -1.0), (1, -2.0), (3, -9.0)), vocab_size=2)
    assert logits.tolist() == [-1.0, -2.0, -np.inf, -9.0]


def test_a_server_that_tells_only_some_scores_is_named_the_flag():
    with pytest.raises(WorkerFailed, match=r"told 2 scores of 512: it needs --max-logprobs -1"):
        read_scores(reply((0, -1.0), (1, -2.0)), vocab_size=512)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices": []}', b'{"choices": [{"logprobs": null}]}'])
def test_an_answer_without_scores_is_an_error_of_the_engine(body: bytes):
    with pytest.raises(WorkerFailed, match="the engine's scores can't be read"):
        read_scores(body, vocab_size=1)
