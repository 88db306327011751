"""What one delivery commands in each situation, step by step.

Each script plays one story and raises if it goes otherwise.
"""

from __future__ import annotations

from typing import Any

from pdd.core.errors import BlocksLost, CapacityExhausted, ContextTooLong, Incompatible, NodeFailed, PddError
from pdd.core.ids import NodeId, OrderId, WatchId
from pdd.core.replication import ReplicationOrder, Watch
from pdd.core.request import SendClass
from pdd.core.units import Seconds
from pdd.protocol import delivery_messages as dm
from pdd.protocol.capacity_queue import Turn
from pdd.protocol.delivery_messages import DeliveryState, Timer
from tests.support.delivery_play import HASHES, Play, names, owing, progress, record, timer

NO_CAPACITY = CapacityExhausted("full", retry_after_s=Seconds(1.0))
AWAY = NodeFailed("away")
FATAL: tuple[PddError, ...] = (ContextTooLong("too long"), Incompatible("another format"), BlocksLost("evicted"))


def moving(m: Any, **spec: Any) -> Play:
    """Watch d.1 and order d.2 stand; nothing has arrived."""
    play = Play(m, **spec)
    play.begin()
    play.report(1, 0)
    return play


def refused(m: Any, **spec: Any) -> Play:
    """It waits as the first in the queue; its order d.2 has ended."""
    play = Play(m, **spec)
    play.begin()
    play.watch_fails(1, NO_CAPACITY)
    play.turn(Turn.FIRST)
    play.order_ends(2)
    return play


def ready(m: Any, **spec: Any) -> Play:
    """Order d.2 still stands."""
    play = moving(m, **spec)
    play.report(1, 4)
    return play


# The target ----------------------------------------------------------------------------------------------------------


def watch_and_order_go_out_together(m: Any) -> None:
    play = Play(m)
    assert play.delivery.phase == "New"
    watch, order = play.begin()
    assert watch == dm.OpenWatch(watch=Watch(watch=WatchId("d.1"), hashes=HASHES, reserve_blocks=9))
    assert order == dm.PlaceOrder(
        order=ReplicationOrder(order=OrderId("d.2"), target=NodeId("t"), hashes=HASHES, send_class=SendClass.NORMAL)
    )
    assert (play.delivery.phase, play.delivery.state) == ("Placed", DeliveryState.PLACED)
    assert play.begin() == [], "it begins once"


def between_engines_that_share_a_node_nothing_is_sent(m: Any) -> None:
    play = Play(m, target=NodeId("s"))
    assert names(play.begin()) == ["OpenWatch"]
    assert (play.delivery.num_missing, play.delivery.num_lacking) == (0, 0)
    assert names(play.report(1, 0)) == ["TellChange"]
    assert names(play.report(1, 4)) == ["TellChange"]
    assert play.delivery.state is DeliveryState.READY


def one_that_comes_when_others_wait_asks_for_nothing(m: Any) -> None:
    play = Play(m)
    assert names(play.begin(Turn.BEHIND)) == ["AskTurn"]
    assert play.delivery.refused
    assert play.turn(Turn.BEHIND) == [timer(Timer.TURN, 1.0)]
    assert play.delivery.num_missing is None


def a_refusal_ends_the_order_and_is_told_once(m: Any) -> None:
    play = Play(m)
    play.begin()
    told = play.progress(2, None)
    assert names(told) == ["RecordProgress"]
    commands = play.watch_fails(1, NO_CAPACITY)
    assert names(commands) == ["JoinQueue", "FreeCapacity", "RecordProgress", "TellChange", "CancelOrder", "AskTurn"]
    assert commands[-2] == dm.CancelOrder(order=OrderId("d.2"))
    assert play.turn(Turn.FIRST) == [timer(Timer.TURN, 0.25)]
    assert names(play.fire(Timer.TURN, after=0.25)) == ["OpenWatch"]
    assert names(play.watch_fails(3, NO_CAPACITY)) == ["JoinQueue", "FreeCapacity", "AskTurn"]
    assert play.delivery.phase == "Refused"


def nobody_gives_way_to_what_nobody_waits_for(m: Any) -> None:
    play = Play(m, send_class=SendClass.BACKGROUND)
    play.begin()
    assert names(play.watch_fails(1, NO_CAPACITY)) == ["JoinQueue", "TellChange", "CancelOrder", "AskTurn"]
    assert play.delivery.refused
    assert names(play.turn(Turn.FIRST)) == ["LeaveQueue", "TellChange"]
    assert play.delivery.state is DeliveryState.FAILED
    assert isinstance(play.delivery.error, CapacityExhausted)
    assert play.delivery.error.retry_after_s == 2.0
    assert not play.delivery.is_targets_fault
    assert names(play.order_ends(2)) == ["End"]


def who_waits_behind_others_looks_how_long_it_has_waited(m: Any) -> None:
    play = Play(m)
    play.begin(Turn.BEHIND)
    play.turn(Turn.BEHIND)
    for _ in range(4):
        assert play.fire(Timer.TURN, after=1.0) == [timer(Timer.TURN, 1.0)]
    assert names(play.fire(Timer.TURN, after=1.0)) == ["LeaveQueue", "TellChange", "End"]
    assert "t" in str(play.delivery.error)


def after_the_first_token_it_waits_less(m: Any) -> None:
    play = Play(m)
    play.begin(Turn.BEHIND)
    play.turn(Turn.BEHIND)
    play.tell(dm.PrefillDone)
    assert names(play.fire(Timer.TURN, after=0.9)) == ["SetTimer"]
    assert names(play.fire(Timer.TURN, after=0.1)) == ["LeaveQueue", "TellChange", "End"]


def the_time_in_the_queue_counts_from_the_first_refusal_to_the_next_report(m: Any) -> None:
    play = refused(m)
    play.fire(Timer.TURN, after=4.0)
    play.watch_fails(3, NO_CAPACITY)
    assert names(play.turn(Turn.FIRST)) == ["SetTimer"]
    play.fire(Timer.TURN)
    play.report(4, 0)
    play.now += 2.0
    play.watch_fails(4, NO_CAPACITY)
    assert names(play.turn(Turn.FIRST)) == ["SetTimer"], "it had capacity meanwhile"
    play.fire(Timer.TURN, after=5.0)
    play.watch_fails(6, NO_CAPACITY)
    assert "TellChange" in names(play.turn(Turn.FIRST))
    assert play.delivery.state is DeliveryState.FAILED


def one_that_is_called_asks_at_once(m: Any) -> None:
    play = refused(m)
    assert names(play.tell(dm.TurnChanged)) == ["AskTurn"]
    assert names(play.turn(Turn.CALLED)) == ["OpenWatch"]
    assert play.tell(dm.TurnChanged) == [], "it has asked already"
    play.watch_fails(3, NO_CAPACITY)
    assert names(play.turn(Turn.CALLED)) == ["OpenWatch"], "something was released since it asked"
    assert play.turn(Turn.CALLED) == [], "nobody asked"
    play = Play(m)
    play.begin(Turn.BEHIND)
    play.turn(Turn.BEHIND)
    play.tell(dm.TurnChanged)
    assert names(play.turn(Turn.OPEN)) == ["OpenWatch"]


def one_that_is_called_too_late_asks_all_the_same(m: Any) -> None:
    play = refused(m)
    play.now += 6.0
    play.tell(dm.TurnChanged)
    assert names(play.turn(Turn.CALLED)) == ["OpenWatch"]
    play.watch_fails(3, NO_CAPACITY)
    assert "TellChange" in names(play.turn(Turn.CALLED)), "but no more than once"


def with_capacity_it_leaves_the_queue_and_sends(m: Any) -> None:
    play = refused(m)
    play.fire(Timer.TURN, after=0.25)
    commands = play.report(3, 1)
    assert names(commands) == ["LeaveQueue", "PlaceOrder", "TellChange"]
    assert play.delivery.phase == "Moving"
    assert play.report(3, 2) == []
    assert play.tell(dm.TurnChanged) == []
    play = refused(m)
    play.fire(Timer.TURN, after=0.25)
    assert names(play.report(3, 4)) == ["LeaveQueue", "TellChange"]
    assert play.delivery.state is DeliveryState.READY


def it_is_ready_when_the_goal_is(m: Any) -> None:
    play = moving(m)
    assert play.report(1, 3) == []
    assert names(play.report(1, 4)) == ["TellChange"]
    assert (play.delivery.phase, play.delivery.settled, play.delivery.num_missing) == ("Ready", True, 0)
    play = moving(m, goal=2)
    assert play.report(1, 1) == []
    assert names(play.report(1, 2)) == ["TellChange"]
    assert play.progress(2, 4, 2) != [], "the others follow"
    assert play.report(1, 3) == [], "it is ready already"


def what_came_before_there_was_capacity_is_sent_again(m: Any) -> None:
    play = Play(m)
    play.begin()
    play.progress(2, 0, done=True)
    play.order_ends(2)
    assert names(play.watch_fails(1, NO_CAPACITY)) == ["JoinQueue", "FreeCapacity", "TellChange", "AskTurn"]
    play.turn(Turn.FIRST)
    play.fire(Timer.TURN)
    assert names(play.report(3, 0)) == ["LeaveQueue", "PlaceOrder", "TellChange"]


def what_a_target_lost_when_it_restarted_is_sent_again(m: Any) -> None:
    play = moving(m)
    play.progress(2, 4, 4, done=True)
    play.order_ends(2)
    assert play.report(1, 3) == [], "it is not the first report: all of them are there"
    play.watch_fails(1, AWAY)
    play.fire(Timer.TARGET, after=0.25)
    play.turn(Turn.OPEN)
    assert names(play.report(3, 0)) == ["PlaceOrder"]
    assert play.report(3, 1) == []


def a_target_that_is_away_is_asked_again_for_so_long(m: Any) -> None:
    play = moving(m)
    assert play.watch_fails(1, AWAY) == [timer(Timer.TARGET, 0.25)]
    assert names(play.fire(Timer.TARGET, after=0.25)) == ["AskTurn"]
    assert names(play.turn(Turn.OPEN)) == ["OpenWatch"]
    play.now += 9.0
    assert play.watch_fails(3, AWAY) == [timer(Timer.TARGET, 0.25)]
    play.fire(Timer.TARGET)
    play.turn(Turn.OPEN)
    play.now += 0.75
    commands = play.watch_fails(4, AWAY)
    assert names(commands) == ["TellChange", "CancelOrder"]
    assert play.delivery.is_targets_fault
    assert play.delivery.error is AWAY
    assert play.delivery.released
    assert names(play.order_ends(2)) == ["End"]


def all_is_well_again_when_it_reports(m: Any) -> None:
    play = moving(m)
    play.watch_fails(1, AWAY)
    play.fire(Timer.TARGET, after=9.0)
    play.turn(Turn.OPEN)
    play.report(3, 0)
    play.now += 9.0
    assert play.watch_fails(3, AWAY) == [timer(Timer.TARGET, 0.25)]


def what_waiting_cannot_help_fails_at_once(m: Any) -> None:
    for error in FATAL:
        play = moving(m)
        assert "TellChange" in names(play.watch_fails(1, error))
        assert (play.delivery.error, play.delivery.is_targets_fault) == (error, True)
        play = moving(m)
        assert names(play.order_fails(2, error)) == ["TellChange", "CloseWatch"]
        assert (play.delivery.error, play.delivery.is_targets_fault) == (error, False)


def one_whose_target_is_away_keeps_nobody_waiting(m: Any) -> None:
    play = refused(m)
    play.fire(Timer.TURN, after=0.25)
    assert play.watch_fails(3, AWAY) == [dm.LeaveQueue(), timer(Timer.TARGET, 0.25)]
    assert play.fire(Timer.TURN) == []
    play.fire(Timer.TARGET, after=0.25)
    assert play.turn(Turn.BEHIND) == [timer(Timer.TURN, 1.0)]
    assert play.fire(Timer.TARGET) == []


def one_that_comes_back_when_others_wait_sends_nothing_meanwhile(m: Any) -> None:
    play = moving(m)
    play.watch_fails(1, AWAY)
    play.fire(Timer.TARGET, after=0.25)
    assert names(play.turn(Turn.BEHIND)) == ["TellChange", "CancelOrder", "SetTimer"]
    assert play.delivery.refused


def a_watch_that_ends_for_no_reason_is_opened_again(m: Any) -> None:
    play = moving(m)
    assert play.watch_ends(1) == [timer(Timer.TARGET, 0.25)]
    assert play.watch_ends(1) == []
    assert play.report(1, 4) == [], "it is late"


# The source ----------------------------------------------------------------------------------------------------------


def a_lost_order_is_placed_again(m: Any) -> None:
    play = moving(m)
    play.order_begins("one")
    assert play.tell(dm.OrderFailed, order=OrderId("d.2"), error=AWAY) == [], "the source is being told"
    assert play.order_ends(2) == [timer(Timer.SOURCE, 0.25)]
    assert play.order_ends(2) == []
    assert names(play.fire(Timer.SOURCE, after=0.25)) == ["CheckSource"]
    assert play.fire(Timer.SOURCE) == []
    assert names(play.tell(dm.SourceChecked, instance="one")) == ["PlaceOrder"]
    assert play.tell(dm.SourceChecked, instance="two") == [], "nobody asked"


def a_source_that_restarted_has_lost_the_blocks(m: Any) -> None:
    def checked(first: str | None, then: str | None, answer: str | None) -> list[str]:
        play = moving(m)
        play.order_begins(first)
        play.order_begins(then)
        play.order_fails(2, AWAY)
        play.fire(Timer.SOURCE, after=0.25)
        return names(play.tell(dm.SourceChecked, instance=answer))

    assert checked("one", "one", "two") == ["TellChange", "CloseWatch"]
    assert checked("one", "two", "two") == ["TellChange", "CloseWatch"], "the first one seen wrote them"
    assert checked(None, "one", "two") == ["TellChange", "CloseWatch"]
    assert checked("one", None, None) == ["PlaceOrder"], "it did not answer"
    assert checked(None, None, "two") == ["PlaceOrder"]


def a_source_that_is_away_is_asked_again_for_so_long(m: Any) -> None:
    play = moving(m)
    order = 2
    for _ in range(10):
        assert names(play.progress(order, None)) == ["RecordProgress"], "being placed is no progress"
        assert play.order_fails(order, AWAY) == [timer(Timer.SOURCE, 0.25)]
        play.fire(Timer.SOURCE, after=1.0)
        play.tell(dm.SourceChecked, instance=None)
        order += 1
    assert names(play.order_fails(order, AWAY)) == ["TellChange", "CloseWatch"]
    assert play.delivery.error is AWAY
    assert not play.delivery.is_targets_fault


def all_is_well_again_when_the_target_has_said_what_it_lacks(m: Any) -> None:
    play = moving(m)
    play.order_fails(2, AWAY)
    play.fire(Timer.SOURCE, after=9.0)
    play.tell(dm.SourceChecked, instance=None)
    play.progress(3, 2)
    play.now += 9.0
    assert play.order_fails(3, AWAY) == [timer(Timer.SOURCE, 0.25)]


def patience_with_the_source_begins_anew_with_capacity(m: Any) -> None:
    play = moving(m)
    play.order_fails(2, AWAY)
    play.watch_fails(1, NO_CAPACITY)
    play.turn(Turn.FIRST)
    assert play.fire(Timer.SOURCE, after=0.25) == [], "no order stands without capacity"
    play.fire(Timer.TURN)
    assert names(play.report(3, 0)) == ["LeaveQueue", "PlaceOrder", "TellChange"]
    play.now += 10.0
    assert play.order_fails(4, AWAY) == [timer(Timer.SOURCE, 0.25)]


def an_order_that_ends_for_no_reason_is_lost(m: Any) -> None:
    play = moving(m)
    assert play.order_ends(2) == [timer(Timer.SOURCE, 0.25)]


def an_order_that_was_cancelled_is_not_lost(m: Any) -> None:
    play = Play(m)
    play.begin()
    play.watch_fails(1, NO_CAPACITY)
    play.turn(Turn.FIRST)
    assert play.order_fails(2, AWAY) == []
    play.fire(Timer.TURN)
    play.report(3, 0)
    assert play.progress(2, 4, 4, done=True) == [], "it is late"
    assert play.delivery.num_missing is None


def what_was_sent_counts_over_all_orders(m: Any) -> None:
    play = moving(m)
    play.progress(2, 4, 1, sent=100)
    play.progress(2, 4, 2, sent=300)
    assert (play.delivery.sent, play.delivery.num_missing, play.delivery.num_lacking) == (300, 2, 4)
    play.order_fails(2, AWAY)
    play.fire(Timer.SOURCE, after=0.25)
    play.tell(dm.SourceChecked, instance=None)
    assert (play.delivery.sent, play.delivery.num_missing, play.delivery.num_lacking) == (300, None, None)
    play.progress(3, 2, 0, sent=50)
    assert (play.delivery.sent, play.delivery.num_missing) == (350, 2)
    assert play.progress(9, 0, 0, sent=999) == []
    assert play.delivery.sent == 350


def what_the_source_says_is_recorded_and_what_the_target_lacks_is_told_once(m: Any) -> None:
    play = Play(m)
    play.begin()
    assert play.progress(2, None) == [record(progress(2, None), all_there=False)]
    assert play.progress(2, 4) == [record(progress(2, 4), all_there=False), dm.TellInformed()]
    assert play.progress(2, 4, 1) == [record(progress(2, 4, 1), all_there=False)]
    assert play.tell(dm.PrefillDone) == [
        record(progress(2, 4, 1), all_there=False),
        timer(Timer.STANDSTILL, 0.0),
    ]
    assert play.tell(dm.PrefillDone) == []
    assert play.report(1, 1) == [record(progress(2, 4, 1), all_there=True), dm.TellChange()]
    assert play.report(1, 4) == [record(progress(2, 4, 1), all_there=False), dm.TellChange()]
    assert play.tell(dm.PrefillDone) == []
    play = Play(m)
    play.begin()
    assert names(play.progress(2, 3, done=True)) == ["RecordProgress", "TellInformed"], "it may be said at first"
    assert play.tell(dm.Demoted) == [], "it stands no more"


def before_prefill_is_done_not_all_is_there(m: Any) -> None:
    play = moving(m)
    assert play.progress(2, 4) == [record(progress(2, 4), all_there=False), dm.TellInformed()]


def what_fails_is_recorded_as_not_waiting_for_the_link(m: Any) -> None:
    play = moving(m)
    play.progress(2, 4)
    play.tell(dm.PrefillDone)
    assert play.look(after=3.0)[0] == record(progress(2, 4), all_there=False)


def a_demotion_reaches_the_order_that_stands(m: Any) -> None:
    play = moving(m)
    play.progress(2, 4)
    background = SendClass.BACKGROUND
    assert play.tell(dm.Demoted) == [
        record(progress(2, 4), all_there=False, send_class=background),
        dm.Reclassify(order=OrderId("d.2"), send_class=background),
    ]
    assert play.delivery.demoted
    play.order_fails(2, AWAY)
    assert play.tell(dm.Demoted) == []
    play.fire(Timer.SOURCE, after=0.25)
    (order,) = play.tell(dm.SourceChecked, instance=None)
    assert isinstance(order, dm.PlaceOrder)
    assert order.order.send_class is background


# The end -------------------------------------------------------------------------------------------------------------


def nothing_is_sent_any_more_by_the_time_that_capacity_is_given_up(m: Any) -> None:
    for play in (moving(m), ready(m)):
        assert play.tell(dm.Released) == [dm.CancelOrder(order=OrderId("d.2"))]
        assert (play.delivery.phase, play.delivery.released) == ("Stopping", True)
        assert play.tell(dm.Released) == []
        assert play.order_ends(2) == [dm.CloseWatch(watch=WatchId("d.1"))]
        assert play.delivery.phase == "Releasing"
        assert play.watch_ends(1) == [dm.End()]
        assert play.delivery.phase == "Ended"
        assert play.tell(dm.Released) == []


def an_order_that_was_cancelled_before_is_waited_for_too(m: Any) -> None:
    play = Play(m)
    play.begin()
    play.watch_fails(1, NO_CAPACITY)
    play.turn(Turn.FIRST)
    play.fire(Timer.TURN)
    play.report(3, 0)
    assert play.tell(dm.Released) == [dm.CancelOrder(order=OrderId("d.4"))]
    assert play.order_ends(4) == []
    assert play.order_ends(2) == [dm.CloseWatch(watch=WatchId("d.3"))]


def one_that_waits_for_capacity_leaves_the_queue(m: Any) -> None:
    assert names(refused(m).tell(dm.Released)) == ["LeaveQueue", "End"]
    play = refused(m)
    play.fire(Timer.TURN)
    assert play.tell(dm.Released) == [dm.CloseWatch(watch=WatchId("d.3"))], "it may have been given capacity"
    assert play.watch_fails(3, NO_CAPACITY) == [dm.End()]


def what_was_never_begun_ends_at_once(m: Any) -> None:
    play = Play(m)
    assert play.tell(dm.PrefillDone) == []
    assert play.tell(dm.Released) == [dm.End()]
    assert play.begin() == []


def a_released_one_tells_nobody_what_becomes_of_it(m: Any) -> None:
    play = moving(m)
    play.tell(dm.Released)
    assert play.report(1, 2) == []
    assert play.delivery.state is DeliveryState.MOVING
    assert play.report(1, 4) == []
    assert play.delivery.state is DeliveryState.READY, "it is true all the same"
    assert play.look() == []
    assert play.tell(dm.PrefillDone) == []
    play = moving(m)
    play.look(after=11.0)
    play.report(1, 4)
    assert play.delivery.state is DeliveryState.FAILED, "nobody counts on it any more"


def a_watch_that_is_gone_need_not_be_closed(m: Any) -> None:
    play = ready(m)
    assert play.watch_fails(1, AWAY) == [], "what was ready stays so, for those that know it"
    play.tell(dm.Released)
    assert play.order_ends(2) == [dm.End()]
    play = moving(m)
    play.tell(dm.Released)
    assert play.watch_fails(1, AWAY) == []
    assert play.order_ends(2) == [dm.End()]


def a_detached_one_ends_itself_when_its_last_acknowledgement_has_come(m: Any) -> None:
    play = moving(m)
    assert play.tell(dm.Detached) == []
    assert play.progress(2, 4) == [record(progress(2, 4), all_there=False)], "nobody is told"
    assert play.report(1, 4) == [record(progress(2, 4), all_there=False), timer(Timer.ACKNOWLEDGEMENT, 1.0)]
    assert play.delivery.phase == "Acknowledging"
    assert play.tell(dm.Released) == []
    assert names(play.progress(2, 4, 4, sent=400, done=True)) == ["RecordProgress"]
    assert play.delivery.sent == 400
    assert play.order_ends(2) == [dm.CloseWatch(watch=WatchId("d.1"))]
    assert play.fire(Timer.ACKNOWLEDGEMENT) == []
    assert play.watch_ends(1) == [dm.End()]
    assert play.delivery.state is DeliveryState.READY


def a_last_acknowledgement_is_waited_for_so_long(m: Any) -> None:
    play = ready(m)
    assert play.tell(dm.Detached) == [timer(Timer.ACKNOWLEDGEMENT, 1.0)]
    assert play.fire(Timer.ACKNOWLEDGEMENT, after=1.0) == [dm.CancelOrder(order=OrderId("d.2"))]
    assert play.order_ends(2) == [dm.CloseWatch(watch=WatchId("d.1"))]
    play = ready(m)
    play.tell(dm.Detached)
    assert play.order_fails(2, AWAY) == [dm.CloseWatch(watch=WatchId("d.1"))], "it won't come any more"
    play = moving(m)
    play.tell(dm.Detached)
    assert play.tell(dm.Released) == [dm.CancelOrder(order=OrderId("d.2"))], "what is given up is not acknowledged"


def only_its_own_order_has_the_last_acknowledgement(m: Any) -> None:
    play = Play(m)
    play.begin()
    play.watch_fails(1, NO_CAPACITY)
    play.turn(Turn.FIRST)
    play.fire(Timer.TURN)
    play.report(3, 0)
    play.tell(dm.Detached)
    assert play.report(3, 4) == [timer(Timer.ACKNOWLEDGEMENT, 1.0)]
    assert play.order_ends(2) == []
    assert play.delivery.phase == "Acknowledging"
    assert play.order_ends(4) == [dm.CloseWatch(watch=WatchId("d.3"))]


def one_that_is_detached_after_its_last_acknowledgement_ends_at_once(m: Any) -> None:
    play = ready(m)
    play.progress(2, 4, 4, done=True)
    play.order_ends(2)
    assert play.tell(dm.Detached) == [dm.CloseWatch(watch=WatchId("d.1"))]
    play = ready(m)
    assert play.order_ends(2) == [], "it needs no other"
    assert play.tell(dm.Detached) == [dm.CloseWatch(watch=WatchId("d.1"))]


def a_detached_one_that_fails_tells_nobody(m: Any) -> None:
    play = moving(m)
    play.tell(dm.Detached)
    assert names(play.watch_fails(1, FATAL[0])) == ["CancelOrder"]
    assert names(play.order_ends(2)) == ["End"]


def whose_commands_cannot_be_carried_out_has_failed(m: Any) -> None:
    play = moving(m)
    assert play.tell(dm.Crashed) == [dm.TellChange()]
    assert (play.delivery.phase, play.delivery.state) == ("Ended", DeliveryState.FAILED)
    assert play.order_ends(2) == []
    assert play.watch_ends(1) == []
    play = ready(m)
    assert play.tell(dm.Crashed) == []
    assert play.delivery.state is DeliveryState.READY
    play = refused(m)
    play.tell(dm.Released)
    assert play.tell(dm.Crashed) == []
    assert play.delivery.state is DeliveryState.REFUSED
    for event in (dm.Detached, dm.Released):
        play = moving(m)
        play.tell(event)
        assert play.tell(dm.Crashed) == []
        assert play.delivery.state is DeliveryState.FAILED


# Standstill ----------------------------------------------------------------------------------------------------------


def lasts(play: Play, **seen: Any) -> float:
    """How long it stands still before it fails. Looks whenever it wants to."""
    play.tell(dm.PrefillDone)
    begun, commands = play.now, play.look(**seen)
    while play.delivery.state is not DeliveryState.FAILED:
        assert play.now < begun + 1000.0
        (again,) = commands
        assert isinstance(again, dm.SetTimer)
        assert 0.25 <= again.delay <= 2.0
        commands = play.look(after=again.delay, **seen)
    assert isinstance(play.delivery.error, NodeFailed)
    return round(play.now - begun, 1)


def informed(play: Play) -> Play:
    play.progress(2, 4)
    return play


def each_that_it_waits_for_has_a_patience_of_its_own(m: Any) -> None:
    background = {"send_class": SendClass.BACKGROUND}
    assert lasts(moving(m)) == 10.0, "the target has not said what it lacks"
    assert lasts(informed(moving(m))) == 3.0, "the source has nothing to send"
    assert lasts(informed(moving(m)), late=True) == 3.0
    assert lasts(informed(moving(m)), link=owing(normal=1), late=True) == 3.0
    assert lasts(moving(m), late=True) == 3.0
    assert lasts(informed(moving(m)), link=owing(normal=1)) == 30.0, "the link has something to send"
    assert lasts(moving(m), link=owing(background=1)) == 10.0
    assert lasts(moving(m, target=NodeId("s"))) == 1.0
    assert lasts(informed(moving(m, **background))) == 3.0
    assert lasts(moving(m, **background)) == 30.0
    assert lasts(informed(moving(m, **background)), link=owing(normal=1)) == 30.0
    assert lasts(informed(moving(m, **background)), link=owing(background=1)) == 30.0


def while_others_are_served_it_waits_for_its_turn(m: Any) -> None:
    now = {"link_moved_at": 10_000.0}
    assert lasts(informed(moving(m)), link=owing(normal=1000, rate=10.0), **now) == 200.0, "twice the queue"
    assert lasts(informed(moving(m)), link=owing(normal=1000, rate=1.0), **now) == 300.0
    assert lasts(informed(moving(m)), link=owing(normal=1000, rate=1000.0), **now) == 30.0
    assert lasts(informed(moving(m)), **now) == 3.0
    assert lasts(moving(m), **now) == 10.0
    demoted = informed(moving(m, send_class=SendClass.BACKGROUND))
    assert lasts(demoted, link=owing(normal=1000, rate=10.0), **now) == 200.0, (
        "as long as the link has nothing to spare"
    )


def the_longest_queue_counts_until_something_arrives(m: Any) -> None:
    play = informed(moving(m))
    play.tell(dm.PrefillDone)
    play.look(link=owing(normal=1000, rate=10.0), link_moved_at=1e4)
    for _ in range(50):
        assert names(play.look(after=2.0, link=owing(normal=10, rate=10.0), link_moved_at=1e4)) == ["SetTimer"]
    play.report(1, 1)
    assert lasts(play, link=owing(normal=10, rate=10.0), link_moved_at=1e4) == 30.0


def what_arrives_begins_the_wait_anew(m: Any) -> None:
    for arrives in (
        lambda play: play.report(1, 1),
        lambda play: play.progress(2, 4, 1),
        lambda play: play.tell(dm.Demoted),
    ):
        play = informed(moving(m))
        play.now = 2.0
        assert play.delivery.idle(2.0) == 2.0
        arrives(play)
        assert play.delivery.idle(2.0) == 0.0
    play = informed(moving(m))
    play.now = 2.0
    play.report(1, 0)
    play.progress(2, 4)
    assert play.delivery.idle(2.0) == 2.0, "nothing has arrived"
    play.tell(dm.PrefillDone)
    assert play.delivery.idle(2.0) == 0.0
    play = Play(m)
    play.now = 2.0
    play.begin()
    assert play.delivery.idle(2.0) == 0.0
    play.now = 3.0
    play.report(1, 2)
    assert play.delivery.idle(3.0) == 1.0, "it was there before"


def with_capacity_the_wait_begins_anew(m: Any) -> None:
    play = refused(m)
    play.fire(Timer.TURN, after=2.0)
    play.report(3, 0)
    assert play.delivery.idle(2.0) == 0.0


def one_without_capacity_does_not_stand_still(m: Any) -> None:
    play = refused(m)
    play.tell(dm.PrefillDone)
    assert play.look(after=20.0) == [timer(Timer.STANDSTILL, 0.25)]


def a_process_that_did_not_run_blames_nobody(m: Any) -> None:
    play = informed(moving(m))
    play.tell(dm.PrefillDone)
    assert play.look() == [timer(Timer.STANDSTILL, 2.0)]
    (again,) = play.look(after=100.0)
    assert isinstance(again, dm.SetTimer)
    assert again.delay == 1.0
    play = informed(moving(m))
    play.tell(dm.PrefillDone)
    assert play.look(after=0.9) == [timer(Timer.STANDSTILL, 2.0)]
    play.look(after=2.2)
    assert play.delivery.state is DeliveryState.FAILED, "a little late is no excuse"


def a_demoted_one_says_that_the_link_had_nothing_to_spare(m: Any) -> None:
    play = moving(m)
    play.look(after=11.0)
    assert "standstill" in str(play.delivery.error)
    play = moving(m, send_class=SendClass.BACKGROUND)
    play.look(after=201.0)
    assert "spare" in str(play.delivery.error)


def it_says_where_it_is(m: Any) -> None:
    play = moving(m)
    for part in ("d", "s->t", "Moving", "d.2", "d.1"):
        assert part in repr(play.delivery)
    assert "Ready" in repr(ready(m).delivery)
    assert play.fire(Timer.STANDSTILL) == []


def what_nobody_awaits_changes_nothing(m: Any) -> None:
    assert Play(m).turn(Turn.OPEN) == []
    for play in (Play(m), moving(m), ready(m)):
        phase = play.delivery.phase
        for timer_ in Timer:
            assert play.fire(timer_) == []
        assert play.tell(dm.TurnChanged) == []
        assert play.tell(dm.SourceChecked, instance="other") == []
        assert play.report(9, 4) == []
        assert play.watch_fails(9, AWAY) == []
        assert play.order_ends(9) == []
        assert play.delivery.phase == phase


SCRIPTS = tuple(
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and name not in ("moving", "refused", "ready", "lasts", "informed")
)
