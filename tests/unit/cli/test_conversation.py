from __future__ import annotations

import msgspec
import pytest

from pdd.cli.ask.conversation import (
    AnswerBuilder,
    ChatMessage,
    Conversation,
    Draw,
    Pins,
    Question,
    TokenPrompt,
    encode_question,
    error_of_status,
    read_model_name,
)
from pdd.core.errors import InvalidRequest, RemoteProtocolError, Unauthorized, Unavailable, WorkerFailed
from pdd.core.request import HandoffMode, Role, Route
from pdd.core.units import Seconds

DONE = b"[DONE]"
HELLO = Conversation(messages=(ChatMessage(role="user", content="hello"),))


def chunk(role: str | None = None, first: int = 0, tokens: tuple[int, ...] = (), text: str = "", **choice) -> bytes:
    trace = {"role": role, "worker": "w", "first_position": first, "token_ids": tokens} if role else {}
    return msgspec.json.encode({"choices": [{"index": 0, "delta": {"content": text}, **choice}], "pdd": trace})


def report(**fields: object) -> bytes:
    return msgspec.json.encode({"choices": [], "pdd": {"report": fields}})


def build(*events: bytes) -> AnswerBuilder:
    builder = AnswerBuilder()
    for index, event in enumerate(events):
        builder.receive(event, at=Seconds(float(index)))
    return builder


FINISH = chunk("main_decode", 3, finish_reason="length")


def test_a_greedy_conversation_is_asked_without_anything_that_was_not_said():
    path, body = encode_question(Question(prompt=HELLO, model="m", max_tokens=5))
    assert path == "/v1/chat/completions"
    assert body == {
        "messages": [{"role": "user", "content": "hello"}],
        "model": "m",
        "stream": True,
        "max_tokens": 5,
        "temperature": 0.0,
        "pdd": {"trace": True},
    }


def test_token_prompts_are_completions_with_every_pin():
    pins = Pins(route=Route.RELAY, handoff=HandoffMode.CATCH_UP, handoff_after_tokens=7, cache_salt="s")
    draw = Draw(temperature=0.8, top_k=5, top_p=0.9, seed=3)
    question = Question(prompt=TokenPrompt(token_ids=(1, 2)), model="m", draw=draw, pins=pins, ignore_eos=True)
    path, body = encode_question(question)
    assert path == "/v1/completions"
    assert body["prompt"] == [1, 2]
    assert body["ignore_eos"] is True
    assert (body["temperature"], body["top_k"], body["top_p"], body["seed"]) == (0.8, 5, 0.9, 3)
    assert body["pdd"] == {
        "route": "relay",
        "handoff": "catch_up",
        "handoff_after_tokens": 7,
        "cache_salt": "s",
        "trace": True,
    }


def test_an_answer_is_put_together_from_its_chunks():
    events = [{"at": 0.5, "name": "opened", "request": "r", "prompt_tokens": 9}]
    answer = build(
        chunk("prefill", 0, (10,), "He"),
        chunk("relay_decode", 1, (11, 12), "llo"),
        FINISH,
        report(route="relay", route_reason="why", wan_kv_bytes=5, tokens_by_role={"prefill": 1}, events=events),
        DONE,
    ).finish()
    assert answer.text == "Hello"
    assert answer.token_ids == (10, 11, 12)
    assert [(span.role, span.at) for span in answer.spans] == [(Role.PREFILL, 0.0), (Role.RELAY_DECODE, 1.0)]
    assert answer.finish_reason == "length"
    assert answer.ended_at == 4.0
    assert (answer.report.route, answer.report.wan_kv_bytes) == (Route.RELAY, 5)
    assert answer.report.events[0].name == "opened"
    assert answer.report.events[0].fields["prompt_tokens"] == 9


def test_text_that_comes_late_belongs_to_whoever_computed_the_last_token():
    builder = build(chunk("relay_decode", 0, (1,), ""), chunk(text="é"), FINISH, report(), DONE)
    assert [span.role for span in builder.finish().spans] == [Role.RELAY_DECODE, Role.RELAY_DECODE]


def test_listeners_see_each_span_once():
    seen: list[str] = []
    builder = AnswerBuilder(lambda span: seen.append(span.text))
    builder.receive(chunk("prefill", 0, (1,), "a"), at=Seconds(0.0))
    builder.receive(FINISH, at=Seconds(0.1))
    assert seen == ["a"]


def test_a_gap_between_tokens_is_noticed():
    with pytest.raises(RemoteProtocolError, match="from position 3; 1 was due"):
        build(chunk("prefill", 0, (1,)), chunk("main_decode", 3, (2,)))


@pytest.mark.parametrize("events", [(), (chunk("prefill", 0, (1,)), report()), (FINISH, report()), (report(), DONE)])
def test_a_stream_that_ends_early_is_no_answer(events: tuple[bytes, ...]):
    with pytest.raises(WorkerFailed, match="ended early"):
        build(*events).finish()


def test_an_answer_without_a_report_is_refused():
    with pytest.raises(RemoteProtocolError, match="no report"):
        build(chunk("prefill", 0, (1,)), FINISH, DONE).finish()


def test_an_error_in_mid_stream_says_what_the_router_said():
    with pytest.raises(WorkerFailed, match="nobody is left"):
        build(b'{"error": {"message": "nobody is left", "type": "x", "param": null, "code": null}}')


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"pdd": {"role": "cook"}}', b"\xff"])
def test_garbage_is_no_chunk(garbage: bytes):
    with pytest.raises(RemoteProtocolError):
        build(garbage)


def test_text_from_nobody_is_refused():
    with pytest.raises(RemoteProtocolError, match="who computed"):
        build(chunk(text="hello"))


def test_statuses_become_errors_with_the_routers_words():
    body = msgspec.json.encode({"error": {"message": "too hot", "param": "temperature", "code": "invalid_value"}})
    refusal = error_of_status(400, None, body)
    assert isinstance(refusal, InvalidRequest)
    assert (str(refusal), refusal.param) == ("too hot", "temperature")
    busy = error_of_status(503, "7", body)
    assert isinstance(busy, Unavailable)
    assert busy.retry_after_s == 7.0
    assert isinstance(error_of_status(401, None, body), Unauthorized)
    assert isinstance(error_of_status(500, None, b"<html>"), WorkerFailed)
    assert "HTTP 500" in str(error_of_status(500, None, b"<html>"))


def test_the_model_is_the_one_that_the_router_lists():
    assert read_model_name(b'{"object": "list", "data": [{"id": "smol"}]}') == "smol"
    with pytest.raises(RemoteProtocolError):
        read_model_name(b'{"data": []}')
