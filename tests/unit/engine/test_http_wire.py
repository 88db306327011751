"""What is written to engines and read from them, as bytes."""

import json
from dataclasses import replace

import pytest

from pdd.core.errors import (
    CapacityExhausted,
    ContextTooLong,
    InvalidRequest,
    RemoteProtocolError,
    Unavailable,
    UnknownModel,
    WorkerFailed,
)
from pdd.core.ids import NodeId
from pdd.core.request import FinishReason, Sampling, TokenSpan
from pdd.core.units import Seconds
from pdd.engine.base import EngineInfo
from pdd.engine.http.errors import error_of_response, reply_to
from pdd.engine.http.sse import KEEP_ALIVE, MAX_EVENT_BYTES, EventReader, encode_event
from pdd.engine.http.wire_reply import decode_event, decode_info, encode_info, encode_span
from pdd.engine.http.wire_request import decode_body, encode_generation, read_generation
from tests.unit.engine.scripted_support import SEEDED, generation

INFO = EngineInfo(
    model="m",
    max_model_tokens=100,
    kv_format="m@1|block=16|kv:float32[2x1x4]",
    sampling_version=1,
    node=NodeId("node"),
    instance="i",
)


@pytest.mark.parametrize("sampling", [SEEDED, replace(SEEDED, top_k=None, choice=3, seed=2**63 - 1)])
def test_a_request_arrives_as_it_was_sent(sampling: Sampling):
    sent = replace(generation(sampling=sampling, salt="s", stop=[5, 9], attempt=4), num_prompt_tokens=12)
    raw = encode_generation(sent, model="m")
    assert read_generation(decode_body(raw), INFO, vocab_size=1000) == sent


def test_a_request_is_what_vllm_expects():
    body = json.loads(encode_generation(generation(attempt=2, sampling=replace(SEEDED, top_k=None)), model=None))
    assert body["request_id"] == "r.2"
    assert body["stream"] is True
    assert set(body) == {"request_id", "token_ids", "stream", "sampling_params", "kv_transfer_params"}
    assert body["sampling_params"] == {
        "max_tokens": 10,
        "temperature": 0.8,
        "top_k": -1,
        "top_p": 0.9,
        "stop_token_ids": [],
        "ignore_eos": True,
        "detokenize": False,
    }
    assert body["kv_transfer_params"] == {
        "request_id": "r",
        "attempt": 2,
        "num_prompt_tokens": 21,
        "choice": 0,
        "seed": 7,
        "temperature": 0.8,
    }


def test_a_span_arrives_as_it_was_sent():
    span = TokenSpan(first_position=7, tokens=(1, 2, 3), finish_reason=FinishReason.STOP)
    assert decode_event(encode_span("r", span), next_position=0) == span
    assert decode_info(encode_info(INFO)) == INFO


def test_events_of_other_engines_are_understood():
    def read(event: object) -> TokenSpan | None:
        return decode_event(json.dumps(event).encode(), next_position=3)

    burst = {
        "id": "x",
        "choices": [{"index": 0, "token_ids": [4, 5], "finish_reason": None, "logprobs": {"content": []}}],
    }
    assert read(burst) == TokenSpan(first_position=3, tokens=(4, 5))
    empty_finish = {"choices": [{"index": 0, "token_ids": [], "finish_reason": "length"}]}
    assert read(empty_finish) == TokenSpan(first_position=3, tokens=(), finish_reason=FinishReason.LENGTH)
    assert read({"choices": [], "usage": {"completion_tokens": 3}}) is None
    assert read({"choices": [{"index": 0, "token_ids": []}]}) is None


@pytest.mark.parametrize(
    "event",
    [
        b"\xff\xfe",
        b"{",
        b"[]",
        b'"hello"',
        b"{}",
        b'{"choices": [{"index": 1, "token_ids": [1]}]}',
        b'{"choices": [{"index": 0, "token_ids": [1]}, {"index": 1, "token_ids": [1]}]}',
        b'{"choices": [{"index": 0, "token_ids": [-1]}]}',
        b'{"choices": [{"index": 0, "token_ids": ["a"]}]}',
        b'{"choices": [{"index": 0, "token_ids": [], "finish_reason": "abort"}]}',
        b'{"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}',
        b'{"error": {"message": "no code"}}',
    ],
)
def test_garbage_and_foreign_failures_are_failures_of_the_worker(event: bytes):
    with pytest.raises(WorkerFailed):
        decode_event(event, next_position=0)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("top_p is 2", param="sampling_params.top_p"),
        ContextTooLong("too long", param="token_ids", code="context_length_exceeded"),
        UnknownModel("no", param="model", code="model_not_found"),
        Unavailable("busy", retry_after_s=Seconds(2.5)),
        CapacityExhausted("full", retry_after_s=Seconds(0.5)),
        WorkerFailed("died"),
    ],
)
def test_an_error_arrives_as_it_was_raised_whether_as_a_response_or_as_an_event(error: Exception):
    reply = reply_to(error)
    response = error_of_response(reply.status, reply.headers.get("Retry-After"), reply.body)
    with pytest.raises(type(error)) as event:
        decode_event(reply.body, next_position=0)
    for arrived in (response, event.value):
        assert type(arrived) is type(error)
        assert str(arrived) == str(error)
        assert vars(arrived) == vars(error)


def test_retry_after_is_read_from_the_header_when_the_body_has_none():
    foreign = b'{"error": {"message": "overloaded", "type": "x", "code": 503}}'
    error = error_of_response(503, "7", foreign)
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == 7.0
    for header in (None, "soon", "-3", "nan"):
        assert error_of_response(429, header, b"<html>").retry_after_s == 1.0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (413, InvalidRequest),
        (422, InvalidRequest),
        (404, WorkerFailed),
        (500, WorkerFailed),
        (302, WorkerFailed),
    ],
)
def test_a_bare_status_says_whose_fault_it_is(status: int, kind: type[Exception]):
    assert type(error_of_response(status, None, b"")) is kind


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_cut_out_of_pieces_of_any_size(size: int):
    stream = (
        b"\xef\xbb\xbf: hello\n\ndata: one\n\n"
        + KEEP_ALIVE
        + b"event: x\r\ndata:two\r\ndata: lines\r\n\r\n"
        + encode_event(b"{}")
    )
    reader = EventReader()
    events = [event for start in range(0, len(stream), size) for event in reader.feed(stream[start : start + size])]
    assert events == [b"one", b"two\nlines", b"{}"]


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: " + b"x" * 65536 + b"\n"])
def test_an_event_without_end_is_refused(piece: bytes):
    reader = EventReader()
    for _ in range(MAX_EVENT_BYTES // 65536 - 1):
        reader.feed(piece)
    with pytest.raises(RemoteProtocolError):
        reader.feed(piece * 2)
