"""Which delivery without a request gives way."""

from __future__ import annotations

import pytest

from pdd.core.ids import NodeId, NodeInstance
from pdd.core.replication import NodeStats
from pdd.core.units import Bytes
from pdd.policy.detached import DetachedView, choose_spare, choose_surplus, is_short_of_capacity

HERE, THERE, ELSEWHERE = NodeId("here"), NodeId("there"), NodeId("elsewhere")


def detached(*, demoted: bool = True, target: NodeId = THERE) -> DetachedView:
    return DetachedView(nodes=(HERE, target), demoted=demoted)


def stats(*, leased: int = 0, reserved: int = 0, writing: int = 0) -> NodeStats:
    return NodeStats(
        node=HERE,
        instance=NodeInstance("one"),
        capacity_blocks=100,
        held_blocks=100,
        leased_blocks=leased,
        reserved_blocks=reserved,
        writing_blocks=writing,
        orders=0,
        watches=0,
        block_bytes=Bytes(1),
        sent_bytes={},
        received_bytes={},
        evictions=0,
        digest_failures=0,
    )


def test_of_too_many_the_oldest_that_nobody_waits_for_ends() -> None:
    waited_for, spare = detached(demoted=False), detached()
    assert choose_surplus([waited_for, spare, spare], limit=2) == 1
    assert choose_surplus([waited_for, waited_for, waited_for], limit=2) == 0, "else the oldest"
    assert choose_surplus([spare, spare], limit=2) is None


def test_at_a_node_the_oldest_gives_way_that_holds_something_there_and_that_nobody_waits_for() -> None:
    others = [detached(target=ELSEWHERE), detached(demoted=False), detached(), detached()]
    assert choose_spare(others, THERE) == 2
    assert choose_spare(others, HERE) == 0, "at its source, too"
    assert choose_spare(others[:2], THERE) is None


@pytest.mark.parametrize("kind", ["leased", "reserved", "writing"])
def test_a_node_is_short_of_capacity_by_what_may_not_be_evicted(kind: str) -> None:
    assert is_short_of_capacity(stats(**{kind: 76}))
    assert not is_short_of_capacity(stats(**{kind: 75})), "what it merely holds may go"
    assert not is_short_of_capacity(None)
