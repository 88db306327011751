"""OpenAI's request bodies: what is accepted, and how the rest is refused."""

import json

import pytest

from pdd.core.errors import InvalidRequest
from pdd.core.request import HandoffMode, Route
from pdd.router.api.schema import Message, check_token_ids, parse_chat, parse_completion
from pdd.router.base import Steering


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
    assert (options.stream, options.include_usage, options.max_tokens, options.stops) == (False, False, None, ())
    assert (options.steering, options.cache_salt, options.trace) == (Steering(), None, False)


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    call = chat(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": parts}])
    assert call.messages == (Message(role="system", content="s"), Message(role="user", content="one\ntwo"))


def test_a_message_sent_back_as_it_was_received_is_accepted():
    returned = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert chat(messages=[returned]).messages == (Message(role="assistant", content="a"),)


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
        ({"tools": [{"type": "function"}]}, "tools", "not supported yet"),
        ({"response_format": {"type": "json_object"}}, "response_format", "json_object"),
        ({"store": True}, "store", "true"),
        ({"min_p": 0.1}, "min_p", "0.1"),
        ({"colour": "red"}, "colour", "unknown parameter"),
        ({"pdd": {"rout": "relay"}}, "pdd.rout", "unknown parameter"),
        ({"pdd": {"route": "scenic"}}, "pdd.route", '"scenic" is not one of auto, direct, relay'),
        ({"pdd": {"route": "relay_only"}}, "pdd.route", '"relay_only" is not one of auto, direct, relay'),
        ({"pdd": {"handoff": 1}}, "pdd.handoff", "1 is not one of auto, one_shot, catch_up"),
        ({"pdd": {"handoff_after_tokens": 0}}, "pdd.handoff_after_tokens", "from 1"),
        ({"pdd": {"cache_salt": "x" * 300}}, "pdd.cache_salt", "at most 256"),
        ({"temperature": 2.5}, "temperature", "2.5"),
        ({"temperature": -0.1}, "temperature", "from 0.0 to 2.0"),
        ({"temperature": "hot"}, "temperature", '"hot"'),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.1}, "top_p", "1.1"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"seed": 2**63}, "seed", str(2**63)),
        ({"seed": 1.5}, "seed", "1.5"),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "-1"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "contradicts"),
        ({"stop": [""]}, "stop[0]", "from 1 to 256"),
        ({"stop": ""}, "stop", "from 1 to 256"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
        ({"stream": "yes"}, "stream", '"yes"'),
        ({"stream": True, "stream_options": {"usage": 1}}, "stream_options.usage", "unknown parameter"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "hi"}, "messages", '"hi"'),
        ({"messages": ["hi"]}, "messages[0]", '"hi"'),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "system, user, assistant"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
        ({"messages": [{"role": "user", "content": "x", "name": "joe"}]}, "messages[0].name", "joe"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "null"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
            "messages[0].content[0].type",
            "image_url",
        ),
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


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(missing):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    del body[missing]
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(json.dumps(body).encode())
    assert (refused.value.param, refused.value.code) == (missing, "missing_required_parameter")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"model": "m",}', b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100_000]
)
def test_a_body_that_is_no_json_object_is_called_that(body):
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(body)
    assert refused.value.code == "invalid_json"


def test_more_messages_than_openai_takes_are_refused():
    message = {"role": "user", "content": "x"}
    assert len(chat(messages=[message] * 2048).messages) == 2048
    assert refusal(chat, messages=[message] * 2049).param == "messages"


def test_token_ids_outside_the_vocabulary_are_named():
    check_token_ids("prompt", [0, 9], 10)
    with pytest.raises(InvalidRequest, match=r"prompt: token ID 10 at index 1 .* 0 to 9"):
        check_token_ids("prompt", [0, 10], 10)
    with pytest.raises(InvalidRequest, match="-1"):
        check_token_ids("prompt", [-1], 10)
