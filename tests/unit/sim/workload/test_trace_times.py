"""Times that are meant in another unit than the one in which they are read."""

from __future__ import annotations

import json

import pytest

from pdd.core.errors import ConfigError
from pdd.sim.workload.trace.rows import TimeUnit
from pdd.sim.workload.trace.times import likely_unit
from pdd.sim.workload.traces import read_trace

S, MS, US, NS = TimeUnit
UNITS = pytest.mark.parametrize("meant", list(TimeUnit))
READ = pytest.mark.parametrize("read", [S, MS])


def as_read(seconds: list[float], meant: TimeUnit, read: TimeUnit) -> list[int]:
    """The times of a trace that writes them in one unit and is read in another."""
    return [round(each * 10**9 / meant.ns) * read.ns for each in seconds]


@UNITS
@READ
@pytest.mark.parametrize("requests_per_s", [0.3, 1.0, 3.0, 9.0])
def test_the_unit_is_told_by_how_many_requests_there_are_in_a_second(meant, read, requests_per_s):
    times = as_read([number / requests_per_s for number in range(1000)], meant, read)
    assert likely_unit(times, read, ()) is (None if meant is read else meant)


@UNITS
@READ
def test_the_unit_is_told_by_moments_since_1970(meant, read):
    times = as_read([1.7e9, 1.7e9 + 1], meant, read)
    assert likely_unit(times, read, ()) is (None if meant is read else meant)


@UNITS
def test_the_unit_is_told_by_how_soon_turns_follow_their_answers(meant):
    """Of a slow trace: a request in 20 s, the next turn of each conversation after 60 s and 400 tokens."""
    times = as_read([20.0 * number for number in range(200)], meant, MS)
    (gap,) = as_read([60.0], meant, MS)
    assert likely_unit(times, MS, [(gap, 400)] * 100) is (None if meant is MS else meant)


def test_turns_decide_where_the_rate_alone_would_do():
    times = as_read([20.0 * number for number in range(200)], S, MS)
    assert likely_unit(times, MS, ()) is None
    assert likely_unit(times, MS, [(60 * MS.ns, 400)] * 9) is None, "a few turns are none"
    assert likely_unit(times, MS, [(60 * MS.ns, 400)] * 10) is S


@pytest.mark.parametrize("times", [[0], [5 * MS.ns] * 100, [0, *range(8)]])
def test_nothing_is_said_of_too_few_requests_or_of_a_single_moment(times):
    assert likely_unit(times, MS, ()) is None


def test_nothing_is_said_where_no_unit_would_do():
    assert likely_unit([number * 3 for number in range(1000)], MS, [(0, 400)] * 20) is None


def test_a_trace_in_another_unit_is_read_and_the_doubt_told(tmp_path):
    path = tmp_path / "seconds.jsonl"
    rows = [{"timestamp": number / 2, "input_length": 9, "output_length": 9} for number in range(100)]
    path.write_text("\n".join(map(json.dumps, rows)))
    workload = read_trace(path)
    assert workload.requests[-1].arrival == pytest.approx(0.0495)
    assert workload.report is not None
    assert workload.report.looks_like == "seconds"
    assert list(workload.report.lines()) == [f"{path}: its times are read as milliseconds, but look like seconds"]


def test_a_trace_that_would_never_end_is_refused_with_the_unit_that_it_is_likely_to_be_in(tmp_path):
    path = tmp_path / "nanoseconds.jsonl"
    rows = [{"timestamp": number * 10**9, "input_length": 9, "output_length": 9} for number in range(100)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ConfigError, match=r"more than a year .*read as milliseconds; they look like nanoseconds"):
        read_trace(path)
