"""OpenAI's request bodies: what is accepted, and how the rest is refused."""

import json

import pytest

from pdd.core.errors import InvalidRequest
from pdd.core.request import HandoffMode, Route, Steering
from pdd.router.api.replies import UsageReports
from pdd.router.api.schema import check_token_ids, parse_chat, parse_completion


def chat(**fields):
    return parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode())


def completion(**fields):
    return parse_completion(json.dumps({"model": "m", "prompt": "hi", **fields}).encode())


def refusal(call, **fields):
    with pytest.raises(InvalidRequest) as refused:
        call(**fields)
    return refused.value


def test_a_minimal_chat_has_openais_defaults():
    options = chat().options
    assert (options.temperature, options.top_p, options.top_k, options.seed) == (1.0, 1.0, None, None)
    assert (options.stream, options.usage_reports, options.max_tokens) == (False, UsageReports.NONE, None)
    assert (options.stops, options.stop_token_ids, options.ignore_eos) == ((), frozenset(), False)
    assert (options.steering, options.cache_salt, options.trace) == (Steering(), None, False)


def test_the_pdd_field_steers():
    pdd = {"route": "relay", "handoff": "catch_up", "handoff_after_tokens": 3, "cache_salt": "s", "trace": True}
    options = chat(pdd=pdd).options
    assert options.steering == Steering(route=Route.RELAY, handoff=HandoffMode.CATCH_UP, handoff_after_tokens=3)
    assert (options.cache_salt, options.trace) == ("s", True)
    assert chat(pdd={"route": "auto", "handoff": "auto"}).options.steering == Steering()


@pytest.mark.parametrize(("seed", "folded"), [(0, 0), (-1, 2**63 - 1), (2**63 - 1, 2**63 - 1), (-(2**63), 0), (7, 7)])
def test_any_signed_64_bit_seed_is_folded(seed, folded):
    assert chat(seed=seed).options.seed == folded


@pytest.mark.parametrize("off", [None, 0, -1])
def test_top_k_can_be_off_in_vllms_ways(off):
    assert chat(top_k=off).options.top_k is None


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("text", "text"), ([1, 2], (1, 2)), (["text"], "text"), ([[1, 2]], (1, 2)), ("", ""), ([""], ""), ([[]], ())],
)
def test_prompts_come_as_text_or_token_ids_or_batches_of_one(prompt, expected):
    assert completion(prompt=prompt).prompt == expected


@pytest.mark.parametrize("stop", ["a", ["a"], ["a", "b", "c", "d", "e"]])
def test_stop_strings_come_alone_or_as_a_list(stop):
    assert chat(stop=stop).options.stops == ((stop,) if isinstance(stop, str) else tuple(stop))


@pytest.mark.parametrize(
    "harmless",
    [
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"service_tier": "auto"},
        {"store": False},
        {"n": 1},
        {"frequency_penalty": 0.0},
        {"presence_penalty": 0},
        {"logit_bias": {}},
        {"logprobs": False},
        {"tools": []},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"logprobs": None, "tools": None, "n": None},
        {"max_tokens": 3, "max_completion_tokens": 3},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    ],
)
def test_what_changes_nothing_is_accepted(harmless):
    assert chat(**harmless).messages


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"n": 2}, "n", "2"),
        ({"n": True}, "n", "true"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "0.5"),
        ({"logprobs": True}, "logprobs", "true"),
        ({"logit_bias": {"5": 1}}, "logit_bias", '{"5": 1}'),
        ({"tools": [{"type": "function"}]}, "tools", "is not supported; leave it out"),
        ({"response_format": {"type": "json_object"}}, "response_format", "json_object"),
        ({"store": True}, "store", "true"),
        ({"min_p": 0.1}, "min_p", "0.1"),
        ({"colour": "red"}, "colour", "unknown parameter"),
        ({"pdd": {"rout": "relay"}}, "pdd.rout", "unknown parameter"),
        ({"pdd": {"route": "scenic"}}, "pdd.route", '"scenic" is not one of auto, direct, relay'),
        ({"pdd": {"route": "relay_only"}}, "pdd.route", '"relay_only" is not one of auto, direct, relay'),
        ({"pdd": {"handoff": 1}}, "pdd.handoff", "1 is not one of auto, one_shot, catch_up"),
        ({"pdd": {"handoff_after_tokens": 0}}, "pdd.handoff_after_tokens", "from 1"),
        ({"pdd": {"cache_salt": "x" * 1025}}, "pdd.cache_salt", "at most 1024"),
        ({"cache_salt": "x" * 1025}, "cache_salt", "at most 1024"),
        ({"cache_salt": "a", "pdd": {"cache_salt": "b"}}, "cache_salt", '"a" contradicts pdd.cache_salt "b"'),
        ({"temperature": 2.5}, "temperature", "2.5"),
        ({"temperature": -0.1}, "temperature", "from 0 to 2"),
        ({"temperature": "hot"}, "temperature", '"hot"'),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.1}, "top_p", "1.1"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"seed": 2**63}, "seed", str(2**63)),
        ({"seed": 1.5}, "seed", "1.5"),
        ({"seed": 10**400}, "seed", "out of range"),
        ({"temperature": 10**400}, "temperature", "out of range"),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"max_tokens": "5"}, "max_tokens", '"5" is not a whole number'),
        ({"max_tokens": True}, "max_tokens", "true is not a whole number"),
        ({"max_tokens": 1.5}, "max_tokens", "1.5 is not a whole number"),
        ({"temperature": False}, "temperature", "false is not a number"),
        ({"ignore_eos": 1}, "ignore_eos", "1 is not true or false"),
        ({"model": 5}, "model", "5 is not a text"),
        ({"pdd": "relay"}, "pdd", '"relay" is not an object'),
        ({"stop_token_ids": 5}, "stop_token_ids", "5 is not a list"),
        ({"stop_token_ids": [1, "a"]}, "stop_token_ids[1]", '"a" is not a whole number'),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "-1"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "contradicts"),
        ({"stop": [""]}, "stop[0]", "from 1 to 256"),
        ({"stop": ""}, "stop", "from 1 to 256"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ["a", 5]}, "stop[1]", "5 is not a text"),
        ({"stop": 5}, "stop", "5 is not a text or a list of texts"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options", "stream is true"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "needs include_usage",
        ),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "true",
        ),
        ({"stream": "yes"}, "stream", '"yes"'),
        ({"stream": True, "stream_options": {"usage": 1}}, "stream_options.usage", "unknown parameter"),
    ],
)
def test_a_refusal_names_the_field_and_shows_the_value(fields, param, says):
    error = refusal(chat, **fields)
    assert error.param == param
    assert error.message.startswith(f"{param}: ")
    assert says in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, "b"]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [1.0]}, "prompt[0]"),
        ({"prompt": [[1, None, "c"]]}, "prompt[0][1]"),
        ({"prompt": [None]}, "prompt[0]"),
        ({"prompt": {"text": "hi"}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"echo": True}, "echo"),
        ({"logprobs": 0}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"messages": []}, "messages"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ],
)
def test_completions_refuse_what_they_cannot_do(fields, param):
    assert refusal(completion, **fields).param == param


@pytest.mark.parametrize(("parse", "missing"), [(parse_chat, "messages"), (parse_completion, "prompt")])
def test_a_missing_field_is_named(parse, missing):
    with pytest.raises(InvalidRequest, match="missing") as refused:
        parse(b"{}")
    assert (refused.value.param, refused.value.code) == (missing, "missing_required_parameter")


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
def test_a_model_that_is_not_named_is_the_one_that_is_served(model):
    assert parse_completion(json.dumps({"prompt": "hi", **model}).encode()).options.model is None


@pytest.mark.parametrize("value", [5, 5.0])
def test_a_whole_number_may_be_written_with_a_point(value):
    assert chat(max_tokens=value, seed=value, top_k=value).options.max_tokens == 5


@pytest.mark.parametrize(
    "fields",
    [{"cache_salt": "s"}, {"pdd": {"cache_salt": "s"}}, {"cache_salt": "s", "pdd": {"cache_salt": "s"}}],
)
def test_vllms_cache_salt_means_ours(fields):
    assert chat(**fields).options.cache_salt == "s"


@pytest.mark.parametrize(
    ("options", "reports"),
    [
        (None, UsageReports.NONE),
        ({}, UsageReports.NONE),
        ({"include_usage": False}, UsageReports.NONE),
        ({"include_usage": True}, UsageReports.AT_END),
        ({"include_usage": True, "continuous_usage_stats": False}, UsageReports.AT_END),
        ({"include_usage": True, "continuous_usage_stats": True}, UsageReports.THROUGHOUT),
    ],
)
def test_usage_is_reported_where_a_stream_asks_for_it(options, reports):
    assert chat(stream=True, stream_options=options).options.usage_reports is reports


def test_stream_options_that_ask_for_nothing_may_come_without_a_stream():
    assert chat(stream_options={"include_usage": False}).options.usage_reports is UsageReports.NONE


def test_a_value_of_any_size_and_depth_is_shown_in_short():
    deep: list = []
    for _ in range(500):
        deep = [deep]
    for value in (deep, "x" * 10**6, {"x" * 10**6: 1}, [1] * 10**6):
        error = refusal(chat, n=value)
        assert len(error.message) < 300
    assert len(refusal(chat, **{"x" * 10**6: 1}).message) < 300
    assert len(refusal(chat, model=["x" * 10**6]).message) < 300


def test_token_ids_outside_the_vocabulary_are_named():
    check_token_ids("prompt", [0, 9], 10)
    with pytest.raises(InvalidRequest, match=r"prompt: token ID 10 at index 1 .* 0 to 9"):
        check_token_ids("prompt", [0, 10], 10)
    with pytest.raises(InvalidRequest, match="-1"):
        check_token_ids("prompt", [-1], 10)
