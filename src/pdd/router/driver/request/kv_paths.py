"""One request's transfers: the KV of its prompt on its way to main decode and to relay decode."""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never

from pdd.belief.prefixes import Prefixes
from pdd.core.blocks import BlockHash
from pdd.core.errors import CapacityExhausted, ContextTooLong
from pdd.core.ids import NodeId, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.request import Role
from pdd.core.units import Bytes, Seconds
from pdd.policy.prefill_turns import Standing
from pdd.protocol import relay
from pdd.protocol.delivery_messages import DeliveryState
from pdd.router.base import TokenRequest
from pdd.router.driver.request.mailbox import Inbox, Refusal, RouteDue
from pdd.router.driver.request.report import Reporter
from pdd.router.driver.request.seats import RequestSeats
from pdd.router.driver.transfers.desk import TransferDesk
from pdd.router.driver.transfers.spec import TransferSpec
from pdd.router.driver.transfers.transfer import Transfer
from pdd.router.driver.workers.prefill_turns import PrefillTurn
from pdd.router.driver.workers.worker import Worker

_logger = logging.getLogger(__name__)
_READY_EVENTS = {Role.MAIN_DECODE: "main_ready", Role.RELAY_DECODE: "relay_ready"}


class KvPaths:
    """Places, watches and releases the transfers of one request. ``let_go`` at the end.

    While main decode's node has no room and the answer has no token yet, the request waits in line: ``admitted`` is
    cleared, and others' prompts are computed first (``prefill_turn``). Relay decode's node without room just means that
    this request doesn't relay (``relay_refused``).
    """

    def __init__(
        self,
        request: TokenRequest,
        hashes: tuple[BlockHash, ...],
        *,
        kv_format: KvFormat,
        desk: TransferDesk,
        prefixes: Prefixes,
        seats: RequestSeats,
        inbox: Inbox,
        reporter: Reporter,
        admitted: asyncio.Event,
        prefill_turn: PrefillTurn,
    ) -> None:
        self._request = request
        self._kv_format = kv_format
        self._desk = desk
        self._prefixes = prefixes
        self._seats = seats
        self._inbox = inbox
        self._reporter = reporter
        self._admitted = admitted
        self._prefill_turn = prefill_turn
        self._hashes = hashes
        self._source: Worker | None = None
        self._roles: dict[int, Role] = {}
        self._by_attempt: dict[int, Transfer] = {}
        self._latest: dict[Role, Transfer] = {}
        self._prefilled = False
        self.relay_refused = False

    @property
    def prompt_bytes(self) -> Bytes:
        """KV of the prompt's full blocks."""
        return Bytes(len(self._hashes) * self._kv_format.block_bytes)

    @property
    def hashes(self) -> tuple[BlockHash, ...]:
        """The prompt's full blocks."""
        return self._hashes

    @property
    def is_at_relay(self) -> bool:
        """The request has a place at relay decode, for its KV at least."""
        to_relay = self._latest.get(Role.RELAY_DECODE)
        return to_relay is not None and not to_relay.delivery.released

    @property
    def to_main(self) -> Transfer | None:
        """The latest transfer to main decode's node."""
        return self._latest.get(Role.MAIN_DECODE)

    @property
    def awaits_main(self) -> bool:
        """Main decode's node has yet to say what it lacks."""
        return self.to_main is not None and not self.to_main.settled and self.to_main.delivery.num_missing is None

    def missing_at_main(self) -> int | None:
        """Blocks that main decode's node still lacks; None while it has not said so."""
        if not self._hashes:
            return 0
        return None if self.to_main is None else self.to_main.delivery.num_missing

    def lacking_at_main(self) -> int | None:
        """Blocks that main decode's node lacked at first; None while it has not said so."""
        if not self._hashes:
            return 0
        return None if self.to_main is None else self.to_main.delivery.num_lacking

    def sent_over_lines(self) -> Bytes:
        """Block payload that was sent to another cluster for this request, so far."""
        return Bytes(
            sum(transfer.delivery.sent for transfer in self._by_attempt.values() if transfer.spec.crosses_line)
        )

    @property
    def main_node(self) -> NodeId | None:
        """Where the prompt's KV is, or will be if all goes well, for main decode; None if it will not get there."""
        transfer = self.to_main
        if transfer is None:
            return None
        given_up = transfer.delivery.released or transfer.delivery.state is DeliveryState.FAILED
        return (
            None if given_up and transfer.delivery.state is not DeliveryState.READY else transfer.spec.target.node.node
        )

    @property
    def may_miss_main(self) -> bool:
        """Perhaps the prompt's KV will never be at main decode's node: it was demoted, cut, or has failed."""
        transfer = self.to_main
        if transfer is None or transfer.delivery.state is DeliveryState.READY:
            return transfer is None and bool(self._hashes)
        return (
            transfer.delivery.demoted or transfer.delivery.released or transfer.delivery.state is DeliveryState.FAILED
        )

    def spare_the_line(self) -> None:
        """The answer is over before main decode had its KV: others, whose clients wait, go first."""
        if self.to_main is not None and not self.to_main.settled:
            self.to_main.demote()

    @property
    def workers(self) -> dict[Role, WorkerId]:
        """Whom the KV was meant for, whether or not they decoded."""
        return {role: transfer.spec.target.name for role, transfer in self._latest.items()}

    def replicate(self, command: relay.Replicate) -> None:
        """Places an order at prefill's node and a watch at the target's. What can't be placed has failed at once."""
        self._roles[command.attempt] = command.target
        target = self._seats.take(command.target)
        if not self._hashes and target is not None:
            self._inbox.post(relay.TransferReady(attempt=command.attempt))
            return
        source = self._find_source(command.target)
        if source is None or target is None:
            self._inbox.post(relay.TransferFailed(attempt=command.attempt))
            return
        transfer = self._desk.place(self._spec(command, source, target.worker), self)
        self._by_attempt[command.attempt] = transfer
        self._latest[command.target] = transfer
        self._note_room(transfer)
        if self._prefilled:
            transfer.prefill_done()

    def cancel(self, attempt: int) -> Role:
        """Releases a transfer, unless it was never placed; says whose it was."""
        if attempt in self._by_attempt:
            self._by_attempt[attempt].release()
        return self._roles[attempt]

    def demote(self, attempt: int, *, cut: bool) -> None:
        """Nobody waits for this transfer any more: lines send it when they have nothing else to do, or
        never (``cut``).
        """
        transfer = self._by_attempt.get(attempt)
        if transfer is None:
            return
        if cut:
            transfer.release()
        else:
            transfer.demote()

    def begins_at(self, prefill: Worker) -> bool:
        """Whether transfers wait for what ``prefill`` computes; any other's work would be at another node."""
        return self._source in (None, prefill)

    def prefill_lost(self) -> None:
        """The next prefill may run elsewhere: its node is the source then."""
        self._source = None

    def prefill_done(self) -> None:
        """Every block of the prompt has been computed."""
        self._prefilled = True
        if self._source is not None:
            self._prefixes.landed(self._source.node.node, self._hashes)
        for transfer in self._by_attempt.values():
            transfer.prefill_done()

    def is_ready(self, role: Role) -> bool:
        """``role``'s node holds every block of the prompt."""
        transfer = self._latest.get(role)
        return not self._hashes or (transfer is not None and transfer.delivery.state is DeliveryState.READY)

    async def let_go(self, *, keep_main: bool, patience: Seconds) -> None:
        """Releases everything and waits until that is done; a transfer to main still under way may be kept instead."""
        for transfer in self._by_attempt.values():
            under_way = transfer.delivery.state in (DeliveryState.PLACED, DeliveryState.MOVING)
            if keep_main and transfer is self.to_main and under_way:
                self._desk.detach(transfer)
            else:
                transfer.release()
                await self._wait_for_end(transfer, patience)

    async def _wait_for_end(self, transfer: Transfer, patience: Seconds) -> None:
        try:
            async with asyncio.timeout(patience):
                await transfer.ended()
        except TimeoutError:
            _logger.warning("transfer_not_ended transfer=%s limit_s=%.1f", transfer.spec.name, patience)

    def _find_source(self, target: Role) -> Worker | None:
        """Prefill's worker: the same for all transfers of one prefill, also after it has given its seat up.

        What main decode is sent again comes from relay decode's node, if that holds it all: prefill's may have lost it.
        """
        relay_path = self._latest.get(Role.RELAY_DECODE)
        again = Role.MAIN_DECODE in self._latest and target is Role.MAIN_DECODE and self._prefilled
        if (
            again
            and relay_path is not None
            and relay_path.delivery.state is DeliveryState.READY
            and not relay_path.delivery.released
        ):
            return relay_path.spec.target
        if self._source is None:
            seat = self._seats.take(Role.PREFILL)
            self._source = None if seat is None else seat.worker
        return self._source

    def _spec(self, command: relay.Replicate, source: Worker, target: Worker) -> TransferSpec:
        budget = len(self._request.prompt) + self._request.max_tokens
        return TransferSpec(
            name=f"{self._request.request_id}.{command.attempt}",
            attempt=command.attempt,
            role=command.target,
            source=source,
            target=target,
            hashes=self._hashes,
            reserve_blocks=self._kv_format.num_full_blocks(budget),
            send_class=command.send_class,
        )

    def on_informed(self, transfer: Transfer) -> None:
        """See ``TransferListener``."""
        if transfer is self.to_main:
            self._inbox.post(RouteDue())

    def on_change(self, transfer: Transfer) -> None:
        """See ``TransferListener``."""
        spec = transfer.spec
        self._note_room(transfer)
        match transfer.delivery.state:
            case DeliveryState.PLACED | DeliveryState.MOVING:
                pass
            case DeliveryState.REFUSED:
                self._reporter.note("transfer_refused", role=spec.role)
            case DeliveryState.READY:
                self._reporter.note(_READY_EVENTS[spec.role])
                self._prefixes.landed(spec.target.node.node, self._hashes)
                self._inbox.post(relay.TransferReady(attempt=spec.attempt))
            case DeliveryState.FAILED:
                self._reporter.note("transfer_failed", role=spec.role)
                self._on_failed(transfer)
            case _:
                assert_never(transfer.delivery.state)

    def _note_room(self, transfer: Transfer) -> None:
        """Whether the request waits for room depends on both of its targets."""
        if transfer.spec.role is Role.RELAY_DECODE:
            self.relay_refused = transfer.delivery.refused or _found_no_room(transfer)
        main = self.to_main
        if main is None or not main.delivery.refused or self._prefilled:
            self._admitted.set()
            self._prefill_turn.stand(Standing.ROOM)
        else:
            self._admitted.clear()
            has_place = self.is_at_relay and not self.relay_refused
            self._prefill_turn.stand(Standing.RELAY_ONLY if has_place else Standing.NOTHING)

    def _on_failed(self, transfer: Transfer) -> None:
        """Main decode without room refuses the request while it has no token, unless that is its last; later it must
        compute what it lacks.

        Relay decode without room (``relay_refused``) is not chosen any more, so that its transfer's failure starts
        nothing; a relay that was chosen before goes on, and relay decode computes what it lacks.
        """
        role, error = transfer.spec.role, transfer.delivery.error
        waited_for = role is Role.MAIN_DECODE and not self._prefilled and not transfer.delivery.demoted
        if waited_for and _found_no_room(transfer):
            assert error is not None
            self._inbox.post(Refusal(error=error))
            return
        elsewhere = transfer.delivery.is_targets_fault and self._leave(transfer)
        self._inbox.post(relay.TransferFailed(attempt=transfer.spec.attempt, elsewhere=elsewhere))

    def _leave(self, transfer: Transfer) -> bool:
        """Gives up the place at a worker whose node is away; whether there is another one."""
        role, worker = transfer.spec.role, transfer.spec.target
        seat = self._seats.take(role)
        if seat is not None and seat.worker is worker:
            self._seats.lose(seat)
            seat = self._seats.take(role)
        return seat is not None and seat.worker.node is not worker.node


def _found_no_room(transfer: Transfer) -> bool:
    return transfer.delivery.state is DeliveryState.FAILED and isinstance(
        transfer.delivery.error, CapacityExhausted | ContextTooLong
    )
