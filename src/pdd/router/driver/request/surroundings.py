"""What all requests of a router share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdd.belief.beliefs import Beliefs
from pdd.core.clock import Clock
from pdd.core.ids import RequestId
from pdd.core.kv_format import KvFormat
from pdd.protocol.relay import Command
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.bounds.waiting_room import WaitingRoom
from pdd.router.driver.transfers.desk import TransferDesk
from pdd.router.driver.workers.pool import Pool
from pdd.router.driver.workers.prefill_turns import PrefillTurns
from pdd.router.driver.workers.worker import Worker

CommandHook = Callable[[RequestId, Command], None]
"""Sees every command before it is carried out; for tests and traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Made by the service, once."""

    beliefs: Beliefs[Worker]
    pool: Pool
    desk: TransferDesk
    prefill_turns: PrefillTurns
    clock: Clock
    kv_format: KvFormat
    settings: DriverSettings
    room: WaitingRoom
    on_command: CommandHook | None = None
