"""What a body must be before anything is said about its fields, and what is said of one that isn't."""

import json

import pytest

from pdd.core.errors import BodyTooLarge, InvalidRequest
from pdd.router.api import body as module
from pdd.router.api.body import read_object

CHAT = {"messages": [{"role": "user", "content": "hi é漢😀"}]}
DEEP = b'{"a":' + b"[" * 90_000


def refusal(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        read_object(body)
    assert refused.value.code == "invalid_json"
    return refused.value


@pytest.mark.parametrize("ensure_ascii", [True, False])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_body_is_utf_8_with_or_without_a_byte_order_mark(ensure_ascii, encoding):
    assert read_object(json.dumps(CHAT, ensure_ascii=ensure_ascii).encode(encoding)) == CHAT


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"[]", "must be a JSON object, not []"),
        (b"null", "must be a JSON object, not null"),
        (b'"hi"', 'must be a JSON object, not "hi"'),
        (b"{", "breaks off"),
        (b'{"model": "m",}', 'near byte 14, at the end of "{\\"model\\": \\"m\\",}"'),
        (b"{'model': 1}", "near byte 1"),
        (b'{"a": NaN}', "near byte 6"),
        (b'{"a": 1} x', "near byte 10"),
        (b"model=m&prompt=hi", "near byte 0"),
        (DEEP, "nested too deeply"),
        (b"\xff{}", "not UTF-8: byte 0 (0xff)"),
        (b'{"a": "\xe9"}', "not UTF-8: byte 7 (0xe9)"),
        ("{}".encode("utf-16"), "UTF-16 or UTF-32"),
        ("{}".encode("utf-16-be"), "UTF-16 or UTF-32"),
        ("{}".encode("utf-32-le"), "UTF-16 or UTF-32"),
    ],
)
def test_a_body_that_is_no_json_object_is_told_why(body, says):
    assert says in refusal(body).message


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ude00\\ud83d", "\\ud83d\\u0041", "\\ud83d\\ud83d\\ude00"])
@pytest.mark.parametrize(
    ("template", "param"),
    [
        ('{"prompt": "HALF"}', "prompt"),
        ('{"n": 1, "stop": ["a", "b HALF c"]}', "stop[1]"),
        ('{"pdd": {"cache_salt": "HALF"}}', "pdd.cache_salt"),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "HALF"}]}', "messages[1].role"),
        ('{"messages": [{"content": [{"text": "HALF"}]}]}', "messages[0].content[0].text"),
        ('{"pdd": {"HALF": 1}}', "pdd"),
        ('{"HALF": 1}', None),
    ],
)
def test_half_a_surrogate_pair_is_called_that_and_its_field_is_named(template, param, half):
    error = refusal(template.replace("HALF", half).encode())
    assert error.param == param
    assert error.message.startswith(f"{param or 'the body'}: ")
    assert "half a surrogate pair" in error.message
    error.message.encode()


def test_half_a_pair_that_is_encoded_as_if_it_were_a_character_is_one_too():
    error = refusal(b'{"prompt": "\xed\xa0\xbd"}')
    assert (error.param, error.message.split(" is ")[0]) == ("prompt", "prompt: \\ud83d")


def test_a_whole_pair_and_an_escaped_backslash_are_characters():
    assert read_object(rb'{"a": "\ud83d\ude00", "b": "\\ud83d"}') == {"a": "😀", "b": "\\ud83d"}


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 5000])
def test_a_number_that_nobody_can_read_is_named(number):
    error = refusal(b'{"seed": 1, "stop_token_ids": [2, %s]}' % number.encode())
    assert (error.param, error.message) == ("stop_token_ids[1]", "stop_token_ids[1]: the number is too large")


def test_what_is_wrong_is_found_at_any_depth():
    nested = b'{"a":' * 400 + b'"\\ud83d"' + b"}" * 400
    assert refusal(nested).message.endswith("send both halves")


def test_a_large_body_is_not_searched(monkeypatch):
    monkeypatch.setattr(module, "_MOST_SEARCHED_CHARACTERS", 10)
    error = refusal(b'{"prompt": "\\ud83d"}')
    assert (error.param, "half a surrogate pair" in error.message) == (None, True)


# What a large body is made of ------------------------------------------------------------------------------------------

LARGE = 70_000
PAD = b'{"pad": "' + b"x" * LARGE + b'", "it": '


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (b"[" + b'"",' * 200_000 + b'""]', "has 200004 texts; at most 200000 are read"),
        (b"[" + b"[]," * 100_000 + b"[]]", "has 100003 lists and objects; at most 100000 are read"),
        (b"[" + b"{}," * 100_000 + b"{}]", "has 100003 lists and objects; at most 100000 are read"),
        (b"[" + b"1," * 1_100_000 + b"1]", "has 1100001 values; at most 1100000 are read"),
        (b"{" + b",".join(b'"%d":1' % number for number in range(200_001)) + b"}", "has 200004 texts"),
    ],
)
def test_a_body_of_more_values_than_anybody_needs_is_refused_before_they_are_made(values: bytes, says: str):
    with pytest.raises(BodyTooLarge, match=says):
        read_object(PAD + values + b"}")


@pytest.mark.parametrize(
    "text",
    ['[],{},"' * 200_000, "\\" * 400_001, '\\"' * 300_000, "\\[{," * 200_000, "\n\t\u20ac" * 10_000],
    ids=["all of it", "backslashes", "escaped quotes", "escapes", "others"],
)
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_what_a_text_says_counts_for_nothing(text: str, ensure_ascii: bool):
    fields = {"prompt": text + "\\", "it": [[text[:1000]]]}
    assert read_object(json.dumps(fields, ensure_ascii=ensure_ascii).encode()) == fields
