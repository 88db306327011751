"""A trace is played with any number of users, from late in it, with caches that hold what was asked before."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pdd.core.errors import ConfigError
from pdd.core.ids import RequestId, TokenId
from pdd.core.units import Seconds
from pdd.sim.workload.base import SimRequest, Workload
from pdd.sim.workload.conversations import WARM_UP_PREFIX
from pdd.sim.workload.excerpt import excerpt, multiply

_PACE = 10_000.0


def request(name: str, at: float, prompt: list[int], answer: int, after: str | None = None) -> SimRequest:
    """Blocks of 512 tokens."""
    return SimRequest(
        request_id=RequestId(name),
        arrival=Seconds(at),
        prompt=tuple((TokenId(each), 512) for each in prompt),
        answer=((TokenId(answer), 512),),
        max_tokens=1024,
        after=None if after is None else RequestId(after),
    )


def users(count: int) -> Workload:
    """One begins every 10 s, with a first block that all share, and goes on 4 s after: 1 new block, 1 that was the
    answer.
    """
    requests: list[SimRequest] = []
    for user in range(count):
        own = 10 * (user + 1)
        requests.append(request(f"{user}-a", 10.0 * user, [1, own], own + 1))
        requests.append(request(f"{user}-b", 10.0 * user + 4, [1, own, own + 1, own + 2], own + 3, f"{user}-a"))
    return Workload(name="users", requests=tuple(requests))


def split(workload: Workload) -> tuple[list[SimRequest], list[SimRequest]]:
    warm_up = [each for each in workload.requests if each.request_id.startswith(WARM_UP_PREFIX)]
    return warm_up, [each for each in workload.requests if each not in warm_up]


@pytest.mark.parametrize("factor", [0.25, 1.0, 3.5, 9.0])
def test_more_users_ask_so_many_times_as_often(factor):
    recorded = users(100)
    requests = multiply(recorded, factor).requests
    begun = [each.arrival for each in requests if each.after is None]
    assert len(begun) / (begun[-1] - begun[0]) == pytest.approx(0.1 * factor, rel=0.05)
    assert [each.arrival for each in requests] == sorted(each.arrival for each in requests)


def test_each_user_is_as_slow_as_recorded():
    requests = {each.request_id: each for each in multiply(users(10), 9.0).requests}
    turns = [each for each in requests.values() if each.after is not None]
    assert len(turns) == 90
    for turn in turns:
        assert turn.after is not None
        assert turn.arrival - requests[turn.after].arrival == pytest.approx(4.0)
        assert turn.tenant == requests[turn.after].tenant


def test_copies_share_no_text_and_are_in_different_parts_of_the_trace():
    requests = multiply(users(40), 4.0).requests
    assert len({each.tenant for each in requests}) == 4
    first = [next(each for each in requests if each.tenant == tenant) for tenant in {each.tenant for each in requests}]
    assert len({each.prompt for each in first}) == 4


def test_turns_of_one_moment_keep_their_order():
    turns = [request(f"{n}", 5.0, [1], 2, f"{n + 1}" if n < 12 else None) for n in range(12, 0, -1)]
    requests = multiply(Workload(name="burst", requests=tuple(turns)), 1.0).requests
    asked: set[str] = set()
    for each in requests:
        assert each.after is None or each.after in asked
        asked.add(each.request_id)


def test_requests_of_one_moment_are_not_given_a_rate():
    times = [*map(float, range(20)), *[30.0] * 9]
    burst = Workload(name="burst", requests=tuple(request(f"{n}", at, [n], n + 100) for n, at in enumerate(times)))
    with pytest.raises(ConfigError, match="9 requests at one moment come at no rate"):
        excerpt(burst, max_requests=20, warm_up_tokens_per_s=_PACE)


def test_what_the_played_part_shares_with_the_past_is_asked_about_first():
    played = excerpt(users(40), max_requests=10, warm_up_tokens_per_s=_PACE)
    warm_up, rest = split(played.workload)
    assert [each.request_id for each in rest] == [f"{user}-{turn}" for user in range(30, 35) for turn in "ab"]
    # All that user 30 finds is the block that everybody shares: its latest holder is asked about, and nobody else.
    assert [each.request_id for each in warm_up] == [f"{WARM_UP_PREFIX}29-b"]
    # A first turn lacks one block, a second one what is new in it: the answer before it is at main decode.
    assert played.new_tokens == 10 * 512
    assert played.num_requests == 10
    assert played.requests_per_s == pytest.approx(10 / 44)


def test_who_is_in_the_middle_of_a_conversation_goes_on_without_waiting_for_the_past():
    whole = users(4)
    late = request("9-a", 26.0, [1, 700], 701)
    later = request("9-b", 60.0, [1, 700, 701, 702], 703, "9-a")
    mixed = Workload(name="users", requests=(*whole.requests[:-2], late, *whole.requests[-2:], later))
    warm_up, rest = split(excerpt(mixed, max_requests=9, warm_up_tokens_per_s=_PACE).workload)
    assert rest[-1].request_id == "9-b"
    assert rest[-1].after is None
    assert f"{WARM_UP_PREFIX}9-a" in {each.request_id for each in warm_up}


def test_the_warm_up_is_over_when_the_played_part_begins_and_came_at_its_pace():
    later = tuple(
        request(f"c{user}", 1000.0 + user, [1, 10 * (user + 1), 10 * (user + 1) + 1], 9000 + user) for user in range(30)
    )
    workload = Workload(name="users", requests=(*users(70).requests, *later))
    warm_up, rest = split(excerpt(workload, max_requests=60, warm_up_tokens_per_s=_PACE).workload)
    assert [each.request_id for each in warm_up] == [f"{WARM_UP_PREFIX}{user}-b" for user in range(30)]
    assert warm_up[0].arrival == 0.0
    # The first prompt has four blocks that were not there yet; the others' first is the one that everybody shares.
    gaps = [after.arrival - before.arrival for before, after in pairwise(warm_up)]
    assert gaps == pytest.approx([4 * 512 / _PACE, *[3 * 512 / _PACE] * 28])
    assert rest[0].arrival >= warm_up[-1].arrival + 10.0
    assert {each.after for each in warm_up} == {None}


def test_what_has_too_little_in_it_is_refused():
    with pytest.raises(ConfigError, match="too little"):
        excerpt(Workload(name="short", requests=users(1).requests), max_requests=1, warm_up_tokens_per_s=_PACE)
