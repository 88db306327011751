"""The messages of a chat: what is read, as what, and how the rest is refused."""

import pytest

from pdd.core.errors import InvalidRequest
from pdd.router.api.messages import MAX_PARTS, Message, read_messages


def read(*messages):
    return read_messages(list(messages), "messages")


def text(said: str) -> dict:
    return {"type": "text", "text": said}


def test_a_developer_speaks_as_the_system():
    assert read({"role": "developer", "content": "s"}) == (Message(role="system", content="s"),)


def test_text_parts_are_joined():
    parts = [text("one"), text("two")]
    assert read({"role": "system", "content": "s"}, {"role": "user", "content": parts}) == (
        Message(role="system", content="s"),
        Message(role="user", content="one\ntwo"),
    )


@pytest.mark.parametrize("silent", [{}, {"content": None}, {"content": ""}, {"content": None, "refusal": None}])
def test_an_assistant_that_said_nothing_said_an_empty_text(silent):
    assert read({"role": "assistant", **silent}) == (Message(role="assistant", content=""),)


@pytest.mark.parametrize(
    "refused",
    [{"refusal": "no"}, {"content": None, "refusal": "no"}, {"content": [{"type": "refusal", "refusal": "no"}]}],
)
def test_what_an_assistant_refused_with_is_what_it_said(refused):
    assert read({"role": "assistant", **refused}) == (Message(role="assistant", content="no"),)


def test_a_name_is_kept_for_the_template():
    assert read({"role": "user", "content": "u", "name": "joe"}) == (Message(role="user", content="u", name="joe"),)


@pytest.mark.parametrize("sdk", [{"refusal": None, "annotations": []}, {"tool_calls": [], "reasoning": None}])
def test_a_message_sent_back_as_it_was_received_is_accepted(sdk):
    returned = {"role": "assistant", "content": "a", "audio": None, "function_call": None, "tool_calls": None, **sdk}
    assert read(returned) == (Message(role="assistant", content="a"),)


def test_a_breakpoint_of_a_cache_that_is_not_ours_changes_nothing():
    assert (
        read({"role": "user", "content": [{**text("u"), "prompt_cache_breakpoint": {"type": "x"}}]})[0].content == "u"
    )


@pytest.mark.parametrize(
    ("message", "param", "says", "code"),
    [
        ("hi", "", '"hi" is not an object', "invalid_type"),
        ({"content": "x"}, ".role", "it is missing", "missing_required_parameter"),
        ({"role": None, "content": "x"}, ".role", "it is missing", "missing_required_parameter"),
        ({"role": "robot", "content": "x"}, ".role", '"robot" is not one of system, developer', "invalid_value"),
        ({"role": ["user"], "content": "x"}, ".role", '["user"] is not one of', "invalid_value"),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, ".role", "tools are not", "unsupported_parameter"),
        ({"role": "function", "content": "x", "name": "f"}, ".role", "tools are not", "unsupported_parameter"),
        ({"role": "user"}, ".content", "it is missing", "missing_required_parameter"),
        ({"role": "user", "content": None}, ".content", "it is null", "missing_required_parameter"),
        ({"role": "user", "content": 5}, ".content", "5 is not a text or a list of parts", "invalid_type"),
        ({"role": "user", "content": ["x"]}, ".content[0]", '"x" is not an object', "invalid_type"),
        ({"role": "user", "content": [{"text": "x"}]}, ".content[0].type", "missing", "missing_required_parameter"),
        ({"role": "user", "content": [{"type": "text"}]}, ".content[0].text", "missing", "missing_required_parameter"),
        (
            {"role": "user", "content": [text("x"), {"type": "image_url", "image_url": {"url": "http://x"}}]},
            ".content[1].type",
            '"image_url": images are not supported yet; use one of text',
            "unsupported_parameter",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, ".content[0].type", "audio", "unsupported_parameter"),
        ({"role": "user", "content": [{"type": "file"}]}, ".content[0].type", "files", "unsupported_parameter"),
        ({"role": "user", "content": [{"type": "refusal"}]}, ".content[0].type", "not one of text", "invalid_value"),
        ({"role": "user", "content": "x", "refusal": "no"}, ".refusal", "only an assistant", "unsupported_parameter"),
        ({"role": "assistant", "content": "x", "refusal": "no"}, ".refusal", "beside", "unsupported_parameter"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1"}]},
            ".tool_calls",
            "is not supported; leave it out",
            "unsupported_parameter",
        ),
        ({"role": "user", "content": "x", "name": "n" * 257}, ".name", "at most 256", "invalid_value"),
        ({"role": "user", "content": "x", "nick": "n"}, ".nick", "unknown parameter", "unknown_parameter"),
    ],
)
def test_a_refusal_names_the_field_and_says_what_would_be_right(message, param, says, code):
    with pytest.raises(InvalidRequest) as refused:
        read({"role": "user", "content": "hi"}, message)
    assert (refused.value.param, refused.value.code) == (f"messages[1]{param}", code)
    assert refused.value.message.startswith(f"messages[1]{param}: ")
    assert says in refused.value.message


def test_more_messages_than_openai_takes_are_refused():
    message = {"role": "user", "content": "x"}
    assert len(read(*[message] * 2048)) == 2048
    with pytest.raises(InvalidRequest, match="2049 of them; at most 2048"):
        read(*[message] * 2049)


def test_more_parts_than_anybody_needs_are_refused_before_they_are_looked_at():
    half = {"role": "user", "content": [text("x")] * (MAX_PARTS // 2)}
    assert len(read(half, half)) == 2
    with pytest.raises(InvalidRequest, match=f"have {MAX_PARTS + 1} parts; at most {MAX_PARTS}"):
        read(half, half, {"role": "user", "content": [None]})


@pytest.mark.parametrize("messages", [[], "hi", {}, 5])
def test_messages_are_a_list_of_at_least_one(messages):
    with pytest.raises(InvalidRequest) as refused:
        read_messages(messages, "messages")
    assert refused.value.param == "messages"
