"""Hand-made mutants of the router's driver: each removes one guard, and some random world must notice it.

Run as a module it says which world notices which mutant: `python -m tests.support.chaos_mutants [part of a guard's
name]`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tests.support.mutants import ROOT, Mutant, mutated

NUM_WORLDS = 24
"""So many are tried before a mutant counts as alive."""


@dataclass(frozen=True)
class ChaosMutant(Mutant):
    """``seed`` is of a world that noticed it when it was last looked for."""

    seed: int = 0


def noticed_by(mutant: ChaosMutant, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of these worlds that goes wrong, and how."""
    with mutated(mutant, ROOT):
        play = importlib.import_module(f"{ROOT}.sim.chaos.play")
        for seed in seeds:
            findings = play.play_seed(seed).findings
            if findings:
                return seed, f"{findings[0].wrong}: {findings[0].what}"
    return None


MUTANTS: tuple[ChaosMutant, ...] = (
    # What engines send
    ChaosMutant(
        "an engine that fails is lost",
        "router.driver.request.decoders",
        "        self._inbox.post(relay.WorkerLost(attempt=attempt))\n",
        "",
    ),
    ChaosMutant(
        "silence is a loss",
        "router.driver.bounds.patience",
        '            self._break_off(f"the engine sent no token for {self._limit:g} s")\n',
        "            pass\n",
    ),
    ChaosMutant(
        "what has expired expires no more",
        "router.driver.bounds.patience",
        "    if not scope.expired():\n",
        "    if True:\n",
        seed=12,
    ),
    # One request
    ChaosMutant(
        "a decoder goes on from what was emitted",
        "router.driver.request.run",
        "request.prompt + known if known else request.prompt",
        "request.prompt",
    ),
    ChaosMutant(
        "a route is chosen once a question",
        "router.driver.request.run",
        "                if self._route_asked:\n",
        "                if True:\n",
    ),
    ChaosMutant(
        "nobody being up is told",
        "router.driver.request.run",
        "        seat = self._seats.take(command.role)\n        if seat is None:\n            self.inbox.post(relay.WorkerUnavailable(attempt=command.attempt))\n",
        "        seat = self._seats.take(command.role)\n        if seat is None:\n            pass\n",
        seed=4,
    ),
    ChaosMutant(
        "seats are given up at the end", "router.driver.request.run", "            self._seats.give_up_all()\n", ""
    ),
    ChaosMutant(
        "transfers are let go of at the end",
        "router.driver.request.run",
        "            await self._paths.let_go(keep_main=self._complete, patience=patience)\n",
        "",
    ),
    ChaosMutant("a seat given back is free", "belief.workers", "            del state.seats[seat]\n", ""),
    ChaosMutant(
        "a finished answer says why",
        "router.driver.request.run",
        "            self.outbox.send(replace(self._held, finish_reason=command.reason))\n",
        "            self.outbox.send(self._held)\n",
    ),
    # Queues
    ChaosMutant(
        "a span that was taken makes room",
        "router.driver.request.mailbox",
        "            self._room.release()\n",
        "            pass\n",
        seed=5,
    ),
    ChaosMutant(
        "a reader that catches up is noticed",
        "router.driver.request.mailbox",
        "        if self._spans:\n            self._drained.set()\n",
        "        if self._spans:\n",
        seed=5,
    ),
    ChaosMutant(
        "a place is given back",
        "router.driver.bounds.waiting_room",
        "        called = self._line.leave(place.entry)\n",
        "        called = None\n",
    ),
    # Transfers
    ChaosMutant(
        "readiness is told",
        "router.driver.request.kv_paths",
        "                self._inbox.post(relay.TransferReady(attempt=spec.attempt))\n",
        "",
    ),
    ChaosMutant(
        "a failed transfer is told",
        "router.driver.request.kv_paths",
        "        self._inbox.post(relay.TransferFailed(attempt=transfer.spec.attempt, elsewhere=elsewhere))\n",
        "",
        seed=5,
    ),
    ChaosMutant(
        "a transfer that can't be placed has failed",
        "router.driver.request.kv_paths",
        "        if source is None or target is None:\n            self._inbox.post(relay.TransferFailed(attempt=command.attempt))\n",
        "        if source is None or target is None:\n",
        seed=4,
    ),
    ChaosMutant(
        "transfers are released at the end",
        "router.driver.request.kv_paths",
        "                transfer.release()\n                await self._wait_for_end(transfer, patience)\n",
        "                pass\n",
    ),
    ChaosMutant(
        "a standstill is noticed",
        "protocol.delivery",
        "        if left <= 0 and not isinstance(self._phase, Refused):\n",
        "        if False:\n",
        seed=5,
    ),
    ChaosMutant(
        "an order ends with its transfer",
        "router.driver.transfers.transfer",
        "                await self._tell_source(source.cancel(order.order), order.order)\n",
        "                pass\n",
        seed=4,
    ),
    ChaosMutant(
        "a failed transfer holds nothing",
        "protocol.delivery",
        "        return [*self._record(), *tell, *self._end_order(), *self._stop(DeliveryState.FAILED)]\n",
        "        return [*self._record(), *tell]\n",
    ),
    ChaosMutant(
        "who leaves the queue for capacity lets the next one ask",
        "router.driver.transfers.transfer",
        "        following = self._queue.leave(self)\n",
        "        following = None\n",
        seed=11,
    ),
    # Conversations
    ChaosMutant(
        "pins end with their conversation",
        "belief.conversations",
        "            self._unpin(self._by_tip.pop(oldest.tip))\n",
        "            self._by_tip.pop(oldest.tip)\n",
    ),
    # Recovery
    ChaosMutant(
        "a lost prefill starts anew",
        "protocol.relay",
        "        return [*self._release_transfers(), *self._start_prefill()]\n",
        "        return self._release_transfers()\n",
        seed=2,
    ),
)


def main(part: str = "") -> None:
    for mutant in MUTANTS:
        if part in mutant.guard:
            seeds = (mutant.seed, *range(NUM_WORLDS))
            noticed = noticed_by(mutant, seeds)
            result = "NOBODY" if noticed is None else f"seed {noticed[0]}: {noticed[1]}"
            print(f"{mutant.guard}: {result}"[:200], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
