"""Views as policies see them, made from what a test is about."""

from __future__ import annotations

from pdd.core.request import Role, Steering
from pdd.core.topology import FilterRule, HandoffRule, PolicyTable, RouteRule
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.core.view import LinkView, PaceView, RequestView, RoleView

CAPACITY = 100


def role(*, up: bool = True, load: float = 0.0, itl: float | None = None) -> RoleView:
    """All workers of a role, which together run ``CAPACITY`` generations at once."""
    pace = PaceView(unit_s=None if itl is None else Seconds(itl))
    return RoleView(capacity=CAPACITY if up else 0, num_seats=round(load * CAPACITY) if up else 0, pace=pace)


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
    threshold: float = 2.0,
    rule: RouteRule = RouteRule.MISSING_BYTES,
    relay_hit_rate: float = 0.9,
    handoff: HandoffRule = HandoffRule.BY_LOAD,
    threshold_tokens: int = 64,
    max_rounds: int = 3,
    one_shot_load: float = 0.75,
    filter_rule: FilterRule = FilterRule.OFF,
    steering: Steering | None = None,
    max_tokens: int = 512,
    likely_tokens: int = 400,
    **rest: object,
) -> RequestView:
    """Blocks of one byte; sizes are in bytes, loads in parts of what relay decode can run."""
    believed = None if rate is None else BytesPerSecond(rate)
    return RequestView(
        steering=steering or Steering(),
        settings=PolicyTable(
            route=rule,
            relay_threshold_s=Seconds(threshold),
            relay_hit_rate=relay_hit_rate,
            handoff=handoff,
            catch_up_threshold_tokens=threshold_tokens,
            max_catch_up_rounds=max_rounds,
            one_shot_load=one_shot_load,
            filter=filter_rule,
        ),
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
        max_tokens=max_tokens,
        likely_tokens=likely_tokens,
        **rest,  # type: ignore[arg-type]
    )
