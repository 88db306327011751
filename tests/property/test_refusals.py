"""Refusals speak PDD's own words, whatever comes in, and are text that can be sent."""

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.errors import InvalidRequest
from pdd.router.api.fields import CHAT, COMPLETION, MESSAGE, PDD, REFUSAL_PART, STREAM_OPTIONS, TEXT_PART
from pdd.router.api.schema import parse_chat, parse_completion

DIALECT = re.compile(
    r"Expected `|got `|`\$|\bmsgspec\b|\bjinja|Traceback|NoneType|'dict|malformed|truncated|Object (missing|contains)|"
    r"\b(str|int|float|bool|dict|tuple|object has no)\b|Error\b|codec|surrogatepass",
    re.IGNORECASE,
)
"""What libraries and Python itself would say."""
WORDS = "abc é漢😀\ud83d\n\0"
NAMES = sorted(
    {
        name
        for fields in (CHAT, COMPLETION, MESSAGE, PDD, REFUSAL_PART, STREAM_OPTIONS, TEXT_PART)
        for name in (*fields.read, *fields.unsupported, *fields.ignored)
    }
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["user", "assistant", "developer", "text", "refusal", "auto", "relay", "m", ""]),
    st.text(WORDS, max_size=4),
)
LISTS_AND_OBJECTS = st.lists(SCALARS, max_size=3) | st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=3)
VALUES = SCALARS | LISTS_AND_OBJECTS | st.lists(LISTS_AND_OBJECTS, max_size=2)
CONTENTS = VALUES | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": SCALARS}), max_size=2)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": CONTENTS},
    optional={"name": SCALARS, "refusal": SCALARS},
)
BODIES = st.builds(
    lambda asked, others: {**asked, **others},
    st.fixed_dictionaries({}, optional={"messages": st.lists(MESSAGES, max_size=2), "prompt": VALUES}),
    st.dictionaries(st.sampled_from([*NAMES, WORDS]), VALUES, max_size=2),
)


def check_refusal(parse, body: bytes) -> None:
    refusal = refusal_of(parse, body)
    if refusal is None:
        return
    said_by_us = re.sub(r'"(?:[^"\\]|\\.)*"?', "", refusal.message)
    assert not DIALECT.search(said_by_us), refusal.message
    msgspec.json.encode({"message": refusal.message, "param": refusal.param})


def refusal_of(parse, body: bytes) -> InvalidRequest | None:
    try:
        parse(body)
    except InvalidRequest as refused:
        return refused
    return None


@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
@given(body=BODIES)
def test_no_json_body_is_refused_in_a_librarys_words(parse, body):
    check_refusal(parse, json.dumps(body).encode())


@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
@given(body=BODIES, data=st.data())
def test_no_damaged_body_is_refused_in_a_librarys_words(parse, body, data):
    whole = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    at = data.draw(st.integers(0, len(whole)))
    check_refusal(parse, whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + data.draw(st.integers(0, 3)) :])


@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
@given(body=st.binary(max_size=12))
def test_no_bytes_are_refused_in_a_librarys_words(parse, body):
    check_refusal(parse, body)
