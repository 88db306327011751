"""Views as policies see them, made from what a test is about."""

from __future__ import annotations

from typing import Any

from pdd.core.request import Role, Steering
from pdd.core.topology import PolicyTable
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.core.view import LinkView, PaceView, RequestView, RoleView

CAPACITY = 100


def role(*, up: bool = True, load: float = 0.0, itl: float | None = None) -> RoleView:
    """All workers of a role, which together run ``CAPACITY`` generations at once."""
    pace = PaceView(unit_s=None if itl is None else Seconds(itl))
    return RoleView(capacity=CAPACITY if up else 0, num_seats=round(load * CAPACITY) if up else 0, pace=pace)


_SETTING = {
    "threshold": "relay_threshold_s",
    "rule": "route",
    "relay_hit_rate": "relay_hit_rate",
    "handoff": "handoff",
    "threshold_tokens": "catch_up_threshold_tokens",
    "max_rounds": "max_catch_up_rounds",
    "one_shot_load": "one_shot_load",
    "filter_rule": "filter",
}
"""What tests call the policies' settings."""


def settings_of(changes: dict[str, Any]) -> PolicyTable:
    """Takes the settings out of what a test changes; relays begin after two seconds unless it says otherwise."""
    chosen = {key: changes.pop(name) for name, key in _SETTING.items() if name in changes}
    return PolicyTable(**{"relay_threshold_s": Seconds(2.0), **chosen})


def request_view(
    *,
    missing: int | None = 10_000_000,
    backlog: int = 10_000_000,
    num_others: int = 1,
    rate: float | None = 2_500_000.0,
    prompt_bytes: int = 28_000_000,
    relay_available: bool = True,
    main_available: bool = True,
    relay_load: float = 0.0,
    itl: float | None = None,
    **changes: Any,
) -> RequestView:
    """Blocks of one byte; sizes are in bytes, loads in parts of what relay decode can run."""
    believed = None if rate is None else BytesPerSecond(rate)
    settings = settings_of(changes)
    usual = {"steering": Steering(), "max_tokens": 512, "likely_tokens": 400}
    return RequestView(
        settings=settings,
        roles={
            Role.PREFILL: role(),
            Role.RELAY_DECODE: role(up=relay_available, load=relay_load, itl=itl),
            Role.MAIN_DECODE: role(up=main_available),
        },
        link=LinkView(rate=believed, measured_rate=believed, backlog=Bytes(backlog), num_orders=num_others + 1),
        num_others=num_others,
        block_bytes=Bytes(1),
        num_blocks=prompt_bytes,
        num_missing=missing,
        **{**usual, **changes},
    )
