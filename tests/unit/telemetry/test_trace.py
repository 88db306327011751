"""The event trace, written at once or beside whoever records."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdd.core.ids import RequestId
from pdd.core.request import Route
from pdd.core.units import Bytes, Seconds
from pdd.telemetry.events import Event
from pdd.telemetry.trace import LiveTrace, TraceFile, event_line


@dataclass
class StandingClock:
    """Time moves when a test says so."""

    time: float = 5.0

    def now(self) -> Seconds:
        return Seconds(self.time)

    async def sleep(self, delay: Seconds) -> None:
        raise AssertionError("nobody sleeps here")


def routed(at: float = 1.25) -> Event:
    return Event(at=Seconds(at), name="route_chosen", request=RequestId("r1"), fields={"route": Route.RELAY, "x": None})


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_holds_the_event_and_its_fields_in_one_flat_object():
    expected = {"at": 1.25, "name": "route_chosen", "request": "r1", "route": "relay", "x": None}
    assert json.loads(event_line(routed())) == expected
    assert event_line(routed()).endswith(b"}\n")


def test_fields_never_hide_what_every_line_has():
    event = Event(at=Seconds(1.0), name="right", fields={"name": "wrong", "at": 9, "request": "wrong"})
    assert json.loads(event_line(event)) == {"at": 1.0, "name": "right", "request": None}


def test_a_simulated_trace_is_written_as_it_is_recorded():
    file = io.BytesIO()
    trace = TraceFile(file)
    trace.record(routed())
    first, second = file.getvalue().splitlines()
    assert json.loads(first) == {"at": 0.0, "name": "trace_started", "request": None, "schema": 1}
    assert second + b"\n" == event_line(routed())


@pytest.mark.anyio
async def test_a_live_trace_says_when_it_began_and_is_whole_at_its_end(tmp_path):
    trace = LiveTrace(tmp_path / "t.jsonl", StandingClock(), unix_time=1_700_000_000.5)
    for number in range(100):
        trace.record(routed(number))
    await trace._write_waiting()
    written = lines(tmp_path / "t.jsonl")
    assert written[0] == {
        "at": 5.0,
        "name": "trace_started",
        "request": None,
        "schema": 1,
        "unix_s": 1_700_000_000.5,
    }
    assert [line["at"] for line in written[1:]] == list(range(100))


@pytest.mark.anyio
async def test_a_live_trace_writes_while_it_lasts_and_the_rest_at_its_end(tmp_path):
    from pdd.router.clock import LoopClock

    trace = LiveTrace(tmp_path / "t.jsonl", LoopClock(), unix_time=0.0)
    async with trace.writing():
        trace.record(routed())
    assert [line["name"] for line in lines(tmp_path / "t.jsonl")] == ["trace_started", "route_chosen"]


@pytest.mark.anyio
async def test_what_comes_too_fast_is_dropped_and_counted(tmp_path):
    trace = LiveTrace(tmp_path / "t.jsonl", StandingClock(), unix_time=0.0, max_waiting=3)
    for number in range(10):
        trace.record(routed(number))
    await trace._write_waiting()
    written = lines(tmp_path / "t.jsonl")
    assert [line["name"] for line in written] == ["trace_started", "route_chosen", "route_chosen", "events_dropped"]
    assert written[-1]["count"] == 8
    trace.record(routed())
    await trace._write_waiting()
    assert lines(tmp_path / "t.jsonl")[-1]["name"] == "route_chosen"


@pytest.mark.anyio
async def test_a_file_that_has_grown_too_large_is_put_aside(tmp_path):
    trace = LiveTrace(tmp_path / "t.jsonl", StandingClock(), unix_time=0.0, max_bytes=Bytes(200))
    for number in range(3):
        trace.record(routed(number))
        await trace._write_waiting()
    assert [line["at"] for line in lines(tmp_path / "t.jsonl.old")] == [5.0, 0, 1]
    assert [line["at"] for line in lines(tmp_path / "t.jsonl")] == [2]


@pytest.mark.anyio
async def test_a_disk_that_takes_nothing_hurts_nobody_who_records(tmp_path, caplog):
    trace = LiveTrace(tmp_path / "no such folder" / "t.jsonl", StandingClock(), unix_time=0.0)
    trace.record(routed())
    await trace._write_waiting()
    assert "trace_not_written" in caplog.text
    trace.record(routed())
    await trace._write_waiting()
    assert caplog.text.count("trace_not_written") == 1
