"""What a request to an engine may say, and how the rest is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.errors import ContextTooLong, InvalidRequest, UnknownModel
from pdd.core.request import Generation, Sampling
from pdd.engine.base import EngineInfo
from pdd.engine.http.errors import reply_to
from pdd.engine.http.wire_request import decode_body, read_generation

INFO = EngineInfo(model="m", max_model_tokens=100, kv_format=None, sampling_version=None, node=None, instance="i")


def read(changes: dict[str, Any] | None = None, sampling: dict[str, Any] | None = None) -> Generation:
    params = {"max_tokens": 5, "temperature": 0.0} | (sampling or {})
    body = {"token_ids": [1, 2, 3], "sampling_params": params} | (changes or {})
    return read_generation(decode_body(json.dumps(body).encode()), INFO, vocab_size=50)


def test_the_least_request_is_enough():
    asked = read()
    assert asked.known_tokens == (1, 2, 3)
    assert asked.num_prompt_tokens == 3
    assert asked.first_position == 0
    assert asked.max_tokens == 5
    assert asked.sampling == Sampling(temperature=0.0, top_k=None, top_p=1.0, seed=0)


def test_without_max_tokens_the_context_is_filled():
    assert read(sampling={"max_tokens": None}).max_tokens == 97


def test_a_seed_may_be_given_in_either_place_but_not_two_of_them():
    assert read({"kv_transfer_params": {"seed": 9}}, {"temperature": 1.0}).sampling.seed == 9
    assert read({"kv_transfer_params": {"seed": 9}}, {"temperature": 1.0, "seed": 9}).sampling.seed == 9
    with pytest.raises(InvalidRequest, match="it must be that of sampling_params, 8"):
        read({"kv_transfer_params": {"seed": 9}}, {"temperature": 1.0, "seed": 8})


@pytest.mark.parametrize("top_k", [0, -1])
def test_both_of_vllms_ways_to_turn_top_k_off_work(top_k: int):
    assert read(sampling={"top_k": top_k}).sampling.top_k is None
    assert read(sampling={"top_k": 1}).sampling.top_k == 1


def test_neutral_values_of_parameters_without_support_are_accepted():
    neutral = {"n": 1, "presence_penalty": 0, "repetition_penalty": 1.0, "min_p": 0, "stop": [], "logprobs": None}
    assert read({"priority": 0, "stream_options": None, "model": "m"}, neutral).max_tokens == 5


@pytest.mark.parametrize(
    ("sampling", "field", "limit"),
    [
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": -4}, "max_tokens", "at least 1"),
        ({"temperature": -0.5}, "temperature", "at least 0"),
        ({"temperature": 0.5}, "seed", "needed"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_p": 1.01}, "top_p", "at most 1"),
        ({"top_k": -2}, "top_k", "at least -1"),
        ({"seed": -1}, "seed", "from 0"),
        ({"seed": 2**63}, "seed", str(2**63 - 1)),
        ({"stop_token_ids": [3, 50]}, "stop_token_ids[1]", "from 0 to 49"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "from 0 to 49"),
        ({"n": 2}, "n", "only 1"),
        ({"presence_penalty": 0.1}, "presence_penalty", "only 0"),
        ({"frequency_penalty": 0.1}, "frequency_penalty", "only 0"),
        ({"repetition_penalty": 1.1}, "repetition_penalty", "only 1"),
        ({"min_p": 0.1}, "min_p", "only 0"),
        ({"min_tokens": 3}, "min_tokens", "only 0"),
        ({"logprobs": 1}, "logprobs", "only None"),
        ({"stop": ["x"]}, "stop", "only null"),
    ],
)
def test_a_sampling_parameter_out_of_range_is_refused_by_name_with_its_limit(
    sampling: dict[str, Any], field: str, limit: str
):
    with pytest.raises(InvalidRequest) as refused:
        read(sampling=sampling)
    assert refused.value.param == f"sampling_params.{field}"
    assert refused.value.message.startswith(f"sampling_params.{field} is ")
    assert limit in refused.value.message


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, 50]}, "token_ids[1]"),
        ({"token_ids": [-1]}, "token_ids[0]"),
        ({"token_ids": [2**40]}, "token_ids[0]"),
        ({"priority": 1}, "priority"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"request_id": "x" * 257}, "request_id"),
        ({"kv_transfer_params": {"request_id": "x" * 257}}, "kv_transfer_params.request_id"),
        ({"kv_transfer_params": {"num_prompt_tokens": 0}}, "kv_transfer_params.num_prompt_tokens"),
        ({"kv_transfer_params": {"num_prompt_tokens": 4}}, "kv_transfer_params.num_prompt_tokens"),
        ({"kv_transfer_params": {"attempt": -1}}, "kv_transfer_params.attempt"),
        ({"kv_transfer_params": {"choice": -1}}, "kv_transfer_params.choice"),
        ({"kv_transfer_params": {"seed": -1}}, "kv_transfer_params.seed"),
        ({"kv_transfer_params": {"temperature": 0.7}}, "kv_transfer_params.temperature"),
        ({"kv_transfer_params": {"temperature": -1.0}}, "kv_transfer_params.temperature"),
    ],
)
def test_a_field_out_of_range_is_refused_by_name(changes: dict[str, Any], param: str):
    with pytest.raises(InvalidRequest) as refused:
        read(changes)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": "abc"}, "token_ids"),
        ({"token_ids": [1, 1.5]}, "token_ids[1]"),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
        ({"sampling_params": {"tempreature": 1}}, "sampling_params.tempreature"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params.do_remote_decode"),
        ({"features": {}}, "features"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_a_wrong_type_or_an_unknown_field_is_refused_by_name(changes: dict[str, Any], param: str):
    with pytest.raises(InvalidRequest) as refused:
        read(changes)
    assert refused.value.param == param


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"not json"])
def test_a_body_that_is_not_json_is_refused(raw: bytes):
    with pytest.raises(InvalidRequest) as refused:
        decode_body(raw)
    assert refused.value.code == "invalid_json"


def test_missing_fields_are_named():
    with pytest.raises(InvalidRequest) as refused:
        decode_body(b'{"token_ids": [1]}')
    assert refused.value.param == "sampling_params"


def test_too_long_together_is_refused_with_both_lengths_and_the_limit():
    with pytest.raises(ContextTooLong, match=r"3 tokens.*98.*at most 100"):
        read(sampling={"max_tokens": 98})
    with pytest.raises(ContextTooLong):
        read({"token_ids": [1] * 100}, {"max_tokens": None})


def test_another_model_is_unknown():
    with pytest.raises(UnknownModel, match="other"):
        read({"model": "other"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "token_ids",
    "sampling_params",
    "request_id",
    "model",
    "stream",
    "cache_salt",
    "priority",
    "kv_transfer_params",
]
PARAMETERS = ["max_tokens", "temperature", "top_k", "top_p", "seed", "stop_token_ids", "n", "stop", "logprobs"]


@given(
    changes=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2),
    sampling=st.dictionaries(st.sampled_from(PARAMETERS), JSON, max_size=3),
)
def test_any_json_is_either_a_sound_request_or_refused(changes: dict[str, Any], sampling: dict[str, Any]):
    try:
        asked = read(changes, sampling)
    except InvalidRequest:
        return
    assert asked.known_tokens
    assert asked.max_tokens >= 1
    assert len(asked.known_tokens) + asked.max_tokens <= INFO.max_model_tokens
    assert all(0 <= token < 50 for token in (*asked.known_tokens, *asked.stop_token_ids))
    assert 1 <= asked.num_prompt_tokens <= len(asked.known_tokens)
    assert 0.0 < asked.sampling.top_p <= 1.0
    assert 0.0 <= asked.sampling.temperature < float("inf")
    assert 0 <= asked.sampling.seed < 2**63


@given(raw=st.binary(max_size=60))
def test_any_bytes_are_refused(raw: bytes):
    with pytest.raises(InvalidRequest):
        decode_body(raw)


def test_a_refusal_does_not_echo_megabytes():
    with pytest.raises(InvalidRequest) as refused:
        read({"x" * 1_000_000: 1})
    assert len(reply_to(refused.value).body) < 4000
