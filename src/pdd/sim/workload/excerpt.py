"""A trace as the traffic of any number of users, entered in the middle: caches hold what was asked before.

A recorded trace begins with nothing cached, and at a moment when nobody is in mid-conversation. Played from there a
system is measured that has just been switched on. Here it is played from late in the trace: what the played part shares
with anything before it is asked about once in a warm-up, and not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import ceil

from pdd.core.errors import ConfigError
from pdd.core.ids import RequestId, TenantId, TokenId
from pdd.core.units import Seconds
from pdd.sim.workload.base import Run, SimRequest, Workload, num_tokens
from pdd.sim.workload.conversations import WARM_UP_PREFIX
from pdd.sim.workload.traces import speed_up

_LEAST_COPIES = 4
"""So that an excerpt is a mixture of several parts of the trace at any load, and of the same ones."""
_ENTERED_AT = 0.75
"""Of the time in which conversations begin: many are in progress, and many still begin."""
_SETTLING = Seconds(10.0)
"""Between the warm-up's last request and the first that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """``workload`` begins with a warm-up.

    ``new_tokens``: prompt tokens that nothing before had, neither prompt nor answer.
    """

    workload: Workload
    num_requests: int
    duration: Seconds
    new_tokens: int

    @property
    def requests_per_s(self) -> float:
        return self.num_requests / self.duration

    @property
    def new_tokens_per_s(self) -> float:
        """What caches that lose nothing still miss."""
        return self.new_tokens / self.duration


def multiply(workload: Workload, factor: float) -> Workload:
    """``factor`` times the users of a trace, each as slow as recorded, with the hit rates of the trace.

    The trace is played several times at once, each copy beginning elsewhere in it, with its conversations spread over
    the time that makes ``factor``. Copies are tenants of their own: they share no text.
    """
    copies = max(_LEAST_COPIES, ceil(factor))
    spread = speed_up(workload, factor / copies)
    starts = _starts(spread.requests)
    span = _span(starts.values())
    mixed = [
        _shifted(request, starts[request.request_id], number, number / copies * span, span)
        for number in range(copies)
        for request in spread.requests
    ]
    # At one moment as in the trace: a turn never before the one that it follows.
    return replace(workload, requests=tuple(sorted(mixed, key=lambda request: request.arrival)))


def excerpt(workload: Workload, *, max_requests: int, warm_up_tokens_per_s: float) -> Excerpt:
    """At most ``max_requests`` from late in ``workload``, after a warm-up whose prompts come at the given pace.

    Raises:
        ConfigError: too little is asked so late, or all of it at one moment.
    """
    entered_at = _ENTERED_AT * _span(_starts(workload.requests).values())
    past = [request for request in workload.requests if request.arrival < entered_at]
    played = [request for request in workload.requests if request.arrival >= entered_at][:max_requests]
    if len(played) < 2:
        raise ConfigError(f"workload {workload.name!r}: there is too little in it to enter it in the middle")
    holders = _holders(past, played)
    warm_up, begin = _warm_up(holders, played, warm_up_tokens_per_s)
    first, last = played[0].arrival, played[-1].arrival
    if first == last:
        raise ConfigError(
            f"workload {workload.name!r}: {len(played)} requests at one moment come at no rate; play more"
        )
    return Excerpt(
        workload=replace(workload, requests=(*warm_up, *_resumed(played, begin - first))),
        num_requests=len(played),
        duration=Seconds(last - first),
        new_tokens=sum(_new_tokens(holders, played)),
    )


def _starts(requests: Iterable[SimRequest]) -> dict[RequestId, float]:
    """When the conversation of each request began."""
    starts: dict[RequestId, float] = {}
    for request in requests:
        starts[request.request_id] = request.arrival if request.after is None else starts[request.after]
    return starts


def _span(starts: Iterable[float]) -> float:
    """The period in which so many conversations begin, if they go on beginning like that."""
    distinct = set(starts)
    return max((1.0, *distinct)) * (1.0 + 1.0 / max(1, len(distinct)))


def _shifted(request: SimRequest, start: float, number: int, shift: float, span: float) -> SimRequest:
    """In copy ``number``: conversations that would begin after ``span`` begin at the beginning."""
    return replace(
        request,
        request_id=_renamed(request.request_id, number),
        after=None if request.after is None else _renamed(request.after, number),
        arrival=Seconds((start + shift) % span + request.arrival - start),
        tenant=TenantId(f"copy-{number}"),
    )


def _renamed(request_id: RequestId, number: int) -> RequestId:
    return RequestId(f"{request_id}.{number}")


def _resumed(played: Sequence[SimRequest], shift: float) -> Iterator[SimRequest]:
    """``shift`` later; what came before them is over."""
    ids = {request.request_id for request in played}
    for request in played:
        after = request.after if request.after in ids else None
        yield replace(request, arrival=Seconds(request.arrival + shift), after=after)


# What was asked before ------------------------------------------------------------------------------------------------

_Text = tuple[TenantId, TokenId]
"""A trace's ids name a block and all before it, so whoever has one has those, too."""


def _texts(request: SimRequest, runs: Iterable[Run]) -> Iterator[_Text]:
    return ((request.tenant, token) for token, _ in runs)


def _holders(past: Sequence[SimRequest], played: Sequence[SimRequest]) -> dict[_Text, SimRequest]:
    """Of each text that ``played`` shares with the past, the latest request that had it, as prompt or as answer."""
    wanted: dict[TenantId, set[TokenId]] = {}
    for request in played:
        wanted.setdefault(request.tenant, set()).update(token for token, _ in request.prompt)
    holders: dict[_Text, SimRequest] = {}
    for request in past:
        of_tenant = wanted.get(request.tenant, set())
        for token, _ in (*request.prompt, *request.answer):
            if token in of_tenant:
                holders[request.tenant, token] = request
    return holders


def _warm_up(
    holders: Mapping[_Text, SimRequest], played: Sequence[SimRequest], tokens_per_s: float
) -> tuple[list[SimRequest], float]:
    """The latest earlier requests that together have all that ``played`` shares with the past; when they
    are through.
    """
    moment, asked, known = 0.0, list[SimRequest](), set[_Text]()
    for request in sorted(_needed(holders, played), key=lambda request: (request.arrival, request.request_id)):
        asked.append(_asked_again(request, moment))
        fresh = [run for run in request.prompt if (request.tenant, run[0]) not in known]
        known.update(_texts(request, (*request.prompt, *request.answer)))
        moment += num_tokens(fresh) / tokens_per_s
    return asked, moment + _SETTLING


def _asked_again(request: SimRequest, moment: float) -> SimRequest:
    return replace(
        request, request_id=RequestId(WARM_UP_PREFIX + request.request_id), arrival=Seconds(moment), after=None
    )


def _needed(holders: Mapping[_Text, SimRequest], played: Sequence[SimRequest]) -> list[SimRequest]:
    """Who holds the last of what a played request shares holds all of it."""
    needed: dict[RequestId, SimRequest] = {}
    for request in played:
        shared = list(takewhile(holders.__contains__, _texts(request, request.prompt)))
        if shared:
            holder = holders[shared[-1]]
            needed[holder.request_id] = holder
    return list(needed.values())


def _new_tokens(holders: Mapping[_Text, SimRequest], played: Sequence[SimRequest]) -> Iterator[int]:
    """Of each played request: what comes after the part that is known by then."""
    known = set(holders)
    for request in played:
        num_shared = sum(1 for _ in takewhile(known.__contains__, _texts(request, request.prompt)))
        yield num_tokens(request.prompt[num_shared:])
        known.update(_texts(request, (*request.prompt, *request.answer)))
