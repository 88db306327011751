"""Replication's rules, one by one, on both sides' state machines."""

from __future__ import annotations

from collections.abc import Container

import pytest

from pdd.core.blocks import BlockHash
from pdd.core.errors import LocalProtocolError, RemoteProtocolError
from pdd.core.ids import NodeInstance
from pdd.core.request import SendClass
from pdd.core.units import Bytes, Seconds
from pdd.index.blocks import BlockIndex, Owner
from pdd.protocol.arrivals import Arrivals, SourceKey
from pdd.protocol.orders import Command, LetGo, OrderChanged, OrderEnded, OrderFailure, OrderKey, Send
from pdd.protocol.peer import (
    Deferred,
    Elsewhere,
    ErrorKind,
    Have,
    Offer,
    OfferAnswer,
    Pong,
    Rejected,
    Stored,
    Want,
    Withdraw,
)
from pdd.protocol.transfer import MAX_OFFER_HASHES, SourceTransfer
from tests.support.transfer_world import BLOCK_BYTES, ENGINE, TransferWorld

ORDER, OTHER = OrderKey("order"), OrderKey("other")
FIRST, SECOND = SourceKey("first"), SourceKey("second")


def chain(count: int) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(n.to_bytes(32, "big")) for n in range(count))


def source(*held: BlockHash, window_blocks: int = 4, written: Container[BlockHash] = ()) -> SourceTransfer:
    transfer = SourceTransfer(
        block_bytes=BLOCK_BYTES,
        window_bytes=Bytes(window_blocks * BLOCK_BYTES),
        holds=set(held).__contains__,
        is_writing=written.__contains__,
    )
    transfer.connected(NodeInstance("1"))
    return transfer


def sent(commands: list[Command]) -> list[object]:
    return [command.message for command in commands if isinstance(command, Send)]


def kind_of_failure(commands: list[Command]) -> ErrorKind | None:
    (failure,) = [command.failure for command in commands if isinstance(command, OrderEnded)]
    return None if failure is None else failure.error


def ended(commands: list[Command]) -> dict[OrderKey, str | None]:
    return {
        command.order: None if command.failure is None else command.failure.reason
        for command in commands
        if isinstance(command, OrderEnded)
    }


def lacked(transfer: SourceTransfer, *, offer: int = 1, indices: tuple[int, ...]) -> list[Command]:
    transfer.take_commands()
    transfer.received(OfferAnswer(offer=offer, lacked=indices, elsewhere=()))
    return transfer.take_commands()


def in_flight(count: int = 1) -> SourceTransfer:
    """A source that has just sent ``count`` blocks of one order."""
    transfer = source(*chain(count))
    transfer.place(ORDER, chain(count))
    lacked(transfer, indices=tuple(range(count)))
    for _ in range(count):
        assert transfer.next_block() is not None
    return transfer


def test_an_order_is_offered_at_once_with_what_is_present():
    transfer = source(chain(2)[0])
    transfer.place(ORDER, chain(2))
    assert sent(transfer.take_commands()) == [Offer(offer=1, hashes=chain(2), present=(True, False))]


def test_large_orders_are_offered_in_pieces():
    transfer = source()
    transfer.place(ORDER, chain(MAX_OFFER_HASHES + 1))
    assert [len(offer.hashes) for offer in sent(transfer.take_commands())] == [MAX_OFFER_HASHES, 1]


def test_orders_take_turns_and_each_goes_in_order():
    blocks = chain(4)
    transfer = source(*blocks)
    transfer.place(ORDER, blocks[:2])
    transfer.place(OTHER, blocks[2:])
    lacked(transfer, offer=1, indices=(0, 1))
    lacked(transfer, offer=2, indices=(0, 1))
    turns = [transfer.next_block() for _ in range(4)]
    assert [turn.hash for turn in turns if turn] == [blocks[0], blocks[2], blocks[1], blocks[3]]


def test_the_window_bounds_what_is_unacknowledged_but_lets_one_block_pass():
    transfer = source(*chain(3), window_blocks=0)
    transfer.place(ORDER, chain(3))
    lacked(transfer, indices=(0, 1, 2))
    assert transfer.next_block() is not None
    assert transfer.next_block() is None
    transfer.received(Stored(hash=chain(1)[0]))
    assert transfer.next_block() is not None


def test_backlog_counts_what_the_target_lacks_until_it_is_acknowledged():
    transfer = source(*chain(3))
    transfer.place(ORDER, chain(3))
    assert transfer.queue.backlog == 0
    lacked(transfer, indices=(0, 2))
    assert transfer.queue.backlog == 2 * BLOCK_BYTES
    transfer.next_block()
    assert transfer.queue.backlog == 2 * BLOCK_BYTES
    transfer.received(Stored(hash=chain(1)[0]))
    assert transfer.queue.backlog == BLOCK_BYTES


def test_backlog_counts_only_what_is_at_hand():
    transfer = source(chain(2)[0])
    transfer.place(ORDER, chain(2))
    lacked(transfer, indices=(0, 1))
    assert transfer.queue.backlog == BLOCK_BYTES
    transfer.block_held(chain(2)[1])
    assert transfer.queue.backlog == 2 * BLOCK_BYTES
    transfer.block_gone(chain(2)[0])
    assert transfer.queue.backlog == BLOCK_BYTES


def evicted_before_it_was_sent(*, written: Container[BlockHash] = ()) -> SourceTransfer:
    """A source whose one order waits for a block that has gone; it has noticed that at 10 s."""
    transfer = source(*chain(1), written=written)
    transfer.place(ORDER, chain(1))
    transfer.block_gone(chain(1)[0])
    lacked(transfer, indices=(0,))
    transfer.fail_evicted(now=Seconds(10.0), grace=Seconds(3.0))
    return transfer


def test_an_order_whose_block_was_evicted_fails_after_a_grace():
    transfer = evicted_before_it_was_sent()
    transfer.fail_evicted(now=Seconds(12.9), grace=Seconds(3.0))
    assert ended(transfer.take_commands()) == {}
    transfer.fail_evicted(now=Seconds(13.0), grace=Seconds(3.0))
    commands = transfer.take_commands()
    assert "evicted" in (ended(commands)[ORDER] or "")
    assert kind_of_failure(commands) is ErrorKind.BLOCKS_LOST
    assert (transfer.num_orders, transfer.queue.backlog) == (0, 0)


def test_an_evicted_block_that_is_written_again_or_comes_back_fails_nothing():
    writing = set(chain(1))
    transfer = evicted_before_it_was_sent(written=writing)
    transfer.fail_evicted(now=Seconds(14.0), grace=Seconds(3.0))
    writing.clear()
    transfer.block_held(chain(1)[0])
    transfer.fail_evicted(now=Seconds(99.0), grace=Seconds(3.0))
    assert ended(transfer.take_commands()) == {}
    assert transfer.next_block() is not None


def test_a_block_that_never_was_here_is_waited_for():
    transfer = source()
    transfer.place(ORDER, chain(1))
    lacked(transfer, indices=(0,))
    for now in (0.0, 100.0):
        transfer.fail_evicted(now=Seconds(now), grace=Seconds(3.0))
    assert ended(transfer.take_commands()) == {}


def test_an_evicted_block_that_another_source_is_to_send_fails_nothing():
    transfer = source(*chain(1))
    transfer.place(ORDER, chain(1))
    transfer.block_gone(chain(1)[0])
    transfer.received(OfferAnswer(offer=1, lacked=(), elsewhere=(0,)))
    for now in (0.0, 100.0):
        transfer.fail_evicted(now=Seconds(now), grace=Seconds(3.0))
    assert ended(transfer.take_commands()) == {}


def test_what_a_restarted_target_forgot_and_the_source_evicted_fails_too():
    held = set(chain(2))
    transfer = SourceTransfer(
        block_bytes=BLOCK_BYTES, window_bytes=Bytes(100), holds=held.__contains__, is_writing=lambda _: False
    )
    transfer.connected(NodeInstance("1"))
    transfer.place(ORDER, chain(2))
    transfer.received(OfferAnswer(offer=1, lacked=(1,), elsewhere=()))
    held.discard(chain(2)[0])
    transfer.disconnected()
    transfer.connected(NodeInstance("2"))
    lacked(transfer, offer=2, indices=(0, 1))
    for now in (0.0, 3.0):
        transfer.fail_evicted(now=Seconds(now), grace=Seconds(3.0))
    assert "evicted" in (ended(transfer.take_commands())[ORDER] or "")


def test_an_order_placed_twice_is_our_own_mistake():
    transfer = source()
    transfer.place(ORDER, chain(1))
    with pytest.raises(LocalProtocolError):
        transfer.place(ORDER, chain(1))


def test_a_second_order_for_a_lacked_block_knows_that_it_is_missing():
    transfer = source(*chain(1))
    transfer.place(ORDER, chain(1))
    lacked(transfer, indices=(0,))
    transfer.place(OTHER, chain(1))
    assert sent(transfer.take_commands()) == []
    assert transfer.standing(OTHER).num_missing == 1
    transfer.next_block()
    transfer.received(Stored(hash=chain(1)[0]))
    assert ended(transfer.take_commands()) == {ORDER: None, OTHER: None}


def test_cancelling_withdraws_only_what_no_other_order_wants():
    transfer = source()
    transfer.place(ORDER, chain(2))
    transfer.place(OTHER, chain(1))
    transfer.take_commands()
    transfer.cancel(ORDER)
    assert sent(transfer.take_commands()) == [Withdraw(hashes=chain(2)[1:])]
    transfer.cancel(ORDER)
    assert transfer.take_commands() == []


def test_a_block_that_was_damaged_is_sent_again_but_not_for_ever():
    transfer = in_flight()
    (block,) = chain(1)
    for _ in range(2):
        transfer.received(Rejected(hash=block))
        assert transfer.next_block() is not None
    transfer.received(Rejected(hash=block))
    commands = transfer.take_commands()
    failure = ended(commands)[ORDER]
    assert kind_of_failure(commands) is ErrorKind.NODE_FAILED
    assert failure is not None
    assert "damaged 3 times" in failure
    assert (transfer.num_orders, transfer.queue.backlog) == (0, 0)


@pytest.mark.parametrize("answer", [Rejected, Deferred])
def test_a_block_in_flight_that_nobody_wants_any_more_is_withdrawn_if_it_did_not_land(answer):
    transfer = in_flight()
    transfer.cancel(ORDER)
    assert sent(transfer.take_commands()) == []
    transfer.received(answer(hash=chain(1)[0]))
    assert sent(transfer.take_commands()) == [Withdraw(hashes=chain(1))]


def in_flight_for_another_order() -> SourceTransfer:
    """The order for which it was sent was cancelled; the target, which has not seen it yet, says that it lacks it."""
    transfer = in_flight()
    transfer.cancel(ORDER)
    transfer.place(OTHER, chain(1))
    lacked(transfer, offer=2, indices=(0,))
    return transfer


def test_a_block_still_on_the_line_for_a_cancelled_order_is_not_sent_again_for_the_next_one():
    transfer = in_flight_for_another_order()
    assert transfer.next_block() is None
    transfer.received(Stored(hash=chain(1)[0]))
    assert ended(transfer.take_commands()) == {OTHER: None}


def test_a_block_that_was_damaged_on_the_line_for_a_cancelled_order_is_sent_again_for_the_next_one():
    transfer = in_flight_for_another_order()
    transfer.received(Rejected(hash=chain(1)[0]))
    assert transfer.next_block() is not None


def test_a_deferred_block_waits_until_it_is_wanted():
    transfer = in_flight()
    transfer.received(Deferred(hash=chain(1)[0]))
    assert transfer.next_block() is None
    transfer.received(Want(hashes=chain(1)))
    assert transfer.next_block() is not None


def test_a_block_that_comes_from_elsewhere_counts_as_acknowledged():
    transfer = source(*chain(1))
    transfer.place(ORDER, chain(1))
    transfer.received(OfferAnswer(offer=1, lacked=(), elsewhere=(0,)))
    assert transfer.next_block() is None
    transfer.received(Have(hashes=chain(1)))
    (end,) = [command for command in transfer.take_commands() if isinstance(command, OrderEnded)]
    assert (end.standing.num_missing, end.standing.num_acknowledged, end.standing.sent_bytes) == (1, 1, 0)


def test_a_block_passed_to_another_source_is_not_sent():
    transfer = source(*chain(1))
    transfer.place(ORDER, chain(1))
    lacked(transfer, indices=(0,))
    transfer.received(Elsewhere(hashes=chain(1)))
    assert transfer.next_block() is None


def test_a_block_that_appears_while_another_source_was_to_send_it_is_offered_again():
    transfer = source()
    transfer.place(ORDER, chain(1))
    transfer.received(OfferAnswer(offer=1, lacked=(), elsewhere=(0,)))
    transfer.take_commands()
    transfer.block_held(chain(1)[0])
    assert sent(transfer.take_commands()) == [Offer(offer=2, hashes=chain(1), present=(True,))]


def test_a_block_that_appeared_before_the_answer_elsewhere_is_offered_again():
    transfer = source()
    transfer.place(ORDER, chain(1))
    transfer.block_held(chain(1)[0])
    transfer.take_commands()
    transfer.received(OfferAnswer(offer=1, lacked=(), elsewhere=(0,)))
    assert sent(transfer.take_commands()) == [Offer(offer=2, hashes=chain(1), present=(True,))]


def test_an_evicted_block_is_sent_when_it_appears_again():
    transfer = source(*chain(1))
    transfer.place(ORDER, chain(1))
    lacked(transfer, indices=(0,))
    transfer.block_gone(chain(1)[0])
    assert transfer.next_block() is None
    transfer.block_held(chain(1)[0])
    assert transfer.next_block() is not None


def test_a_block_that_could_not_be_leased_is_tried_again():
    transfer = in_flight()
    transfer.disconnected()
    transfer.connected(NodeInstance("1"))
    lacked(transfer, offer=2, indices=(0,))
    before = transfer.standing(ORDER).sent_bytes
    sent_block = transfer.next_block()
    assert sent_block is not None
    transfer.put_back(sent_block)
    assert transfer.standing(ORDER).sent_bytes == before
    assert (transfer.next_block(), transfer.queue.num_in_flight) == (None, 0)
    transfer.retry_held_back()
    assert transfer.next_block() == sent_block


@pytest.mark.parametrize("is_refused_first", [True, False])
def test_an_order_fails_when_a_block_the_target_lacks_found_no_room_here(is_refused_first: bool):
    transfer = source()
    transfer.place(ORDER, chain(1))
    if is_refused_first:
        transfer.block_refused(chain(1)[0])
        commands = lacked(transfer, indices=(0,))
    else:
        lacked(transfer, indices=(0,))
        transfer.block_refused(chain(1)[0])
        commands = transfer.take_commands()
    assert "full" in (ended(commands)[ORDER] or "")
    assert kind_of_failure(commands) is ErrorKind.BLOCKS_LOST


def test_room_refused_for_a_block_the_target_holds_is_no_failure():
    transfer = source()
    transfer.place(ORDER, chain(1))
    transfer.block_refused(chain(1)[0])
    transfer.block_refused(BlockHash(bytes(32)[::-1]))
    transfer.received(OfferAnswer(offer=1, lacked=(), elsewhere=()))
    assert ended(transfer.take_commands()) == {ORDER: None}


def test_a_lost_line_forgets_what_was_under_way_and_offers_the_rest_again():
    transfer = in_flight(3)
    transfer.received(Stored(hash=chain(1)[0]))
    transfer.take_commands()
    transfer.disconnected()
    assert (transfer.queue.num_in_flight, transfer.awaits_answer, transfer.next_block()) == (0, False, None)
    transfer.connected(NodeInstance("1"))
    assert sent(transfer.take_commands()) == [Offer(offer=2, hashes=chain(3)[1:], present=(True, True))]


def test_a_restarted_target_is_offered_what_it_had_acknowledged_too():
    transfer = in_flight(3)
    transfer.received(Stored(hash=chain(1)[0]))
    transfer.disconnected()
    transfer.connected(NodeInstance("2"))
    (offer,) = sent(transfer.take_commands())
    assert set(offer.hashes) == set(chain(3))
    assert transfer.standing(ORDER).num_missing is None
    assert transfer.standing(ORDER).num_acknowledged == 0


def test_orders_placed_while_the_line_is_down_are_offered_when_it_opens():
    transfer = SourceTransfer(
        block_bytes=BLOCK_BYTES, window_bytes=Bytes(100), holds=lambda _: True, is_writing=lambda _: False
    )
    transfer.place(ORDER, chain(1))
    assert sent(transfer.take_commands()) == []
    transfer.connected(NodeInstance("1"))
    assert len(sent(transfer.take_commands())) == 1


def test_all_orders_fail_together():
    transfer = source()
    transfer.place(ORDER, chain(2))
    transfer.place(OTHER, chain(1))
    transfer.fail_all(OrderFailure(error=ErrorKind.NODE_FAILED, reason="gone"))
    assert ended(transfer.take_commands()) == {ORDER: "gone", OTHER: "gone"}


@pytest.mark.parametrize(
    "answer",
    [
        OfferAnswer(offer=9, lacked=(), elsewhere=()),
        OfferAnswer(offer=1, lacked=(0,), elsewhere=(0,)),
        OfferAnswer(offer=1, lacked=(2,), elsewhere=()),
        OfferAnswer(offer=1, lacked=(-1,), elsewhere=()),
        Stored(hash=chain(1)[0]),
        Rejected(hash=chain(1)[0]),
        Deferred(hash=chain(1)[0]),
    ],
)
def test_answers_to_nothing_are_the_targets_fault(answer):
    transfer = source(*chain(2))
    transfer.place(ORDER, chain(2))
    with pytest.raises(RemoteProtocolError):
        transfer.received(answer)


def test_messages_about_blocks_that_nobody_wants_are_ignored():
    transfer = source()
    for message in (Have(hashes=chain(1)), Want(hashes=chain(1)), Elsewhere(hashes=chain(1)), Pong()):
        transfer.received(message)
    assert transfer.take_commands() == []


# --- classes


def classes(*orders: tuple[OrderKey, tuple[BlockHash, ...], SendClass], window_blocks: int = 99) -> SourceTransfer:
    """A source with orders of which the target lacks every block that is here."""
    transfer = source(*(block for _, blocks, _ in orders for block in blocks), window_blocks=window_blocks)
    for key, blocks, send_class in orders:
        transfer.place(key, blocks, send_class)
        for command in transfer.take_commands():
            if isinstance(command, Send) and isinstance(command.message, Offer):
                indices = tuple(range(len(command.message.hashes)))
                transfer.received(OfferAnswer(offer=command.message.offer, lacked=indices, elsewhere=()))
    transfer.take_commands()
    return transfer


def sending(transfer: SourceTransfer) -> list[BlockHash]:
    """What goes out now."""
    blocks: list[BlockHash] = []
    while (sent_block := transfer.next_block()) is not None:
        blocks.append(sent_block.hash)
    return blocks


def backlogs(transfer: SourceTransfer) -> tuple[float, float]:
    """Blocks of the normal class and of the other."""
    return transfer.queue.backlog / BLOCK_BYTES, transfer.queue.background_backlog / BLOCK_BYTES


NORMAL, BACKGROUND = SendClass.NORMAL, SendClass.BACKGROUND
FEW, MANY = chain(9)[:2], chain(9)[2:]


def test_a_background_block_goes_only_when_no_normal_one_can():
    transfer = classes((OTHER, MANY, BACKGROUND), (ORDER, FEW, NORMAL))
    transfer.queue.background_window = Bytes(3 * BLOCK_BYTES)
    assert sending(transfer) == [*FEW, *MANY[:3]]
    assert backlogs(transfer) == (2, 7)


def test_of_background_blocks_one_is_on_its_way_unless_more_are_allowed():
    transfer = classes((OTHER, MANY, BACKGROUND))
    assert sending(transfer) == [MANY[0]]
    transfer.received(Stored(hash=MANY[0]))
    assert sending(transfer) == [MANY[1]]
    transfer.queue.background_window = Bytes(2 * BLOCK_BYTES)
    assert sending(transfer) == [MANY[2]]


def test_background_blocks_leave_the_window_to_others_and_share_it_with_them():
    transfer = classes((OTHER, MANY, BACKGROUND), (ORDER, FEW, NORMAL), window_blocks=2)
    assert sending(transfer) == [*FEW]
    transfer.received(Stored(hash=FEW[0]))
    assert sending(transfer) == [MANY[0]]


def test_a_background_block_that_did_not_arrive_makes_room_for_another():
    transfer = classes((OTHER, MANY, BACKGROUND))
    sending(transfer)
    transfer.received(Deferred(hash=MANY[0]))
    assert sending(transfer) == [MANY[1]]
    transfer.disconnected()
    transfer.connected(NodeInstance("1"))
    lacked(transfer, offer=2, indices=(0,))
    assert len(sending(transfer)) == 1


def test_a_block_that_orders_of_both_classes_want_is_normal():
    transfer = classes((OTHER, MANY, BACKGROUND), (ORDER, MANY[4:5], NORMAL))
    assert backlogs(transfer) == (1, 6)
    assert sending(transfer) == [MANY[4], MANY[0]]
    transfer.cancel(ORDER)
    assert backlogs(transfer) == (0, 7)


def test_an_order_that_steps_back_lets_others_pass_and_one_that_comes_forward_passes():
    transfer = classes((ORDER, FEW, NORMAL), (OTHER, MANY, NORMAL))
    transfer.reclassify(OTHER, BACKGROUND)
    assert backlogs(transfer) == (2, 7)
    assert sending(transfer) == [*FEW, MANY[0]]
    transfer.reclassify(OTHER, NORMAL)
    assert backlogs(transfer) == (9, 0)
    assert sending(transfer) == [*MANY[1:]]


def test_a_change_of_class_is_told_and_one_to_the_same_class_is_not():
    transfer = classes((ORDER, FEW, NORMAL))
    for send_class, is_told in ((NORMAL, False), (BACKGROUND, True), (BACKGROUND, False), (NORMAL, True)):
        transfer.reclassify(ORDER, send_class)
        assert [type(command) for command in transfer.take_commands()] == [OrderChanged] * is_told
    transfer.reclassify(OTHER, BACKGROUND)
    assert transfer.take_commands() == []


def test_orders_that_change_their_class_keep_one_turn():
    transfer = classes((ORDER, FEW, NORMAL), (OTHER, MANY, NORMAL))
    for send_class in (BACKGROUND, NORMAL, BACKGROUND, NORMAL):
        transfer.reclassify(ORDER, send_class)
    assert sending(transfer)[:4] == [MANY[0], FEW[0], MANY[1], FEW[1]]


def test_an_order_of_either_class_that_was_cancelled_has_no_turn():
    for send_class in SendClass:
        transfer = classes((ORDER, FEW, send_class), (OTHER, MANY[:1], send_class))
        transfer.cancel(ORDER)
        assert sending(transfer) == [MANY[0]]


def test_what_appears_later_and_what_a_restarted_target_lacks_again_keep_their_class():
    transfer = source()
    transfer.place(OTHER, MANY[:2], BACKGROUND)
    lacked(transfer, indices=(0, 1))
    transfer.block_held(MANY[0])
    assert backlogs(transfer) == (0, 1)
    transfer.next_block()
    transfer.received(Stored(hash=MANY[0]))
    transfer.disconnected()
    transfer.connected(NodeInstance("2"))
    transfer.block_held(MANY[0])
    lacked(transfer, offer=2, indices=(0, 1))
    transfer.block_held(MANY[1])
    assert backlogs(transfer) == (0, 2)


def test_after_a_restart_of_the_target_an_order_still_changes_its_class_whole():
    transfer = classes((ORDER, FEW, NORMAL))
    transfer.next_block()
    transfer.received(Stored(hash=FEW[0]))
    transfer.disconnected()
    transfer.connected(NodeInstance("2"))
    lacked(transfer, offer=2, indices=(0, 1))
    transfer.reclassify(ORDER, BACKGROUND)
    assert backlogs(transfer) == (0, 2)


@pytest.mark.parametrize("send_class", SendClass)
def test_orders_keep_one_turn_each_after_a_lost_line(send_class: SendClass):
    transfer = classes((ORDER, FEW, send_class), (OTHER, MANY, send_class))
    transfer.disconnected()
    assert transfer.next_block() is None
    transfer.connected(NodeInstance("1"))
    lacked(transfer, offer=3, indices=tuple(range(9)))
    transfer.queue.background_window = Bytes(99 * BLOCK_BYTES)
    assert sending(transfer)[:5] == [FEW[0], MANY[0], FEW[1], MANY[1], MANY[2]]


def test_an_order_that_steps_back_after_a_lost_line_has_no_turn_left_among_the_others():
    transfer = classes((ORDER, FEW, NORMAL), (OTHER, MANY, NORMAL))
    transfer.disconnected()
    transfer.connected(NodeInstance("1"))
    lacked(transfer, offer=3, indices=tuple(range(9)))
    transfer.reclassify(OTHER, BACKGROUND)
    assert sending(transfer) == [*FEW, MANY[0]]


def test_an_order_is_told_of_once_however_much_has_changed():
    transfer = classes((ORDER, FEW, NORMAL))
    sending(transfer)
    for block in FEW:
        transfer.received(Stored(hash=block))
    assert [type(command) for command in transfer.take_commands()] == [LetGo, LetGo, OrderEnded]


# --- the target's side


def target(capacity: int = 4) -> tuple[BlockIndex, Arrivals]:
    index = BlockIndex(capacity)
    return index, Arrivals(index)


def offer(*blocks: BlockHash, present: bool = True) -> Offer:
    return Offer(offer=1, hashes=blocks, present=(present,) * len(blocks))


def answer(lacked_indices: tuple[int, ...] = (), elsewhere: tuple[int, ...] = ()) -> OfferAnswer:
    return OfferAnswer(offer=1, lacked=lacked_indices, elsewhere=elsewhere)


def test_the_first_source_gets_the_claim_and_the_second_waits():
    _, arrivals = target()
    arrivals.offered(FIRST, offer(*chain(1)))
    arrivals.offered(SECOND, offer(*chain(1)))
    assert arrivals.take_messages() == [(FIRST, answer((0,))), (SECOND, answer(elsewhere=(0,)))]


def test_a_source_that_has_the_block_takes_the_claim_of_one_that_expects_it():
    _, arrivals = target()
    arrivals.offered(FIRST, offer(*chain(1), present=False))
    arrivals.offered(SECOND, offer(*chain(1)))
    assert arrivals.take_messages()[1:] == [(FIRST, Elsewhere(hashes=chain(1))), (SECOND, answer((0,)))]


@pytest.mark.parametrize("is_lost", [True, False])
def test_when_the_claimant_goes_a_source_that_has_the_block_is_asked(is_lost: bool):
    _, arrivals = target()
    third = SourceKey("third")
    arrivals.offered(FIRST, offer(*chain(1)))
    arrivals.offered(SECOND, offer(*chain(1), present=False))
    arrivals.offered(third, offer(*chain(1)))
    arrivals.take_messages()
    if is_lost:
        arrivals.lost(FIRST)
    else:
        arrivals.withdrawn(FIRST, Withdraw(hashes=chain(1)))
    assert arrivals.take_messages() == [(third, Want(hashes=chain(1)))]


def test_a_block_that_lands_is_no_longer_wanted_from_others():
    _, arrivals = target()
    arrivals.offered(FIRST, offer(*chain(1)))
    arrivals.offered(SECOND, offer(*chain(1)))
    arrivals.take_messages()
    arrivals.stored(FIRST, chain(1)[0])
    assert arrivals.take_messages() == [(FIRST, Stored(hash=chain(1)[0])), (SECOND, Have(hashes=chain(1)))]
    assert arrivals.num_open == 0


def test_a_block_that_is_written_locally_is_waited_for_and_asked_for_if_that_fails():
    index, arrivals = target()
    (write,) = index.begin_write(ENGINE, chain(1)).writes
    arrivals.offered(FIRST, offer(*chain(1)))
    assert arrivals.take_messages() == [(FIRST, answer(elsewhere=(0,)))]
    arrivals.reconsider()
    assert arrivals.take_messages() == []
    index.abort(ENGINE, write)
    arrivals.reconsider()
    assert arrivals.take_messages() == [(FIRST, Want(hashes=chain(1)))]


def test_a_block_that_found_no_room_is_asked_for_when_there_is_some():
    index, arrivals = target(capacity=1)
    index.reserve(Owner("watch"), (), 1)
    arrivals.offered(FIRST, offer(*chain(1)))
    arrivals.deferred(FIRST, chain(1)[0])
    arrivals.reconsider()
    assert arrivals.take_messages() == [(FIRST, answer((0,))), (FIRST, Deferred(hash=chain(1)[0]))]
    index.release_owner(Owner("watch"))
    arrivals.reconsider()
    assert arrivals.take_messages() == [(FIRST, Want(hashes=chain(1)))]


def test_a_block_that_arrives_from_a_source_without_the_claim_takes_it():
    _, arrivals = target()
    arrivals.offered(FIRST, offer(*chain(1)))
    arrivals.take_messages()
    arrivals.arriving(SECOND, chain(1)[0])
    assert arrivals.take_messages() == [(FIRST, Elsewhere(hashes=chain(1)))]
    arrivals.check_integrity()


def test_an_offer_whose_lists_differ_is_the_sources_fault():
    _, arrivals = target()
    with pytest.raises(RemoteProtocolError):
        arrivals.offered(FIRST, Offer(offer=1, hashes=chain(2), present=(True,)))


def test_a_held_block_is_not_lacked():
    index, arrivals = target()
    (write,) = index.begin_write(ENGINE, chain(1)).writes
    index.commit(ENGINE, write)
    arrivals.offered(FIRST, offer(*chain(2)))
    assert arrivals.take_messages() == [(FIRST, answer((1,)))]


def test_messages_for_a_lost_source_are_dropped():
    _, arrivals = target()
    arrivals.offered(FIRST, offer(*chain(1)))
    arrivals.lost(FIRST)
    assert arrivals.take_messages() == []
    assert arrivals.num_open == 0


def test_a_withdrawal_that_crossed_the_blocks_arrival_elsewhere_leaves_no_claim():
    world = TransferWorld(source_capacity=4, target_capacity=4, window_blocks=2)
    for name in world.sources:
        world.connect(name)
        world.write(name, chain(1))
        world.place(name, f"order-{name}", chain(1))
    world.run_until_quiet()
    assert sum(world.frames_sent.values()) == 1
    assert world.arrivals.num_open == 0
