"""Answers as a client recorded them, made by hand so that every wait in them is known."""

from __future__ import annotations

from pdd.cli.ask.conversation import ReceivedAnswer, ReceivedSpan, ReportedEvent, RouterReport
from pdd.core.request import Role, Route
from pdd.core.units import Bytes, Seconds

P, RLD, MD = Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE


def spans(*rows: tuple[float, Role, int, str]) -> tuple[ReceivedSpan, ...]:
    """One span a row: when, by whom, how many tokens, what text. Token IDs are the positions."""
    made: list[ReceivedSpan] = []
    position = 0
    for at, role, num_tokens, text in rows:
        tokens = tuple(range(position, position + num_tokens))
        made.append(
            ReceivedSpan(
                at=Seconds(at), role=role, worker=role.name, first_position=position, token_ids=tokens, text=text
            )
        )
        position += num_tokens
    return tuple(made)


def event(at: float, name: str, **fields: object) -> ReportedEvent:
    return ReportedEvent(at=Seconds(at), name=name, fields=fields)


def answer(
    rows: tuple[ReceivedSpan, ...],
    *events: ReportedEvent,
    route: Route = Route.RELAY,
    prompt_tokens: int = 600,
    wan: int = 0,
    reason: str = "",
) -> ReceivedAnswer:
    report = RouterReport(
        route=route,
        route_reason=reason,
        num_prompt_tokens=prompt_tokens,
        tokens_by_role={},
        handoff_rounds=0,
        wan_kv_bytes=Bytes(wan),
        events=events,
    )
    return ReceivedAnswer(spans=rows, finish_reason="length", ended_at=rows[-1].at, report=report)


def relayed() -> ReceivedAnswer:
    """Prefill of 2 s; the second token 0.2 s later; a catch-up batch; 0.5 s felt at the hand-off."""
    rows = spans(
        (2.0, P, 1, "Once"),
        (2.2, RLD, 1, " upon"),
        (2.3, RLD, 2, " a time"),
        (2.8, MD, 1, " there"),
        (2.9, MD, 1, " was"),
        (3.0, MD, 1, " KV."),
    )
    events = (
        event(0.0, "opened"),
        event(0.0, "prefill_started", known=0),
        event(2.0, "first_token"),
        event(2.1, "relay_ready"),
        event(2.2, "main_ready"),
        event(2.21, "extend_started", known=2),
        event(2.29, "extended"),
        event(2.3, "handoff_started", known=4),
        event(3.0, "finished"),
    )
    return answer(rows, *events, wan=28_000_000, reason="main decode would wait")


def direct(text_of_last: str = " KV.") -> ReceivedAnswer:
    """The same tokens, 10 s after the first one."""
    rows = spans(
        (2.0, P, 1, "Once"),
        (12.0, MD, 1, " upon"),
        (12.1, MD, 2, " a time"),
        (12.2, MD, 1, " there"),
        (12.3, MD, 1, " was"),
        (12.4, MD, 1, text_of_last),
    )
    events = (event(0.0, "prefill_started"), event(2.0, "first_token"), event(12.0, "main_ready"))
    return answer(rows, *events, route=Route.DIRECT, wan=28_000_000)


def second_turn(wan: int = 1_400_000) -> ReceivedAnswer:
    rows = spans((0.3, P, 1, "Well"), (0.6, MD, 1, "!"))
    return answer(rows, route=Route.DIRECT, wan=wan)
