"""Recorded traffic: request traces as workloads, and what can be done to them.

``trace.files`` reads them, whatever their format; ``trace.requests`` makes requests of what they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pdd.core.errors import ConfigError
from pdd.core.ids import RequestId
from pdd.core.units import Seconds
from pdd.sim.workload.base import LONGEST, SimRequest, Workload
from pdd.sim.workload.trace.files import read_recording
from pdd.sim.workload.trace.report import TraceReport
from pdd.sim.workload.trace.rows import Recording, Row, TimeUnit
from pdd.sim.workload.trace.times import likely_unit
from pdd.sim.workload.trace_requests import Link, find_links, note_prefixes, to_requests


def read_trace(path: Path, *, block_tokens: int | None = None) -> Workload:
    """All requests of a trace, in order of arrival, the first at 0 s; with what there is to doubt in it.

    ``block_tokens`` is what one hash id stands for; None: what the trace's format says.

    Raises:
        ConfigError: no such file, or a line that is not what it should be.
    """
    recording = read_recording(path, block_tokens)
    rows = sorted(recording.rows, key=lambda row: row.at_ns)
    num_tokens = recording.block_tokens or 1
    links = find_links(rows, num_tokens, recording.doubts)
    if recording.format.ids_name_prefixes:
        note_prefixes(rows, recording.doubts)
    looks_like = _likely_unit(recording, rows, links)
    if rows[-1].at_ns - rows[0].at_ns > LONGEST * TimeUnit.SECONDS.ns:
        raise ConfigError(_too_long(path, recording.format.unit, looks_like))
    report = TraceReport(
        file=str(path),
        format=recording.format.name,
        time_unit=recording.format.unit,
        looks_like=looks_like,
        block_tokens=recording.block_tokens,
        doubts=recording.doubts.found(),
    )
    requests = tuple(to_requests(rows, links, num_tokens))
    return Workload(name=path.stem, requests=requests, report=report)


def _likely_unit(recording: Recording, rows: Sequence[Row], links: Sequence[Link]) -> TimeUnit | None:
    unit = recording.format.unit
    if unit is None:
        return None
    turns = [(rows[link.child].at_ns - rows[link.parent].at_ns, rows[link.parent].output_length) for link in links]
    return likely_unit([row.at_ns for row in rows], unit, turns)


def _too_long(path: Path, unit: TimeUnit | None, looks_like: TimeUnit | None) -> str:
    read_as = "" if unit is None else f", read as {unit}"
    hint = "" if looks_like is None else f"; they look like {looks_like}"
    return f"{path}: more than a year lies between its first request and its last{read_as}{hint}"


def speed_up(workload: Workload, factor: float) -> Workload:
    """Conversations begin ``factor`` times as often; within each, time goes on as before: more users, not
    faster ones.
    """
    began: dict[RequestId, float] = {}
    faster: list[SimRequest] = []
    for request in workload.requests:
        start = request.arrival if request.after is None else began[request.after]
        began[request.request_id] = start
        arrival = Seconds(start / factor + request.arrival - start)
        faster.append(replace(request, arrival=arrival))
    return replace(workload, requests=tuple(sorted(faster, key=lambda request: request.arrival)))


def cut_at(workload: Workload, end: Seconds) -> Workload:
    """What arrives before ``end``."""
    return replace(workload, requests=tuple(request for request in workload.requests if request.arrival < end))


def fitting(workload: Workload, max_model_tokens: int) -> Workload:
    """Without the conversations that have a turn too long for the model."""
    kept: dict[RequestId, SimRequest] = {}
    for request in workload.requests:
        fits = request.num_prompt_tokens + request.max_tokens <= max_model_tokens
        if fits and (request.after is None or request.after in kept):
            kept[request.request_id] = request
    return replace(workload, requests=tuple(kept.values()))
