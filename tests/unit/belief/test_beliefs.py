"""What a placement is decided by: each candidate as it is believed to be, on times that are just numbers."""

from __future__ import annotations

from typing import Any

import pytest

from pdd.belief.beliefs import Beliefs, PlacementQuestion
from pdd.belief.conversations import Conversation
from pdd.belief.links import Links
from pdd.belief.workers import Workers
from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, PinId, WorkerId
from pdd.core.replication import Pin
from pdd.core.request import Role
from pdd.core.topology import HealthTable, PolicyTable
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.core.view import CandidateView, PlacementView
from tests.support.known_workers import Known, books, known

P, RLD, MD = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE
NOW = Seconds(0.0)
WAN, LOCAL = BytesPerSecond(10.0), BytesPerSecond(1000.0)
SETTINGS = PolicyTable()
P0 = known("p0", P, node="np0")
LONG = [BlockHash(bytes([length])) for length in range(100)]

ALL = (
    P0,
    known("p1", P, node="np1"),
    known("r0", RLD, node="np0"),
    known("r1", RLD, node="nr1"),
    known("m0", node="nm0"),
    known("m1", node="nm1"),
    known("m2", node="nm1"),
)


class NoPins:
    def want(self, node: NodeId, pin: Pin, /) -> None:
        raise AssertionError(f"nobody asked for {pin} at {node}")

    def drop(self, node: NodeId, pin: PinId, /) -> None:
        raise AssertionError(f"nobody asked for {pin} at {node}")


def beliefs_of(*some: Known) -> Beliefs[Known]:
    """Each of them is up, and so is its node."""
    workers = Workers(some, HealthTable())
    for each in some:
        workers.node_answered(books(each.site.node), None)
        workers.answered(each.name, "one", None, NOW)
    links = Links({("A", "B"): WAN}, local_rate=LOCAL, block_bytes=Bytes(1))
    return Beliefs[Known].begin(workers, NoPins(), links, block_bytes=Bytes(1), settings=SETTINGS)


def placement(beliefs: Beliefs[Known], role: Role = MD, **question: Any) -> PlacementView:
    asked = PlacementQuestion(role=role, **{"hashes": LONG, "num_blocks": 30, **question})
    view = beliefs.placement(asked, SETTINGS, NOW)
    assert view is not None
    return view


def candidate(beliefs: Beliefs[Known], name: str = "m0", role: Role = MD, **question: Any) -> CandidateView:
    (found,) = [each for each in placement(beliefs, role, **question).candidates if each.worker.name == name]
    return found


def missing(view: PlacementView) -> dict[str, int]:
    return {each.worker.name: each.num_missing for each in view.candidates}


def test_where_nobody_is_up_nothing_is_to_be_decided() -> None:
    beliefs = beliefs_of(P0)
    assert beliefs.placement(PlacementQuestion(role=MD, hashes=LONG, num_blocks=0), SETTINGS, NOW) is None


def test_every_role_is_seen_whether_or_not_somebody_is_up() -> None:
    roles = beliefs_of(P0).roles()
    assert {role: view.up for role, view in roles.items()} == {P: True, RLD: False, MD: False}


def test_only_those_of_the_role_that_are_up_are_candidates_and_the_question_is_passed_on() -> None:
    beliefs = beliefs_of(*ALL)
    beliefs.workers.refused(WorkerId("m1"), "nobody is there")
    beliefs.workers.pace(MD).record(WorkerId("m0"), work=10, seconds=Seconds(1.0), now=NOW)
    view = placement(beliefs)
    assert [each.worker.name for each in view.candidates] == ["m0", "m2"]
    assert (view.role, view.num_blocks, view.block_bytes, view.settings) == (MD, 30, 1, SETTINGS)
    assert view.pace == beliefs.workers.pace(MD).view


def test_a_node_lacks_what_it_is_not_believed_to_hold_whoever_of_its_workers_is_asked_for() -> None:
    beliefs = beliefs_of(*ALL)
    beliefs.prefixes.landed(NodeId("nm1"), LONG[:60])
    assert missing(placement(beliefs)) == {"m0": 100, "m1": 40, "m2": 40}


def test_prefills_own_node_will_lack_nothing() -> None:
    assert missing(placement(beliefs_of(*ALL), RLD, source=P0.site)) == {"r0": 0, "r1": 100}


def test_what_a_decoder_lacks_comes_over_the_link_from_prefills_node() -> None:
    beliefs = beliefs_of(*ALL)
    (main, relay) = (candidate(beliefs, name, role, source=P0.site).link for name, role in (("m0", MD), ("r1", RLD)))
    assert main is not None
    assert relay is not None
    assert (main.rate, relay.rate) == (WAN, LOCAL)


def test_no_link_is_looked_at_where_nothing_is_sent_or_nobody_knows_from_where() -> None:
    beliefs = beliefs_of(*ALL)
    beliefs.prefixes.landed(NodeId("nm0"), LONG)
    assert candidate(beliefs, "m0", source=P0.site).link is None
    assert candidate(beliefs, "m1").link is None
    assert candidate(beliefs, "p1", P, source=P0.site).link is None


def test_who_sits_at_a_worker_counts_with_what_they_lack_and_need() -> None:
    beliefs = beliefs_of(*ALL)
    for lacking in (7, 5):
        beliefs.workers.take(WorkerId("m0"), NOW, num_missing=lacking, num_blocks=20)
    seen = candidate(beliefs).worker
    assert (seen.num_seats, seen.max_batch, seen.num_missing, seen.free_blocks) == (2, 4, 12, 60)
    free = candidate(beliefs, "m1").worker
    assert (free.num_seats, free.num_missing, free.free_blocks) == (0, 0, 100)


def test_a_node_that_is_away_has_no_free_blocks_to_speak_of() -> None:
    beliefs = beliefs_of(*ALL)
    beliefs.workers.node_refused(NodeId("nm0"), None)
    assert candidate(beliefs).worker.free_blocks is None


def test_a_slow_worker_is_seen_as_slow() -> None:
    beliefs = beliefs_of(*ALL)
    for _ in range(50):
        for name, seconds in (("m0", 3.0), ("m1", 1.0)):
            beliefs.workers.pace(MD).record(WorkerId(name), work=10, seconds=Seconds(seconds), now=NOW)
    assert candidate(beliefs, "m0").worker.slowness > 1.2
    assert candidate(beliefs, "m1").worker.slowness < 0.8
    assert candidate(beliefs, "m2").worker.slowness == 1.0


def test_one_that_is_late_with_an_answer_is_seen_as_late() -> None:
    beliefs = beliefs_of(*ALL)
    beliefs.workers.asked(WorkerId("m0"), Seconds(-1.0))
    assert candidate(beliefs, "m0").worker.late
    assert not candidate(beliefs, "m1").worker.late


def test_one_that_lost_a_generation_of_this_request_is_seen_as_such() -> None:
    lost_at = frozenset({WorkerId("m0")})
    beliefs = beliefs_of(*ALL)
    assert candidate(beliefs, "m0", lost_at=lost_at).lost_here
    assert not candidate(beliefs, "m1", lost_at=lost_at).lost_here


def test_one_whose_breaker_lets_nothing_through_is_not_trusted() -> None:
    beliefs, name = beliefs_of(*ALL), WorkerId("m0")
    for _ in range(3):
        beliefs.workers.suspect(beliefs.workers.take(name, NOW), NOW)
        beliefs.workers.answered(name, "one", None, NOW)
    assert not candidate(beliefs, "m0").worker.trusted
    assert candidate(beliefs, "m1").worker.trusted


@pytest.mark.parametrize(("role", "home"), [(P, "p1"), (MD, "m1"), (RLD, None)])
def test_a_conversation_has_its_home_where_it_was_served_in_this_role(role: Role, home: str | None) -> None:
    conversation = Conversation(
        tip=LONG[-1],
        workers={P: WorkerId("p1"), MD: WorkerId("m1")},
        main_node=None,
        num_blocks=100,
        num_pinned=0,
        last_filtered=False,
        last_turn_at=NOW,
        pin=None,
    )
    beliefs = beliefs_of(*ALL)
    assert placement(beliefs, role, conversation=conversation).home == home
    assert placement(beliefs, role).home is None
