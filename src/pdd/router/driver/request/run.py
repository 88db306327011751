"""Runs one request: feeds its state machine with what happens, and carries out what it commands.

All that happens arrives through one inbox and is handled by one task, command by command, without waiting in between;
so the same events lead to the same commands in the same order, on any clock and under any hash seed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from pdd.belief.worker_state import Seat
from pdd.core.blocks import BlockChain
from pdd.core.errors import PddError, Unavailable
from pdd.core.ids import WorkerId
from pdd.core.request import Generation, Role
from pdd.core.topology import FilterRule
from pdd.core.units import Seconds
from pdd.policy.handoff import Batches, choose_handoff
from pdd.policy.route import choose_route, prepare
from pdd.protocol import relay
from pdd.protocol.relay import Command, Relay, RelayPlan
from pdd.router.base import EmittedSpan, TokenRequest
from pdd.router.driver.request.decoders import Decoders
from pdd.router.driver.request.kv_paths import KvPaths
from pdd.router.driver.request.mailbox import Inbox, InboxEvent, Outbox, Refusal, RouteDue
from pdd.router.driver.request.outlook import Outlook
from pdd.router.driver.request.report import Reporter
from pdd.router.driver.request.seats import RequestSeats
from pdd.router.driver.request.surroundings import Surroundings
from pdd.router.driver.workers.worker import Worker

_logger = logging.getLogger(__name__)


class RequestRun:
    """One request from its place to its end. ``run`` once; the answer reads ``outbox`` and posts to ``inbox``."""

    def __init__(self, request: TokenRequest, shared: Surroundings, reporter: Reporter) -> None:
        settings, policy = shared.settings, shared.settings.policy
        self.inbox = Inbox(max_spans=settings.max_spans_ahead)
        self.outbox = Outbox(max_spans=settings.max_spans_ahead)
        self._request = request
        self._shared = shared
        self._reporter = reporter
        self.report = self._reporter.report
        self._chain = BlockChain(shared.kv_format, request.salt, request.prompt)
        self.report.num_prompt_blocks = len(self._chain.hashes)
        self._conversation = shared.beliefs.conversations.find(self._chain.hashes, shared.clock.now())
        self._tasks = asyncio.TaskGroup()
        self._prefill_turn = shared.prefill_turns.turn(self._on_prefill_turn)
        self._seats = RequestSeats(
            shared.beliefs,
            self._chain.hashes,
            self._conversation,
            num_blocks=shared.kv_format.num_full_blocks(len(request.prompt) + request.max_tokens),
            settings=policy,
            clock=shared.clock,
        )
        self._decoders = self._make_decoders(shared)
        self._paths = self._make_paths(shared)
        self._outlook = Outlook(
            request,
            paths=self._paths,
            conversation=self._conversation,
            beliefs=shared.beliefs,
            settings=policy,
            clock=shared.clock,
        )
        self._relay = Relay(self._plan())
        self._served: dict[Role, WorkerId] = {}
        self._held: EmittedSpan | None = None
        self._last_span: EmittedSpan | None = None
        self._route_asked = False
        self._complete = False

    def _make_decoders(self, shared: Surroundings) -> Decoders:
        return Decoders(
            self._tasks,
            inbox=self.inbox,
            prefill_turn=self._prefill_turn,
            pool=shared.pool,
            clock=shared.clock,
            settings=shared.settings,
        )

    def _make_paths(self, shared: Surroundings) -> KvPaths:
        return KvPaths(
            self._request,
            self._chain.hashes,
            kv_format=shared.kv_format,
            desk=shared.desk,
            prefixes=shared.beliefs.prefixes,
            seats=self._seats,
            inbox=self.inbox,
            reporter=self._reporter,
            admitted=self._decoders.admitted,
            prefill_turn=self._prefill_turn,
        )

    def _plan(self) -> RelayPlan:
        """Prefill and main decode have their seats from the start; relay decode only if a relay is likely."""
        request, settings = self._request, self._shared.settings
        self._shared.beliefs.filter_share.saw_request()
        prefill, main = self._seats.take(Role.PREFILL), self._seats.take(Role.MAIN_DECODE)
        prepared = prepare(self._outlook.before_prefill(prefill, main))
        self._outlook.keeps_relay = prepared.keeps_relay
        return RelayPlan(
            num_prompt_tokens=len(request.prompt),
            max_tokens=request.max_tokens,
            stop_token_ids=request.stop_token_ids,
            prepare_main=prepared.prepare_main,
            prepare_relay=prepared.prepare_relay,
            may_reroute=prepared.may_reroute,
            relay_cap=prepared.relay_cap,
            relay_floor=prepared.relay_floor,
            reroute_interval=settings.policy.reroute_interval_s,
            recovery_delay=settings.recovery_delay,
            resend_delay=settings.resend_delay,
        )

    async def run(self) -> None:
        """Runs the request to its end; afterwards nothing of it is held anywhere, a transfer that goes on aside."""
        request = self._request
        try:
            async with self._tasks:
                try:
                    await self._live()
                finally:
                    self._decoders.stop_all()
        except Exception:
            _logger.exception("request_crashed request=%s", request.request_id)
            self._end("crashed", PddError("the router failed; its log says why"))
        finally:
            stopping = Unavailable("the router is stopping", retry_after_s=self._shared.settings.retry_after)
            self._end("aborted", stopping)
            self._prefill_turn.over()
            self._seats.give_up_all()
            patience = self._shared.settings.release_patience
            await self._paths.let_go(keep_main=self._complete, patience=patience)
            self.report.wan_kv_bytes = self._paths.sent_over_lines()

    async def _live(self) -> None:
        self._carry_out(self._relay.start())
        while not self._relay.finished:
            await self.outbox.room()
            self._receive(await self.inbox.get())

    # Events in --------------------------------------------------------------------------------------------------------

    def _receive(self, event: InboxEvent) -> None:
        match event:
            case Refusal():
                self._end("failed" if self._relay.num_emitted else "refused", self._shared.room.advised(event.error))
                self._carry_out(self._relay.receive(relay.ClientLeft()))
                return
            case RouteDue():
                if self._route_asked:
                    self._carry_out(self._choose_route())
                return
            case relay.WorkerLost():
                self._note_loss(event.attempt)
            case relay.Extended():
                self.report.handoff_rounds += 1
                self._reporter.note("extended")
            case _:
                pass
        self._carry_out(self._relay.receive(event))

    def _note_loss(self, attempt: int) -> None:
        seat = self._decoders.seat_of(attempt)
        if seat is None:
            return
        self._reporter.note("worker_lost", role=seat.worker.role, worker=seat.worker.name)
        self._seats.lose(seat)
        if self._relay.num_emitted == 0:
            self._lose_prefill()

    def _lose_prefill(self) -> None:
        self._prefill_turn.over()
        self._paths.prefill_lost()

    def _on_prefill_turn(self, goes_on: bool) -> None:
        self.inbox.post(relay.PrefillResumed() if goes_on else relay.PrefillHeld())

    # Commands out -----------------------------------------------------------------------------------------------------

    def _carry_out(self, commands: Iterable[Command]) -> None:
        """Carries out a batch. Its last emission is held back until it is known whether the answer ends with it."""
        waiting = deque(commands)
        while waiting:
            command = waiting.popleft()
            if self._shared.on_command is not None:
                self._shared.on_command(self._request.request_id, command)
            waiting.extend(self._obey(command))
        self._flush()

    def _obey(self, command: Command) -> Iterable[Command]:
        """Carries out one command; returns what the machine commands next, if it got an answer."""
        match command:
            case relay.Replicate():
                self._paths.replicate(command)
            case relay.CancelReplication():
                self._cancel(command.attempt)
            case relay.Demote():
                cut = self._shared.settings.policy.filter is FilterRule.CUT
                self._paths.demote(command.attempt, cut=cut)
            case relay.StartDecode():
                self._start_decode(command)
            case relay.StartExtend():
                self._start_extend(command)
            case relay.Stop():
                self._decoders.stop(command.attempt)
            case relay.Emit():
                self._emit(command)
            case relay.AskRoute():
                return self._ask_route()
            case relay.AskHandoff():
                return self._relay.receive(self._choose_handoff(command))
            case relay.SetTimer():
                self._decoders.set_timer(command.timer, command.delay)
            case relay.Finish():
                self._finish(command)
            case relay.Fail():
                self._fail(command)
            case _:
                assert_never(command)
        return ()

    def _cancel(self, attempt: int) -> None:
        """Relay decode's place is given up with its KV, once an answer has begun; before, prefill just starts again."""
        role = self._paths.cancel(attempt)
        if role is Role.RELAY_DECODE and self._relay.num_emitted:
            self._seats.give_up(role)

    def _start_decode(self, command: relay.StartDecode) -> None:
        name = "prefill_started" if command.num_known == 0 else "decode_started"
        if command.role is Role.MAIN_DECODE and Role.RELAY_DECODE in self.report.tokens_by_role:
            name = "handoff_started"
        self._reporter.note(name, role=command.role, known=command.num_known)
        seat = self._seats.take(command.role)
        if seat is None:
            self.inbox.post(relay.WorkerUnavailable(attempt=command.attempt))
            return
        if command.num_known == 0 and not self._begin_prefill(seat):
            self.inbox.post(relay.WorkerLost(attempt=command.attempt))
            return
        generation = self._generation(command.attempt, command.num_known, command.max_tokens)
        self._decoders.decode(seat, generation, has_prompt=self._paths.is_ready(command.role))

    def _begin_prefill(self, seat: Seat[Worker]) -> bool:
        """False: the worker at whose node transfers wait for blocks is gone, perhaps while a prefill was held."""
        if not self._paths.begins_at(seat.worker):
            self._lose_prefill()
            return False
        self.report.missing_blocks_at_prefill = seat.num_missing
        self._prefill_turn.begin(seat.worker.name)
        return True

    def _start_extend(self, command: relay.StartExtend) -> None:
        self._reporter.note("extend_started", known=command.num_known)
        seat = self._seats.take(Role.MAIN_DECODE)
        if seat is None:
            self.inbox.post(relay.WorkerUnavailable(attempt=command.attempt))
        else:
            generation = self._generation(command.attempt, command.num_known, 1)
            self._decoders.extend(seat, generation, has_prompt=self._paths.is_ready(Role.MAIN_DECODE))

    def _generation(self, attempt: int, num_known: int, max_tokens: int) -> Generation:
        request, known = self._request, self._relay.known_tokens(num_known)
        return Generation(
            request_id=request.request_id,
            attempt=attempt,
            known_tokens=request.prompt + known if known else request.prompt,
            num_prompt_tokens=len(request.prompt),
            max_tokens=max_tokens,
            stop_token_ids=request.stop_token_ids,
            sampling=request.sampling,
            salt=request.salt,
        )

    # Choices ----------------------------------------------------------------------------------------------------------

    def _ask_route(self) -> Iterable[Command]:
        """Chooses at once if everything is known, else as soon as main decode's node has said what it lacks.

        That takes a round trip from the request's beginning, longer than a prefill that hits its cache. To relay
        meanwhile would waste it on those who need it least.
        """
        self._route_asked = True
        if not self._paths.awaits_main or self._request.steering.route is not None:
            return self._choose_route()
        self._decoders.set_route_timer(self._shared.settings.route_patience)
        return ()

    def _choose_route(self) -> Iterable[Command]:
        self._route_asked = False
        if self.report.missing_blocks_at_main is None:
            self.report.missing_blocks_at_main = self._paths.lacking_at_main()
        choice = choose_route(self._outlook.now())
        if choice.filtered:
            self._shared.beliefs.filter_share.filtered_one()
        self._outlook.route = choice.route
        if self.report.route is not choice.route:
            self.report.route, self.report.route_reason = choice.route, choice.reason
            self.report.filtered |= choice.filtered
            self._reporter.note("route_chosen", route=choice.route, reason=choice.reason)
        return self._relay.receive(relay.RouteChosen(route=choice.route, relay_cap=choice.relay_cap))

    def _choose_handoff(self, question: relay.AskHandoff) -> relay.HandoffChosen:
        batches = Batches(gap=question.gap, previous_gap=question.previous_gap, rounds=question.rounds)
        mode = choose_handoff(self._outlook.now(), batches)
        self._reporter.note("handoff_chosen", mode=mode, gap=question.gap, rounds=question.rounds)
        return relay.HandoffChosen(mode=mode)

    # The client -------------------------------------------------------------------------------------------------------

    def _emit(self, command: relay.Emit) -> None:
        self._flush()
        self._reporter.emitted(command.role, len(command.tokens))
        if command.first_position == 0:
            self._paths.prefill_done()
            self._seats.give_up(Role.PREFILL)
        seat = self._decoders.seat_of(command.attempt)
        assert seat is not None
        self._served[command.role] = seat.worker.name
        self._held = self._last_span = EmittedSpan(
            first_position=command.first_position,
            tokens=command.tokens,
            role=command.role,
            worker=seat.worker.name,
        )

    def _flush(self) -> None:
        if self._held is not None:
            self.outbox.send(self._held)
            self._held = None

    def _finish(self, command: relay.Finish) -> None:
        if command.reason is None:
            self._end("client_left", None)
            return
        self._complete = True
        if not self._must_cross():
            self._paths.spare_the_line()
        self._remember()
        if self._held is not None:
            self.outbox.send(replace(self._held, finish_reason=command.reason))
        elif self._last_span is not None:
            end = self._last_span.first_position + len(self._last_span.tokens)
            self.outbox.send(replace(self._last_span, first_position=end, tokens=(), finish_reason=command.reason))
        self._held = None
        self._end("finished", None)

    def _must_cross(self) -> bool:
        """Relay decode has answered two turns in a row: what always gives way would never get to main decode."""
        once_more = self._conversation is not None and self._conversation.last_filtered
        return once_more and self._relay.num_emitted > 1  # main decode was to have nothing of what prefill ended

    def _remember(self) -> None:
        """The next turn begins with this one's tokens: it should go to where their KV is."""
        shared, emitted = self._shared, self._relay.emitted
        shared.beliefs.lengths.add(len(emitted))
        self._chain.append(emitted[:-1])
        main_node, filtered, last = self._paths.main_node, self._paths.may_miss_main, self._last_span
        if last is not None:  # its last token's KV was never computed
            node = shared.beliefs.workers.worker(last.worker).site.node
            shared.beliefs.prefixes.landed(node, self._chain.hashes)
            if last.role is Role.MAIN_DECODE:
                main_node, filtered = node, False
        self._chain.append(emitted[-1:])
        shared.beliefs.conversations.remember(
            self._chain.hashes,
            shared.clock.now(),
            seats={**self._paths.workers, **self._served},
            main_node=main_node,
            filtered=filtered,
            previous=self._conversation,
        )

    def _fail(self, command: relay.Fail) -> None:
        error = self._decoders.last_error
        told = error.retry_after_s if isinstance(error, Unavailable) else Seconds(0.0)
        self._flush()
        self._end("failed", Unavailable(command.why, retry_after_s=max(told, self._shared.room.retry_after())))

    def _end(self, outcome: str, error: PddError | None) -> None:
        """The first end counts."""
        if not self.outbox.closed:
            self.report.wan_kv_bytes = self._paths.sent_over_lines()
            self._reporter.close(outcome)
            self.outbox.close(error)
