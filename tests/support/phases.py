"""What phases a machine goes through, observed while it is played; and ``docs/phases.md``, which draws that.

A machine is any class with a ``phase``: a short name of where it is. It is watched through its entries, the methods
that may change its phase, so the page cannot say what the machine does not do.

    python -m tests.support.phases              says whether the page is what is observed
    python -m tests.support.phases --write      writes the page
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import patch

from pdd.protocol import delivery, delivery_messages, delivery_phases, relay, relay_phases
from pdd.protocol.capacity_queue import CapacityQueue
from pdd.router.driver.request import run
from pdd.router.driver.transfers import transfer
from pdd.sim.chaos.play import play_seed
from tests.support.delivery_properties import PROPERTIES as DELIVERY_PROPERTIES
from tests.support.delivery_scripts import SCRIPTS as DELIVERY_SCRIPTS
from tests.support.relay_fault_scripts import FAULT_SCRIPTS
from tests.support.relay_phase_scripts import PHASE_SCRIPTS
from tests.support.relay_properties import PROPERTIES
from tests.support.relay_scripts import SCRIPTS

PAGE = Path(__file__).parents[2] / "docs" / "phases.md"

_HEAD = """\
# Phases

What has a long life is a machine with named phases: a value, not a set of flags, says where it is. This page is
written by `python -m tests.support.phases --write` from what was observed while scripts, random worlds and chaos
played; a test fails if anything else is observed. An arrow is what one event did, with all that followed at once.
"""


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One call of an entry, and the phases before and after it."""

    before: str
    event: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``phases``: each that is declared, with its meaning; the first and the last are where a life begins and ends.

    ``play`` plays it with everything that there is, and gives what was observed. It does the same each time.
    """

    title: str
    about: str
    phases: Mapping[str, str]
    play: Callable[[], set[Change]]


# Watching -------------------------------------------------------------------------------------------------------------


def watched(machine: type, entries: Iterable[str], seen: set[Change], told: Callable[[Any], str]) -> type:
    """A subclass that notes what each entry did. ``told`` names its argument; an entry without has its own name."""

    def watch(name: str) -> Callable[..., Any]:
        entry = getattr(machine, name)

        def call(self: Any, *event: Any) -> Any:
            before = self.phase
            result = entry(self, *event)
            seen.add(Change(before, told(*event) if event else name, self.phase))
            return result

        return call

    return type(machine.__name__, (machine,), {name: watch(name) for name in entries})


def declared(phases: Any) -> dict[str, str]:
    """The names of a union of phase classes, and what their docstrings say."""
    return {phase.__name__: " ".join((getdoc(phase) or "").split()) for phase in get_args(phases)}


# The page -------------------------------------------------------------------------------------------------------------


def page(observed: Iterable[tuple[Machine, set[Change]]]) -> str:
    """Deterministic, to the byte."""
    return "\n".join([_HEAD, *(_section(machine, seen) for machine, seen in observed)])


def _section(machine: Machine, seen: set[Change]) -> str:
    first, *_, last = machine.phases
    changes = {change for change in seen if change.before != change.after}
    always = sorted(_always(machine, changes))
    drawn = changes - {change for change in changes if (change.event, change.after) in always}
    events: dict[tuple[str, str], list[str]] = {}
    order = list(machine.phases)
    for change in sorted(drawn, key=lambda each: (order.index(each.before), order.index(each.after), each.event)):
        events.setdefault((change.before, change.after), []).append(change.event)
    lines = [f"## {machine.title}", "", machine.about, "", "```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {before} --> {after}: {', '.join(names)}" for (before, after), names in events.items()]
    lines += [f"    {last} --> [*]", "```", ""]
    lines += [
        f"From every phase between the first and the last, `{event}` leads to {after}." for event, after in always
    ]
    lines += ["", "| phase | meaning |", "|---|---|"]
    lines += [f"| {name} | {meaning} |" for name, meaning in machine.phases.items()]
    return "\n".join([*lines, ""])


def _always(machine: Machine, changes: set[Change]) -> set[tuple[str, str]]:
    """Events that lead from every phase but the first to the last: not worth an arrow each."""
    _, *between, last = machine.phases
    events = {change.event for change in changes}
    return {(event, last) for event in events if all(Change(before, event, last) in changes for before in between)}


# The machines ---------------------------------------------------------------------------------------------------------

_NUM_RELAY_SEEDS = 100
_NUM_DELIVERY_SEEDS = 60
_NUM_CHAOS_SEEDS = 6


def _relay_event(event: Any) -> str:
    match event:
        case relay.TimerFired(timer=timer):
            return f"{timer.value} timer"
        case relay.RouteChosen(route=route):
            return f"RouteChosen {route.value}"
        case relay.HandoffChosen(mode=mode):
            return f"HandoffChosen {mode.value}"
        case _:
            return type(event).__name__


def _play_relay() -> set[Change]:
    seen: set[Change] = set()
    relays = watched(relay.Relay, ["start", "receive"], seen, _relay_event)
    module: Any = SimpleNamespace(**{**vars(relay), "Relay": relays})
    for script in (*SCRIPTS, *FAULT_SCRIPTS, *PHASE_SCRIPTS):
        script(module)
    for seed in range(_NUM_RELAY_SEEDS):
        for rule in PROPERTIES:
            rule(module, Random(seed))
    with patch.object(run, "Relay", relays):
        for seed in range(_NUM_CHAOS_SEEDS):
            play_seed(seed)
    return seen


RELAY = Machine(
    title="A relayed request",
    about="`protocol/relay.py` decides; `protocol/relay_phases.py` has the phases. `Relay.phase` names where it is.",
    phases=declared(relay_phases.Phase),
    play=_play_relay,
)


def _delivery_event(event: Any) -> str:
    return f"{event.timer.value} timer" if isinstance(event, delivery_messages.TimerFired) else type(event).__name__


def _play_delivery() -> set[Change]:
    seen: set[Change] = set()
    deliveries = watched(delivery.Delivery, ["receive"], seen, _delivery_event)
    module: Any = SimpleNamespace(**{**vars(delivery), "Delivery": deliveries, "CapacityQueue": CapacityQueue})
    for script in DELIVERY_SCRIPTS:
        script(module)
    for seed in range(_NUM_DELIVERY_SEEDS):
        for rule in DELIVERY_PROPERTIES:
            rule(module, Random(seed))
    with patch.object(transfer, "Delivery", deliveries):
        for seed in range(_NUM_CHAOS_SEEDS):
            play_seed(seed)
    return seen


DELIVERY = Machine(
    title="A delivery of KV",
    about="`protocol/delivery.py` decides; `protocol/delivery_phases.py` has the phases. `Delivery.phase` names where it is.",
    phases=declared(delivery_phases.Phase),
    play=_play_delivery,
)

MACHINES: tuple[Machine, ...] = (RELAY, DELIVERY)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = page((machine, machine.play()) for machine in MACHINES)
    if args.write:
        PAGE.write_text(text, encoding="utf-8")
    same = PAGE.read_text(encoding="utf-8") == text
    print(f"{PAGE.name} is {'' if same else 'not '}what is observed")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
